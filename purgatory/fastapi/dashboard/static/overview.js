// The views of the statistics: the overview, and the workers.

import { card, details, h } from "./elements.js";
import { bars, duration, line, number, wheel } from "./drawings.js";
import { chips, keysTable } from "./lists.js";
import { session } from "./service.js";

const SPANS_MS = [30000, 60000, 120000, 300000], SPAN_MS = SPANS_MS.at(-1);
const OUTCOMES = ["fired", "expired", "cancelled", "outdated", "drained"];
const TILES = [
  ["parked", "Parked now", "accent", number, ""],
  ["keys", "Keys watched", "accent", number, ""],
  ["fired", "Woken", "fired", number, "/s"],
  ["expired", "Expired", "expired", number, "/s"],
  ["cancelled", "Cancelled", "cancelled", number, "/s"],
  ["lag", "Event loop lag", "accent", duration, ""],
];

// A point for each snapshot, oldest first: {at, of: {"": figures of all workers, token: of one}}.
export const points = [];
// {token: the worker as it was seen last}
let before = new Map();

// Note a snapshot, whichever view is shown.
export function note({ workers }) {
  for (const worker of workers) worker.rates = rates(worker, before.get(worker.token));
  before = new Map(workers.map((worker) => [worker.token, worker]));
  const at = Date.now(), each = workers.map((worker) => [worker.token, figures([worker])]);
  points.push({ at, of: Object.fromEntries([["", figures(workers)], ...each]) });
  while (at - points[0].at > SPAN_MS) points.shift();
}

// A rate takes two snapshots: before that it is not 0 but unknown.
function rates(worker, last) {
  const seconds = last ? (worker.at_ms - last.at_ms) / 1000 : 0;
  if (seconds <= 0) return last?.rates ?? null;
  return Object.fromEntries(OUTCOMES.map((name) => [name, (worker.statistics[name] - last.statistics[name]) / seconds]));
}

function figures(workers) {
  const rated = workers.filter((worker) => worker.rates);
  const rate = (name) => (rated.length ? total(rated, (worker) => worker.rates[name]) : NaN);
  return {
    parked: total(workers, ({ statistics }) => statistics.parked), keys: countedKeys(workers).keys,
    lag: Math.max(...workers.map((worker) => worker.loop_lag_ms)),
    fired: rate("fired"), expired: rate("expired"), cancelled: rate("cancelled"),
  };
}

function total(workers, of) { return workers.reduce((sum, worker) => sum + of(worker), 0); }

export function mergedKeys(workers) {
  const found = new Map();
  for (const { key, waiting, oldest_ms } of workers.flatMap((worker) => worker.keys)) {
    const sum = found.get(key) ?? { key, waiting: 0, oldest_ms: 0 };
    found.set(key, { key, waiting: sum.waiting + waiting, oldest_ms: Math.max(sum.oldest_ms, oldest_ms) });
  }
  return [...found.values()].sort((a, b) => b.waiting - a.waiting || (a.key < b.key ? -1 : 1));
}

// A key counts once, however many workers watch it. Workers list the fullest of their keys: those
// that are not listed may be the same in two of them, so the sum is then an upper bound.
export function countedKeys(workers) {
  const unlisted = total(workers, ({ keys, statistics }) => statistics.keys - keys.length);
  const keys = mergedKeys(workers).length + unlisted, is_bound = workers.length > 1 && unlisted > 0;
  return { keys, text: `${is_bound ? "at most " : ""}${number(keys)}` };
}

