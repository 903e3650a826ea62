// The page: signing in, the figures of each second, and which view is shown.

import { $, applyPermissions, h } from "./elements.js";
import { announce } from "./notices.js";
import { reason, Refusal, request } from "./requests.js";
import { keepToken, session, token } from "./session.js";
import { countedKeys, drawOverview, drawWorkers, mergedKeys, note } from "./overview.js";
import { drawKeys, hideWaits, showWaits } from "./waits.js";
import { hideJobs, noteJobs, showJobs } from "./jobs.js";
import { hidePaused, showPaused } from "./paused.js";

const VIEWS = ["overview", "waits", "jobs", "workers"];
// Without a snapshot for so long the connection is taken for lost.
const SILENCE_MS = 8000;
const INTERVAL_MS = 1000;
let latest = null, isOpen = false, attempt = 0, current = null, next = null;

function setState(state, text) {
  $("state").dataset.state = state;
  $("state").querySelector("b").textContent = text;
  document.querySelector("main").classList.toggle("stale", state === "lost");
}

function trouble(text) {
  $("trouble").hidden = !text;
  if (text) $("trouble").querySelector("p").textContent = text;
}

function signIn(why, takesToken) {
  isOpen = false;
  setState("off", "Signed out");
  trouble("");
  for (const view of VIEWS) $(view).hidden = true;
  for (const id of ["sign-out", "role", "notes", "views"]) $(id).hidden = true;
  $("sign-in").hidden = false;
  $("worker").parentElement.hidden = true;
  hidePaused();
  if (why) $("sign-in-why").textContent = why;
  $("sign-in-fields").hidden = !takesToken;
  $("token").value = "";
  $("token").focus();
}

function opened() {
  attempt = 0;
  trouble("");
  const was_lost = $("state").dataset.state === "lost";
  setState("live", "Live");
  $("sign-in").hidden = true;
  $("views").hidden = false;
  $("sign-out").hidden = !token();
  $("role").hidden = session.may.operate;
  $("jobs-link").hidden = !session.has_jobs;
  applyPermissions();
  if (!isOpen) {
    isOpen = true;
    route();
  } else if (was_lost) announce("Connected again.");
}

function workersShown() {
  const chosen = $("worker").value;
  const found = latest.workers.filter((worker) => !chosen || worker.token === chosen);
  return found.length ? found : latest.workers;
}

function drawWorkerChoice() {
  const select = $("worker"), chosen = select.value;
  const tokens = latest.workers.map((worker) => worker.token).join();
  $("worker").parentElement.hidden = latest.workers.length < 2;
  if (select.dataset.tokens === tokens) return;
  select.dataset.tokens = tokens;
  select.replaceChildren(h("option", { value: "" }, `All ${latest.workers.length} workers`),
    ...latest.workers.map((worker) => h("option", { value: worker.token }, worker.worker)));
  select.value = latest.workers.some((worker) => worker.token === chosen) ? chosen : "";
}

function drawNotes() {
  const found = [...latest.notes];
  if (latest.is_draining) found.push("This worker is shutting down.");
  for (const worker of latest.workers) found.push(...worker.missing.map((text) => `${worker.worker}: ${text}`));
  $("notes").hidden = !found.length;
  const text = found.join("\n");
  if ($("notes").dataset.text === text) return;
  $("notes").dataset.text = text;
  $("notes").replaceChildren(...found.map((each) => h("li", {}, each)));
}

function draw() {
  if (!latest || !isOpen || document.hidden) return;
  drawWorkerChoice();
  drawNotes();
  const workers = workersShown();
  if (current === "overview") drawOverview(latest, workers);
  if (current === "workers") drawWorkers(latest.workers);
  if (current === "waits") drawKeys(mergedKeys(workers).slice(0, 50), countedKeys(workers));
}

function route() {
  if (!isOpen) return;
  const [name, query] = location.hash.slice(1).split("?");
  const view = VIEWS.includes(name) && !(name === "jobs" && !session.has_jobs) ? name : "overview";
  const parameters = new URLSearchParams(query || "");
  const is_other = view !== current;
  current = view;
  for (const each of VIEWS) $(each).hidden = each !== view;
  for (const link of $("views").children) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view[0].toUpperCase()}${view.slice(1)} · Purgatory`;
  if (view === "waits") showWaits(parameters);
  else hideWaits();
  if (view === "jobs") showJobs(parameters);
  else hideJobs();
  if (view === "jobs" || view === "overview") showPaused();
  else hidePaused();
  draw();
  if (is_other) scrollTo(0, 0);
}

function received(data) {
  Object.assign(session, data.session);
  latest = data;
  note(latest);
  if ($("state").dataset.state !== "live") opened();
  noteJobs(latest);
  draw();
}

async function poll() {
  clearTimeout(next);
  try {
    const response = await request("dashboard/snapshot", { signal: AbortSignal.timeout(SILENCE_MS) });
    received(await response.json());
    next = setTimeout(poll, INTERVAL_MS);
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) {
      const known = token();
      keepToken(null);
      if (error.isOfTokens) signIn(known ? "The token is not known here. Enter another one." : "", true);
      else signIn(`You are not logged in: ${error.message}.`, error.takesToken);
      return;
    }
    if (error instanceof Refusal && error.status === 403) {
      keepToken(null);
      const needed = error.isOfTokens ? "it needs the scope observe or operate. Enter a token that has it. " : "";
      signIn(`You may not see the dashboard: ${needed}(${error.message})`, error.takesToken);
      return;
    }
    attempt++;
    const seconds = Math.min(15, 2 ** Math.min(attempt, 4)) * (0.75 + Math.random() / 2);
    const why = error instanceof Refusal ? reason(error) : "The connection to the server is lost.";
    setState("lost", "Not live");
    if (!isOpen) $("sign-in").hidden = true;
    trouble(`${why} ${latest ? `What you see is from ${new Date(latest.workers[0].at_ms).toLocaleTimeString()}. ` : ""}Trying again in ${Math.max(1, Math.round(seconds))} s.`);
    next = setTimeout(poll, seconds * 1000);
  }
}

$("trouble").querySelector("button").addEventListener("click", () => {
  trouble("Trying again now.");
  poll();
});
$("sign-in").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken($("token").value.trim());
  setState("off", "Connecting");
  poll();
});
$("sign-out").addEventListener("click", () => {
  keepToken(null);
  location.reload();
});
$("worker").addEventListener("change", draw);
addEventListener("hashchange", () => {
  // A dialog is about what the view before showed.
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  route();
});
addEventListener("resize", draw);
document.addEventListener("visibilitychange", draw);
poll();
