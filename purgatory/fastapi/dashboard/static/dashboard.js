// The page: signing in, a snapshot each second, and which view is shown.

import { $, announce, h, redraw, render } from "./elements.js";
import { keepToken, reason, Refusal, request, session, token } from "./service.js";
import { countedKeys, mergedKeys, note, overview, workersView } from "./overview.js";
import { jobs, keysCard, pausedBanner, waits } from "./lists.js";

const VIEWS = { overview: "Overview", waits: "Waits", jobs: "Jobs", workers: "Workers" };
const LISTS = { waits, jobs };
// Without a snapshot for so long the connection is taken for lost.
const SILENCE_MS = 8000;
const INTERVAL_MS = 1000;
// Of the pill in the header.
const STATES = { connecting: "Connecting", off: "Signed out", live: "Live", lost: "Not live" };
let latest = null, state = "connecting", trouble = "", attempt = 0, next = null, view = null;

function signIn(why, takesToken) {
  keepToken(null);
  [latest, state, trouble] = [null, "off", ""];
  if (why) $("sign-in-why").textContent = why;
  $("sign-in-fields").hidden = !takesToken;
  $("token").value = "";
  redraw();
  $("token").focus();
}

function refused(error) {
  if (error.status === 401) {
    if (!error.isOfTokens) return signIn(`You are not logged in: ${error.message}.`, error.takesToken);
    return signIn(token() ? "The token is not known here. Enter another one." : "", true);
  }
  const needed = error.isOfTokens ? "it needs the scope observe or operate. Enter a token that has it. " : "";
  return signIn(`You may not see the dashboard: ${needed}(${error.message})`, error.takesToken);
}

function lost(error, seconds) {
  const why = error instanceof Refusal ? reason(error) : "The connection to the server is lost.";
  const since = latest ? `What you see is from ${new Date(latest.workers[0].at_ms).toLocaleTimeString()}. ` : "";
  trouble = `${why} ${since}Trying again in ${Math.max(1, Math.round(seconds))} s.`;
  state = "lost";
}

async function poll() {
  let wait_ms = INTERVAL_MS, found;
  try {
    found = await request("dashboard/snapshot", { signal: AbortSignal.timeout(SILENCE_MS) });
  } catch (error) {
    clearTimeout(next);
    if ([401, 403].includes(error.status)) return refused(error);
    attempt++;
    wait_ms = 1000 * Math.min(15, 2 ** attempt) * (0.75 + Math.random() / 2);
    lost(error, wait_ms / 1000);
  }
  clearTimeout(next);
  next = setTimeout(poll, wait_ms);
  if (found) received(found);
  redraw();
}

function received(snapshot) {
  const isFirst = latest === null;
  latest = snapshot;
  Object.assign(session, snapshot.session);
  jobs.counts = snapshot.job_states ?? {};
  note(snapshot);
  if (trouble && !isFirst) announce("Connected again.");
  [attempt, trouble, state] = [0, "", "live"];
  if (isFirst) route();
  else if (!document.hidden) LISTS[view]?.refreshIfDue();
}

function route() {
  if (!latest) return;
  const name = location.hash.slice(1).split("?")[0], before = view;
  if (name !== "main") view = Object.hasOwn(VIEWS, name) && (name !== "jobs" || session.has_jobs) ? name : "overview";
  document.title = `${VIEWS[view]} · Purgatory`;
  LISTS[view]?.choose([]);
  LISTS[view]?.refresh();
  draw();
  if (view !== before) scrollTo(0, 0);
}

function banners() {
  const found = [...latest?.notes ?? []];
  if (latest?.is_draining) found.push("This worker is shutting down.");
  for (const { worker, missing } of latest?.workers ?? []) found.push(...missing.map((text) => `${worker}: ${text}`));
  return [
    trouble && h("div", { class: "banner bad", id: "trouble", key: "trouble", role: "alert" }, h("p", {}, trouble), h("button", { onclick: tryNow }, "Try now")),
    found.length > 0 && h("div", { class: "banner bad", key: "notes", role: "status" }, found.map((each) => h("p", {}, each))),
    latest?.paused && ["overview", "jobs"].includes(view) && pausedBanner(latest.paused),
  ];
}

function tryNow() {
  trouble = "Trying again now.";
  redraw();
  poll();
}

function draw() {
  if (document.hidden) return;
  $("state").dataset.state = state;
  $("state").textContent = STATES[state];
  $("sign-out").hidden = !latest || !token();
  $("role").hidden = !latest || session.may.operate;
  $("sign-in").hidden = state !== "off";
  $("main").classList.toggle("stale", state === "lost");
  render($("banners"), banners());
  const workers = latest?.workers ?? [], names = Object.entries(VIEWS).filter(([name]) => name !== "jobs" || session.has_jobs);
  render($("views"), latest && names.map(([name, title]) => h("a", { href: `#${name}`, "aria-current": name === view && "page" }, title)));
  $("worker").hidden = workers.length < 2;
  render($("worker"), h("option", { value: "" }, `All ${workers.length} workers`), workers.map(({ token: value, worker }) => h("option", { key: value, value }, worker)));
  render($("view"), latest && view && h("section", { key: view, "data-view": view, "aria-label": VIEWS[view] }, shown(workers)));
}

function shown(all) {
  const chosen = $("worker").value, workers = chosen ? all.filter((worker) => worker.token === chosen) : all;
  if (view === "workers") return workersView(all);
  if (view === "jobs") return jobs.card();
  if (view === "waits") return [keysCard(mergedKeys(workers).slice(0, 50), countedKeys(workers).text), waits.card()];
  return overview(latest, workers, chosen);
}

$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken($("token").value.trim());
  state = "connecting";
  redraw();
  poll();
});
$("sign-out").addEventListener("click", () => {
  keepToken(null);
  location.reload();
});
addEventListener("hashchange", () => {
  // It is about what the view before showed.
  $("dialog").close();
  route();
});
addEventListener("redraw", draw);
$("worker").addEventListener("change", draw);
document.addEventListener("visibilitychange", draw);
poll();