// The statistics of `workers`, which are all of the snapshot, or the one with the chosen token.
export function overview(snapshot, workers, chosen) {
  const course = points.filter(({ of }) => of[chosen]), age = Date.now() - course[0].at;
  const span = SPANS_MS.find((each) => each >= age) ?? SPAN_MS;
  const values = (name) => course.map(({ at, of }) => [at, of[chosen][name]]);
  const parked = values("parked"), most = Math.max(1, ...parked.map(([, value]) => value)), now = parked.at(-1)[1];
  const count = (name) => total(workers, ({ statistics }) => statistics[name]);
  const known = OUTCOMES.filter((name, i) => i < 3 || (name === "outdated" && count(name)));
  const since = known.map((name) => `${number(count(name))} ${name === "fired" ? "woken" : name}`).join(", ");
  const label = `Parked operations: ${number(now)} now, at most ${number(most)} in the last ${duration(span)}`;
  const fullest = workers.reduce((a, b) => (b.statistics.timers > a.statistics.timers ? b : a));
  return [
    h("dl", { class: "tiles" }, TILES.map(([name, title, style, text, unit]) =>
      h("div", { class: "card", id: `tile-${name}` }, h("dt", {}, title),
        h("dd", {}, name === "keys" ? countedKeys(workers).text : text(course.at(-1).of[chosen][name]), unit && h("small", {}, ` ${unit}`)),
        line(values(name), Math.min(span, SPANS_MS[1]), style)))),
    h("div", { class: "columns" },
      card("Parked", h("p", { class: "hint", id: "parked-legend" }, `Since the start: ${since}`),
        h("p", { class: "axis" }, number(most)), h("div", { class: "chart high" }, line(parked, span, "accent", label)),
        h("p", { class: "axis" }, h("span", {}, `−${duration(span)}`), h("span", {}, "now"))),
      card("Timing wheel", workers.length > 1 && h("p", { class: "hint" }, `of ${fullest.worker}`), h("div", { id: "wheel" }, wheel(fullest.levels))),
      card("How long waits took", h("p", { class: "hint" }, known.map((name) => h("span", { class: `legend ${name}` }, name))),
        h("div", { class: "chart" }, bars(snapshot.wait_bounds_ms, outcomes(workers), "How long waits took")),
        h("h3", {}, "How late deadlines ran"),
        h("div", { class: "chart" }, bars(snapshot.lateness_bounds_ms, [{ style: "accent", counts: added(workers.map((worker) => worker.lateness)) }], "How late deadlines ran")),
        h("p", { class: "hint" }, "Since this worker's first viewer came.")),
      card("Fullest keys", h("a", { href: "#waits" }, "All waits"), keysTable(mergedKeys(workers).slice(0, 9))),
      session.has_jobs && card("Jobs", h("a", { href: "#jobs" }, "All jobs"), jobs(snapshot.job_states, workers))),
  ];
}

function outcomes(workers) {
  return OUTCOMES.map((style) => ({ style, counts: added(workers.map((worker) => worker.waits[style])) }));
}

function added(lists) { return lists[0].map((_, i) => lists.reduce((sum, list) => sum + list[i], 0)); }

function jobs(counts, workers) {
  const running = workers.map((worker) => worker.statistics.jobs).filter(Boolean), sum = (name) => number(total(running, (each) => each[name]));
  return [
    chips(counts ?? {}),
    h("h3", {}, "In the hands of these workers"),
    details([
      ["Leased", sum("held")], ["Running", sum("running")], ["Tried again", sum("retried")], ["Leases lost", sum("lost")],
      ["Started late (p99)", duration(Math.max(0, ...running.map((each) => each.lateness.p99_ms)))],
    ]),
  ];
}

export function workersView(workers) {
  return card("Workers", h("p", { class: "hint" }, "Each is a process that shares the signals of this one."),
    h("div", { class: "workers" }, workers.map((worker) => {
      const state = worker.statistics.is_draining ? "draining" : worker.missing.length ? "not ready" : "ready";
      const style = { ready: "done", draining: "running" }[state] ?? "failed";
      return h("article", { class: "card", key: worker.token, "aria-label": worker.worker },
        h("h3", {}, worker.worker, h("span", { class: `badge ${style}` }, state)), details(facts(worker)));
    })));
}

function facts({ statistics, loop_lag_ms, rates: rate }) {
  const { signals, shared_signals: shared, jobs: job } = statistics;
  const refused = Object.entries(statistics.refused).filter(([, count]) => count);
  return [
    ["Parked", `${number(statistics.parked)} on ${number(statistics.keys)} keys`],
    ["Woken", `${number(rate?.fired)} /s`],
    ["Event loop lag", duration(loop_lag_ms)],
    ["Latest deadline", `${duration(statistics.longest_lateness_ms)} late`],
    ["Signals kept", `${number(signals.signals)}, ${number(signals.bytes / 1024)} KB`],
    shared && ["Lag behind the log", `${number(shared.lag)} signals`],
    shared && ["Gaps, reconnects", `${number(shared.gaps)}, ${number(shared.reconnects)}`],
    job && ["Leased jobs", `${number(job.held)}, ${number(job.running)} running, ${number(job.lost)} lost`],
    job && ["Jobs late", `${duration(job.lateness.p50_ms)} (p99 ${duration(job.lateness.p99_ms)})`],
    job && ["Recovery", `${job.recovery.is_finished ? "finished" : "under way"}, ${number(job.recovery.overdue)} overdue`],
    job && ["Job store", job.store_error || "in reach"],
    refused.length > 0 && ["Refused", refused.map(([name, count]) => `${name}: ${number(count)}`).join(", ")],
    ["Core", statistics.is_compiled ? "compiled" : "plain Python"],
  ].filter(Boolean);
}
