// The views of the statistics: the overview, and the workers.

import { $, h, Rows } from "./elements.js";
import { session } from "./session.js";
import { duration, histogram, number, parkedChart, sparkline, Wheel } from "./charts.js";

const SPAN_MS = 300000;
const SPANS_MS = [30000, 60000, 90000, 120000, 180000, SPAN_MS];
const STATES = ["waiting", "running", "done", "failed", "cancelled", "blocked"];
const COUNTERS = ["fired", "expired", "cancelled", "drained"];
const OUTCOMES = [
  { name: "fired", style: "c-fired" }, { name: "expired", style: "c-expired" },
  { name: "cancelled", style: "c-cancelled" }, { name: "outdated", style: "c-outdated" },
  { name: "drained", style: "c-drained" },
];
const TILES = [
  { id: "parked", name: "Parked now", style: "s-accent", text: (p) => [number(p.parked)] },
  { id: "keys", name: "Keys watched", style: "s-accent", text: (p) => [number(p.keys), p.is_bound && "at most"] },
  { id: "fired", name: "Woken", style: "s-fired", text: (p) => [number(p.fired), "/s"] },
  { id: "expired", name: "Expired", style: "s-expired", text: (p) => [number(p.expired), "/s"] },
  { id: "cancelled", name: "Cancelled", style: "s-cancelled", text: (p) => [number(p.cancelled), "/s"] },
  { id: "lag", name: "Event loop lag", style: "s-accent", text: (p) => [duration(p.lag)] },
];

// {token of a worker: its points, oldest first}, and what it counted when it was seen last.
const series = new Map();
const before = new Map();
let wheel = null, wheelOf = null;

function point(worker, repeated) {
  const statistics = worker.statistics, last = before.get(worker.token);
  const made = { at: worker.at_ms, parked: statistics.parked, keys: statistics.keys, others: statistics.keys - repeated, lag: worker.loop_lag_ms, has_rates: Boolean(last) };
  const seconds = last ? (worker.at_ms - last.at_ms) / 1000 : 0;
  for (const name of COUNTERS) {
    made[name] = seconds > 0 ? Math.max(0, statistics[name] - last.statistics[name]) / seconds : 0;
  }
  return made;
}

// Note a snapshot, also while another view is shown.
export function note(snapshot) {
  const at = Date.now(), seen = new Set();
  for (const worker of snapshot.workers) {
    const repeated = worker.keys.filter(({ key }) => seen.has(key)).length;
    for (const { key } of worker.keys) seen.add(key);
    const last = before.get(worker.token);
    if (last && last.at_ms === worker.at_ms) continue;
    const points = series.get(worker.token) || [];
    points.push({ ...point(worker, repeated), at });
    while (points.length && at - points[0].at > SPAN_MS + 5000) points.shift();
    series.set(worker.token, points);
    before.set(worker.token, worker);
  }
  for (const [token, points] of series) {
    if (at - points.at(-1).at > SPAN_MS) {
      series.delete(token);
      before.delete(token);
    }
  }
}

// The sum of the workers, second by second. A worker counts once in each: two of its snapshots may
// come in one second and none in the next, for which the one before stands.
export function history(tokens) {
  const own = tokens.map((token) => new Map((series.get(token) || []).map((each) => [Math.round(each.at / 1000), each])));
  const seconds = [...new Set(own.flatMap((points) => [...points.keys()]))].sort((a, b) => a - b);
  return seconds.map((second) => {
    const sum = { at: second * 1000, parked: 0, keys: 0, fired: 0, expired: 0, cancelled: 0, drained: 0, lag: 0 };
    for (const points of own) {
      const each = points.get(second) || points.get(second - 1) || points.get(second - 2);
      if (!each) continue;
      for (const name of ["parked", ...COUNTERS]) sum[name] += each[name];
      // A key that an earlier worker lists counts there, if that is shown.
      sum.keys += tokens.length > 1 ? each.others : each.keys;
      sum.lag = Math.max(sum.lag, each.lag);
    }
    return sum;
  });
}

// What is shown as numbers is what the last snapshot says, not the sum of seconds.
function now(workers) {
  const { keys, is_bound } = countedKeys(workers), sum = { parked: 0, keys, is_bound, lag: 0 };
  for (const worker of workers) {
    sum.parked += worker.statistics.parked;
    sum.lag = Math.max(sum.lag, worker.loop_lag_ms);
  }
  // A rate takes two snapshots: before that it is not 0 but unknown.
  const rated = workers.map((worker) => series.get(worker.token)?.at(-1)).filter((last) => last?.has_rates);
  for (const name of ["fired", "expired", "cancelled"]) {
    sum[name] = rated.length ? rated.reduce((total, last) => total + last[name], 0) : NaN;
  }
  return sum;
}

