// The view of jobs: by state, with filters, details and actions on one or many.

import { act, asked, confirmed } from "./action_dialogs.js";
import { $, Choice, h, Rows } from "./elements.js";
import { announce } from "./notices.js";
import { read, reason } from "./requests.js";
import { session } from "./session.js";
import { duration, number } from "./charts.js";
import { refreshPaused } from "./paused.js";

const STATES = ["waiting", "running", "done", "failed", "cancelled"];
// What is blocked is also counted as waiting, or running; the next runs of periodic jobs, as waiting.
const CHOICES = [...STATES, "blocked", "periodic"];
const QUERIES = { blocked: { blocked: "true" }, periodic: { state: "waiting", concurrency_key: "purgatory:periodic" } };
const ACTIONS = [
  { action: "run-job", verb: "Run now", style: "" },
  { action: "retry-job", verb: "Try again", style: "" },
  { action: "cancel-job", verb: "Cancel…", style: "danger" },
];
// Why a job that is due waits; such a job is in the state "waiting".
const BLOCKED = {
  max_running: ["blocked by handler", "Waiting: as many jobs of the handler run as max_running allows."],
  max_running_per_key: ["blocked by key", "Waiting: as many jobs run with its concurrency key as max_running_per_key allows."],
  paused: ["paused", "Waiting: its handler is paused."],
};
const form = $("jobs-form");
const choice = new Choice($("jobs-table"), $("jobs-actions").parentElement, $("jobs-chosen"), "jobs");
let state = "", isShown = false, next = null, shown = [], counts = {};

function time(text) {
  return text ? new Date(text).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" }) : "–";
}

function ago(text) { return `${duration(Math.max(0, Date.now() - Date.parse(text)))} ago`; }

function due(job) {
  const at = job.due || job.deadline, rest = Date.parse(at) - Date.now();
  if (rest > 0) return `in ${duration(rest)}`;
  return job.state === "waiting" ? `${duration(-rest)} overdue` : ago(at);
}

const rows = new Rows($("jobs-table").tBodies[0], (item) => {
  const box = choice.box(item.id, `job ${item.id}`);
  const badge = h("span"), when = h("td", { class: "time", "data-label": "Due" }), finished = h("td", { class: "time", "data-label": "Finished" }), attempt = h("td", { "data-label": "Attempt" });
  const error = h("td", { class: "error", "data-label": "Error" });
  const element = h("tr", {},
    h("td", { "data-needs": "jobs", hidden: !session.may.jobs }, box),
    h("td", { "data-label": "Job" }, h("button", { class: "link", title: item.id, onclick: () => details(item.id) }, item.id.length > 16 ? `…${item.id.slice(-12)}` : item.id)),
    h("td", { class: "mono", "data-label": "Handler" }, item.handler),
    h("td", { "data-label": "State" }, badge), when, finished, attempt,
    h("td", { class: item.keys.length ? "mono" : "none", "data-label": "Keys" }, item.keys.join(", ") || "–"), error);
  return {
    element,
    update(job) {
      box.checked = choice.ids.has(job.id);
      badge.className = `badge ${job.state}`;
      [badge.textContent, badge.title] = BLOCKED[job.blocked_by] || [job.state, ""];
      when.textContent = due(job);
      when.title = time(job.due || job.deadline);
      finished.textContent = job.finished ? ago(job.finished) : "–";
      finished.title = job.finished ? time(job.finished) : "";
      finished.classList.toggle("none", !job.finished);
      attempt.textContent = `${job.attempt} of ${job.max_attempts}`;
      error.textContent = job.error || "–";
      error.title = job.error || "";
      error.className = job.error ? "error" : "none";
    },
  };
});

function drawChips() {
  const all = STATES.reduce((sum, each) => sum + (counts[each] || 0), 0);
  const chips = [["", "All", all], ...CHOICES.map((each) => [each, each, counts[each]])];
  const place = $("job-chips");
  if (place.children.length !== chips.length) {
    place.replaceChildren(...chips.map(([value]) => h("button", { type: "button", "data-state-of": value, onclick: () => { location.hash = value ? `#jobs?state=${value}` : "#jobs"; } })));
  }
  chips.forEach(([value, name, count], i) => {
    const chip = place.children[i];
    chip.textContent = count === undefined || !Object.keys(counts).length ? name : `${name} ${number(count)}`;
    chip.setAttribute("aria-pressed", String(value === state));
  });
}

export function noteJobs({ job_states }) {
  counts = job_states || {};
  if (isShown) drawChips();
}