export function drawOverview(snapshot, workers) {
  const points = history(workers.map((worker) => worker.token)), sums = now(workers);
  drawTiles(sums, points);
  if (points.length) {
    const age = points.at(-1).at - points[0].at;
    parkedChart($("parked-chart"), points, SPANS_MS.find((span) => span >= age) || SPAN_MS);
  }
  const total = (name) => workers.reduce((sum, worker) => sum + worker.statistics[name], 0);
  const outdated = total("outdated");
  $("parked-legend").textContent = `Since the start: ${number(total("fired"))} woken, ${number(total("expired"))} expired, ${number(total("cancelled"))} cancelled${outdated ? `, ${number(outdated)} outdated` : ""}`;
  drawWheel(workers);
  drawTimes(snapshot, workers);
  drawTopKeys(mergedKeys(workers).slice(0, 9));
  drawJobSummary(snapshot, workers);
}

function drawTiles(sums, points) {
  const place = $("tiles");
  if (!place.children.length) {
    for (const tile of TILES) {
      place.append(h("div", { class: "tile", id: `tile-${tile.id}` }, h("dt", {}, tile.name), h("dd", {})));
    }
  }
  for (const tile of TILES) {
    const element = $(`tile-${tile.id}`), [value, unit] = tile.text(sums);
    element.querySelector("dd").replaceChildren(value, ...(unit ? [h("small", {}, ` ${unit}`)] : []));
    element.querySelector("svg")?.remove();
    element.append(sparkline(points.slice(-60).map((each) => each[tile.id]), tile.style));
  }
}

function drawWheel(workers) {
  const fullest = workers.reduce((a, b) => (b.statistics.timers > a.statistics.timers ? b : a));
  const shown = workers.find((worker) => worker.token === wheelOf) || fullest;
  if (wheelOf !== shown.token || !wheel) {
    $("wheel").replaceChildren();
    wheel = new Wheel($("wheel"));
    wheelOf = shown.token;
  }
  $("wheel-worker").textContent = workers.length > 1 ? `of ${shown.worker}` : "";
  wheel.draw(shown.levels);
}

function added(lists) {
  return lists[0].map((_, i) => lists.reduce((sum, list) => sum + list[i], 0));
}

function drawTimes({ wait_bounds_ms, lateness_bounds_ms }, workers) {
  const parts = OUTCOMES.map(({ name, style }) => ({ name, style, counts: added(workers.map((w) => w.waits[name])) }));
  histogram($("wait-times"), wait_bounds_ms, parts, "How long waits took");
  const named = OUTCOMES.filter(({ name }, i) => i < 3 || (name === "outdated" && parts[i].counts.some(Boolean)));
  if ($("waits-legend").children.length !== named.length) {
    $("waits-legend").replaceChildren(...named.map(({ name }) => h("span", { class: `key k-${name}` }, name)));
  }
  const late = { name: "late", style: "c-accent", counts: added(workers.map((w) => w.lateness)) };
  histogram($("lateness"), lateness_bounds_ms, [late], "How late deadlines ran");
}

export function mergedKeys(workers) {
  const found = new Map();
  for (const { keys } of workers) {
    for (const each of keys) {
      const sum = found.get(each.key) || { key: each.key, waiting: 0, oldest_ms: 0 };
      sum.waiting += each.waiting;
      sum.oldest_ms = Math.max(sum.oldest_ms, each.oldest_ms);
      found.set(each.key, sum);
    }
  }
  return [...found.values()].sort((a, b) => b.waiting - a.waiting || (a.key < b.key ? -1 : 1));
}

// A key counts once, however many workers watch it. Workers list the fullest of their keys: those
// that are not listed may be the same in two of them, so the sum is then an upper bound.
export function countedKeys(workers) {
  const unlisted = workers.map(({ keys, statistics }) => statistics.keys - keys.length);
  const keys = unlisted.reduce((a, b) => a + b, mergedKeys(workers).length);
  return { keys, is_bound: workers.length > 1 && unlisted.some((count) => count > 0) };
}

const topKeys = new Rows($("top-keys"), (item) => {
  const name = h("span", { title: item.key }, item.key), bar = h("i");
  const count = h("b"), oldest = h("span"), words = [h("span", { class: "hidden" }, " wait, the oldest for ")];
  const link = h("a", { href: `#waits?key=${encodeURIComponent(item.key)}` }, name, h("span", {}, count, ...words), oldest);
  return {
    element: h("li", {}, link, bar),
    update({ waiting, oldest_ms, part }) {
      count.textContent = number(waiting);
      oldest.textContent = duration(oldest_ms);
      bar.style.width = `${part * 100}%`;
    },
  };
});

function drawTopKeys(keys) {
  const top = keys.length ? keys[0].waiting : 1;
  topKeys.show(keys.map((each) => ({ ...each, part: each.waiting / top })), (each) => each.key);
  let empty = $("top-keys").parentElement.querySelector(".empty");
  if (!keys.length && !empty) $("top-keys").after(h("p", { class: "empty" }, "Nothing waits."));
  else if (keys.length) empty?.remove();
}

function drawJobSummary({ job_states: states }, workers) {
  const running = workers.map((worker) => worker.statistics.jobs).filter(Boolean);
  $("job-summary").hidden = !running.length || !session.has_jobs;
  if (!running.length) return;
  $("job-states").replaceChildren(...Object.entries(states || {}).map(([state, count]) => {
    const parts = [h("b", {}, number(count)), state];
    return h("li", {}, STATES.includes(state) ? h("a", { href: `#jobs?state=${state}` }, ...parts) : h("span", {}, ...parts));
  }));
  const sum = (name) => number(running.reduce((total, jobs) => total + jobs[name], 0));
  const late = Math.max(...running.map((jobs) => jobs.lateness.p99_ms));
  const found = [["Leased", sum("held")], ["Running", sum("running")], ["Tried again", sum("retried")], ["Leases lost", sum("lost")], ["Started late (p99)", duration(late)]];
  $("job-work").replaceChildren(...found.flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
}

function facts(worker) {
  const { statistics, missing } = worker, { signals, shared_signals: shared, jobs } = statistics;
  const last = (series.get(worker.token) || []).at(-1);
  const found = [
    ["Parked", `${number(statistics.parked)} on ${number(statistics.keys)} keys`],
    ["Woken", last?.has_rates ? `${number(last.fired)} /s` : "–"],
    ["Event loop lag", duration(worker.loop_lag_ms)],
    ["Latest deadline", `${duration(statistics.longest_lateness_ms)} late`],
    ["Signals kept", `${number(signals.signals)}, ${number(signals.bytes / 1024)} KB`],
  ];
  if (shared) {
    found.push(["Lag behind the log", `${number(shared.lag)} signals`], ["Gaps", number(shared.gaps)], ["Reconnects", number(shared.reconnects)]);
  }
  if (jobs) {
    const { recovery, lateness } = jobs;
    found.push(
      ["Leased jobs", `${number(jobs.held)}, ${number(jobs.running)} running`],
      ["Leases lost", number(jobs.lost)],
      ["Jobs late", `${duration(lateness.p50_ms)} (p99 ${duration(lateness.p99_ms)})`],
      ["Recovery", recovery.is_finished ? (recovery.overdue ? `finished: ${number(recovery.overdue)} were overdue` : "finished") : `under way: ${number(recovery.overdue)} overdue so far`],
      ["Job store", jobs.store_error || "in reach"],
    );
  }
  const refused = Object.entries(statistics.refused).filter(([, count]) => count);
  if (refused.length) found.push(["Refused", refused.map(([name, count]) => `${name}: ${number(count)}`).join(", ")]);
  found.push(["Core", statistics.is_compiled ? "compiled" : "plain Python"]);
  const state = statistics.is_draining ? "draining" : missing.length ? "not ready" : "ready";
  return { state, found };
}

const workerCards = new Rows($("workers-list"), (item) => {
  const badge = h("span"), list = h("dl", { class: "details" });
  return {
    element: h("article", { class: "worker-card", "aria-label": item.worker }, h("h3", {}, item.worker, badge), list),
    update(worker) {
      const { state, found } = facts(worker);
      badge.className = `badge ${{ ready: "done", draining: "running" }[state] || "failed"}`;
      badge.textContent = state;
      list.replaceChildren(...found.flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
    },
  };
});

export function drawWorkers(workers) {
  workerCards.show(workers, (worker) => worker.token);
}