function drawActions(place, ids, job) {
  place.replaceChildren(...ACTIONS.filter(({ action }) => !job || job.state === (action === "retry-job" ? "failed" : "waiting")).map(({ action, verb, style }) =>
    h("button", { type: "button", class: style, onclick: () => doTo(action, ids()) }, verb)));
}

async function doTo(action, ids) {
  if (action === "cancel-job" && !(await confirmed(ids.length === 1 ? "Cancel the job?" : `Cancel ${number(ids.length)} jobs?`, "A cancelled job never runs.", "Cancel"))) return;
  await act(action, ids);
  $("job-dialog").close();
  choice.clear();
  refresh();
}

function matches(job, text) {
  return !text || [job.id, job.handler, job.error, job.dedupe_key, job.fired_key, ...job.keys].some((each) => each && each.toLowerCase().includes(text));
}

function draw() {
  const text = form.elements.search.value.trim().toLowerCase();
  const found = shown.filter((job) => matches(job, text));
  rows.show(found, (job) => job.id);
  choice.keep(found.map((job) => job.id));
  $("jobs-table").parentElement.nextElementSibling.hidden = found.length > 0;
  $("jobs-more").hidden = !next;
  $("jobs-hint").textContent = `${number(found.length)} shown${next ? ", there are more" : ""}`;
  $("handlers").replaceChildren(...[...new Set(shown.map((job) => job.handler))].map((value) => h("option", { value })));
}

async function refresh(more = false) {
  if (!isShown) return;
  const text = form.elements.search.value.trim();
  try {
    if (session.may.read_jobs && /^[0-9a-f]{32}$/.test(text)) {
      shown = [await read(`jobs/${text}`)];
      next = null;
    } else {
      const page = await read("jobs", {
        ...(QUERIES[state] || { state }), handler: form.elements.handler.value, key: form.elements.key.value, limit: "100", after: more ? next : null,
      });
      shown = more ? [...shown, ...page.jobs] : page.jobs;
      next = page.next ? new URL(page.next, location.href).searchParams.get("after") : null;
    }
    draw();
  } catch (error) {
    $("jobs-hint").textContent = reason(error);
  }
}

function shownValue(value) {
  if (value === null || value === undefined || value === "") return "–";
  return typeof value === "object" ? JSON.stringify(value, null, 2) : String(value);
}

async function details(id) {
  let job = shown.find((each) => each.id === id);
  try {
    if (session.may.read_jobs) job = await read(`jobs/${encodeURIComponent(id)}`);
  } catch (error) {
    announce(reason(error));
  }
  if (!isShown) return;
  const dialog = $("job-dialog");
  dialog.querySelector("h2").textContent = `Job ${job.id}`;
  const fields = [
    ["Handler", job.handler], ["State", job.state], ["Outcome", job.outcome], ["Due", time(job.due)], ["Deadline", time(job.deadline)],
    ["Added", time(job.created)], ["Finished", time(job.finished)], ["Attempt", `${job.attempt} of ${job.max_attempts}`],
    ["Late", job.lateness_ms === null ? null : duration(job.lateness_ms)], ["Keys", job.keys.join("\n")], ["When a key fires", job.on_fire],
    ["Fired by", job.fired_key], ["Dedupe key", job.dedupe_key], ["Concurrency key", job.concurrency_key], ["Waits for", job.blocked_by], ["If missed", job.misfire], ["Error", job.error],
  ];
  if ("payload" in job) fields.push(["Payload", job.payload], ["Callback", job.callback], ["Fired value", job.fired_value]);
  dialog.querySelector("dl").replaceChildren(...fields.flatMap(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, shownValue(value))]));
  drawActions(dialog.querySelector(".row"), () => [id], job);
  dialog.showModal();
}

export function showJobs(parameters) {
  isShown = true;
  state = CHOICES.includes(parameters.get("state")) ? parameters.get("state") : "";
  drawChips();
  drawActions($("jobs-actions"), () => [...choice.ids]);
  refresh();
}

export function hideJobs() { isShown = false; }

form.addEventListener("submit", (event) => {
  event.preventDefault();
  refresh();
});
form.elements.search.addEventListener("input", draw);
$("pause-handler").addEventListener("click", async () => {
  $("pause-name").value = "";
  if (!(await asked($("pause-dialog")))) return;
  await act("pause", [$("pause-name").value.trim()]);
  refreshPaused();
  refresh();
});
$("jobs-more").addEventListener("click", () => refresh(true));
setInterval(() => {
  if (isShown && !document.hidden && !choice.ids.size && shown.length <= 100 && !document.querySelector("dialog[open]")) refresh();
}, 5000);
