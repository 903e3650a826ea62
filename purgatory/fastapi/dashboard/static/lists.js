// The lists of keys, waits and jobs: tables, of which the address names the page and the filter.

import { announce, ask, card, details, h, redraw } from "./elements.js";
import { duration, number } from "./drawings.js";
import { act, read, reason, session } from "./service.js";

const STATES = ["waiting", "running", "done", "failed", "cancelled"];
// What is blocked is also counted as waiting, or running; the next runs of periodic jobs, as waiting.
const QUERIES = { blocked: { blocked: "true" }, periodic: { state: "waiting", concurrency_key: "purgatory:periodic" } };
const JOB_ACTIONS = [["run-job", "Run now", "waiting"], ["retry-job", "Try again", "failed"], ["cancel-job", "Cancel…", "waiting"]];
// Why a job that is due waits; such a job is in the state "waiting".
const BLOCKED = {
  max_running: ["blocked by handler", "Waiting: as many jobs of the handler run as max_running allows."],
  max_running_per_key: ["blocked by key", "Waiting: as many jobs run with its concurrency key as max_running_per_key allows."],
  paused: ["paused", "Waiting: its handler is paused."],
};
const NAME = { spellcheck: "false", autocapitalize: "off", autocomplete: "off", maxlength: 256 };

function parameters() { return new URLSearchParams(location.hash.split("?")[1]); }

function button(text, onclick, attributes = {}) {
  return h("button", { type: "button", class: "small", onclick, ...attributes }, text);
}

// A field with what the address has of it: another one, once that is something else.
function field(text, name, attributes = {}, tag = "input", ...children) {
  const value = parameters().get(name) ?? "";
  return h("label", {}, text, " ", h(tag, { name, value, key: value, ...NAME, ...attributes }, ...children));
}

// The box that chooses a row, or all of them.
function box(label, checked, onchange, indeterminate = false) {
  return h("input", { type: "checkbox", "aria-label": label, checked, indeterminate, onchange });
}

// Columns are [label, row => its texts or nodes, style]; `choice` has boxes for the rows, if any.
function table(noun, all, rows, idOf, choice) {
  const label = `Table of ${noun}`, columns = all.filter(Boolean);
  return h("div", { class: "scroll", role: "region", "aria-label": label, tabindex: 0 }, rows.length > 0 ? h("table", { id: `${noun}-table` },
    h("caption", { class: "hidden" }, label),
    h("thead", {}, h("tr", {}, choice && h("th", { scope: "col", class: "box" }, choice.all()),
      columns.map(([name, , style]) => h("th", { scope: "col", class: style === "number" && style }, name || h("span", { class: "hidden" }, "Actions"))))),
    h("tbody", {}, rows.map((row) => h("tr", { key: idOf(row) }, choice && h("td", { class: "box" }, choice.one(row)),
      columns.map(([name, of, style]) => {
        const found = of(row);
        return h("td", { class: found ? style : "none", "data-label": name }, found || "–");
      }))))) : h("p", { class: "empty" }, `No ${noun}.`));
}

class List {
  constructor(options) {
    Object.assign(this, { rows: [], chosen: new Set(), isLive: true, askedAt: 0, hint: "", ...options });
  }

  // Ask for the page of the address, unless that is done already.
  async refresh() {
    const asked = location.hash;
    if (this.asking === asked) return;
    this.asking = asked;
    this.askedAt = Date.now();
    try {
      const page = await this.read(Object.fromEntries(parameters()));
      if (asked !== location.hash) return;
      this.readAt = Date.now();
      this.rows = page[this.noun];
      // Waits have the parameter, and jobs the address with it.
      this.next = page.next && (new URL(page.next, location.href).searchParams.get("after") ?? page.next);
      this.choose([...this.chosen].filter((id) => this.rows.some((row) => row.id === id)));
      this.hint = `${number(this.rows.length)} ${this.next || parameters().has("after") ? "on this page" : "in all"}`;
    } catch (error) {
      this.hint = reason(error);
    } finally {
      this.asking = null;
    }
    redraw();
  }

  refreshIfDue() {
    const isRead = document.querySelector("dialog[open]") || this.chosen.size || !this.isLive;
    if (!isRead && Date.now() - this.askedAt >= this.everyMs) this.refresh();
  }

  choose(ids) {
    this.chosen = new Set(ids);
    redraw();
  }

  async do(action, ids) {
    await act(action, ids);
    this.choose([]);
    this.refresh();
  }

  all() {
    const { size } = this.chosen, are = size > 0 && size === this.rows.length;
    const choose = ({ target }) => this.choose(target.checked ? this.rows.map((row) => row.id) : []);
    return h("label", {}, box(`Choose all ${this.noun} shown`, are, choose, size > 0 && !are), h("span", { class: "narrow-only" }, "Choose all"));
  }

  one(row) {
    const others = [...this.chosen].filter((id) => id !== row.id);
    const choose = ({ target }) => this.choose(target.checked ? [...others, row.id] : others);
    return box(`Choose ${this.nameOf(row)}`, this.chosen.has(row.id), choose);
  }

  address(changed) {
    const query = new URLSearchParams({ ...Object.fromEntries(parameters()), ...changed });
    for (const [name, value] of [...query]) if (!value) query.delete(name);
    return `#${this.noun}?${query}`;
  }

  filter(event) {
    event.preventDefault();
    location.hash = this.address({ ...Object.fromEntries(new FormData(event.target)), after: "" });
    this.refresh();
  }

  card() {
    const query = parameters(), ids = [...this.chosen];
    return card(this.noun, h("p", { class: "hint", role: "status" }, this.hint),
      this.above?.(query.get("state") ?? ""),
      h("form", { class: "filters", onsubmit: (event) => this.filter(event) }, this.fields(), h("button", {}, "Show"),
        h("label", { class: "check" }, h("input", { type: "checkbox", checked: this.isLive, onchange: ({ target }) => { this.isLive = target.checked; } }), ` Refresh every ${duration(this.everyMs)}`)),
      ids.length > 0 && h("div", { class: "bulk" }, `${number(ids.length)} ${this.noun} chosen`, this.bulk(ids)),
      table(this.noun, this.columns(), this.rows, (row) => row.id, session.may[this.needs] && this),
      h("p", { class: "row" }, query.has("after") && h("a", { href: this.address({ after: "" }) }, "First page"),
        this.next && h("a", { href: this.address({ after: this.next }) }, "Next page")));
  }
}

async function confirmed(title, text, verb) {
  return ask(title, h("p", {}, text), h("button", { class: "danger", value: "go" }, verb));
}

function checkJson({ target }) {
  target.setCustomValidity("");
  try {
    if (target.value.trim()) JSON.parse(target.value);
  } catch (error) {
    target.setCustomValidity(`This is not JSON: ${error.message}. A text needs quotes.`);
  }
}

async function fire(key) {
  const found = await ask("Fire a key", [
    field("Key", "key", { value: key, required: "" }),
    field("Value, as JSON (may be empty)", "value", { rows: 4, maxlength: null, oninput: checkJson }, "textarea"),
  ], h("button", { class: "primary", value: "go" }, "Fire"));
  if (!found) return;
  await act("fire", [found.key], found.value.trim() ? JSON.parse(found.value) : null);
  waits.refresh();
}

async function drop(key) {
  const text = `All waits on ${key} end as cancelled, and its signals are deleted: cursors from before are expired.`;
  if (await confirmed("Drop the key?", text, "Drop it")) waits.do("drop-key", [key]);
}

export function keysTable(keys, has_actions = false) {
  return table("keys", [
    ["Key", ({ key }) => h("a", { href: `#waits?${new URLSearchParams({ key })}` }, key), "name mono"],
    ["Waiting", (row) => number(row.waiting), "number"],
    ["Oldest", (row) => duration(row.oldest_ms), "number"],
    has_actions && session.may.drop && ["", ({ key }) => [
      session.may.fire && button("Fire…", () => fire(key), { "aria-label": `Fire ${key}` }),
      button("Drop…", () => drop(key), { "aria-label": `Drop ${key}`, class: "small danger" }),
    ], "actions"],
  ], keys, (row) => row.key);
}

export function keysCard(keys, total) {
  return card("Keys", [
    h("p", { class: "hint" }, `The ${number(keys.length)} fullest of ${total}`),
    session.may.fire && button("Fire a key…", () => fire("")),
  ], keysTable(keys, true));
}

export const waits = new List({
  noun: "waits", needs: "operate", everyMs: 2000,
  nameOf: (wait) => `the wait of ${wait.client ?? wait.kind} on ${wait.key}`,
  read: (query) => read("waits", { ...query, limit: 50 }),
  fields: () => [
    field("Key begins with", "prefix", { placeholder: "order:" }),
    field("Key", "key"),
    field("Order", "order", {}, "select", [["", "Oldest first"], ["deadline", "Next deadline first"]].map(([value, text]) =>
      h("option", { value, selected: parameters().get("order") === value && "" }, text))),
  ],
  bulk: (ids) => button("Cancel the chosen waits…", async () => {
    const text = `${number(ids.length)} waits end as cancelled. Their clients may wait again.`;
    if (await confirmed("Cancel the chosen waits?", text, "Cancel them")) waits.do("cancel-wait", ids);
  }, { class: "danger" }),
  columns() {
    const passed = Date.now() - this.readAt;
    return [
      ["Key", (wait) => (wait.keys > 1 ? `${wait.key} and ${wait.keys - 1} more` : wait.key), "name mono"],
      ["Kind", (wait) => wait.kind],
      ["Client", (wait) => wait.client, "mono"],
      ["Age", (wait) => duration(wait.age_ms + passed), "number"],
      ["Ends in", (wait) => duration(Math.max(0, wait.remaining_ms - passed)), "number"],
      ["Wait-Id", (wait) => wait.wait_id, "mono"],
      ["Worker", (wait) => wait.worker, "mono"],
      session.may.operate && ["", (wait) => [
        session.may.fire && button("Fire…", () => fire(wait.key), { "aria-label": `Fire ${wait.key}, for which ${wait.client ?? wait.kind} waits` }),
        button("Cancel", () => this.do("cancel-wait", [wait.id]), { "aria-label": `Cancel ${this.nameOf(wait)}`, class: "small danger" }),
      ], "actions"],
    ];
  },
});

function time(text, words) {
  return text && h("time", { datetime: text, title: new Date(text).toLocaleString() }, words);
}

function ago(text) { return `${duration(Math.max(0, Date.now() - Date.parse(text)))} ago`; }

function due(job) {
  const at = job.due ?? job.deadline, rest = Date.parse(at) - Date.now();
  if (rest > 0) return time(at, `in ${duration(rest)}`);
  return time(at, job.state === "waiting" ? `${duration(-rest)} overdue` : ago(at));
}

async function changeJobs(action, ids) {
  const title = ids.length === 1 ? "Cancel the job?" : `Cancel ${number(ids.length)} jobs?`;
  if (action !== "cancel-job" || await confirmed(title, "A cancelled job never runs.", "Cancel")) jobs.do(action, ids);
}

function shown(value) {
  if (typeof value === "string" && /^\d{4}-\d\d-\d\dT\S+Z$/.test(value)) return new Date(value).toLocaleString();
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

async function look(listed) {
  const asked = location.hash;
  let job = listed;
  try {
    if (session.may.read_jobs) job = await read(`jobs/${encodeURIComponent(job.id)}`, {});
  } catch (error) {
    announce(reason(error));
  }
  if (asked !== location.hash) return;
  const fields = Object.entries(job).filter(([, value]) => String(value ?? ""));
  const found = await ask(`Job ${job.id}`, details(fields.map(([name, value]) => [name.replaceAll("_", " "), shown(value)])),
    session.may.jobs && JOB_ACTIONS.filter(([, , state]) => state === job.state).map(([value, text]) => h("button", { value }, text)));
  if (found) changeJobs(found.verb, [job.id]);
}

async function pause() {
  const found = await ask("Pause a handler", [
    h("p", {}, "No more of its jobs are started, in any worker, until it is resumed. What runs goes on."),
    field("Handler", "handler", { list: "handlers", required: "" }),
    h("datalist", { id: "handlers" }, [...new Set(jobs.rows.map((job) => job.handler))].map((value) => h("option", { value }))),
  ], h("button", { class: "danger", value: "go" }, "Pause"));
  if (found) jobs.do("pause", [found.handler.trim()]);
}

export const jobs = new List({
  noun: "jobs", needs: "jobs", everyMs: 5000, counts: {},
  nameOf: (job) => `job ${job.id}`,
  async read({ search = "", state = "", ...rest }) {
    if (session.may.read_jobs && /^[0-9a-f]{32}$/.test(search)) return { jobs: [await read(`jobs/${search}`, {})], next: null };
    const page = await read("jobs", { ...(QUERIES[state] ?? { state }), ...rest, limit: 50 });
    const text = search.toLowerCase();
    return { ...page, jobs: page.jobs.filter((job) => JSON.stringify(job).toLowerCase().includes(text)) };
  },
  above(state) { return chips(this.counts, state, (changed) => this.address({ ...changed, after: "" })); },
  fields: () => [
    field("Search the page, or an id", "search"), field("Handler", "handler"), field("Key", "key"),
    session.may.operate && button("Pause handler…", pause, { id: "pause-handler", class: null }),
  ],
  bulk: (ids) => JOB_ACTIONS.map(([action, text]) => button(text, () => changeJobs(action, ids))),
  columns: () => [
    ["Job", (job) => button(job.id.length > 16 ? `…${job.id.slice(-12)}` : job.id, () => look(job), { class: "link mono", title: job.id }), "name"],
    ["Handler", (job) => job.handler, "mono"],
    ["State", (job) => {
      const [text, title] = BLOCKED[job.blocked_by] ?? [job.state, null];
      return h("span", { class: `badge ${job.state}`, title }, text);
    }],
    ["Due", due, "time"],
    ["Finished", (job) => job.finished && time(job.finished, ago(job.finished)), "time"],
    ["Attempt", (job) => `${job.attempt} of ${job.max_attempts}`],
    ["Keys", (job) => job.keys.join(", "), "mono"],
    ["Error", (job) => job.error && h("span", { title: job.error }, job.error), "error"],
  ],
});

// The states of jobs with how many are in each, as links.
export function chips(counts, chosen, address = ({ state }) => `#jobs?state=${state}`) {
  const all = STATES.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
  return h("nav", { class: "row chips", id: "job-states", "aria-label": "State" },
    [["", all], ...Object.entries(counts), ["periodic"]].map(([state, count]) => {
      const isListed = !state || STATES.includes(state) || Object.hasOwn(QUERIES, state), name = state || "all";
      return h(isListed ? "a" : "span", { href: isListed && address({ state }), "aria-current": state === chosen && "page" },
        count === undefined ? name : [h("b", {}, number(count)), " ", name]);
    }));
}

// Above the views of which paused handlers explain something.
export function pausedBanner({ handlers, all, jobs: due_jobs, unknown }) {
  if (!all && !handlers.length) return null;
  const names = handlers.map((name) => (unknown.includes(name) ? `${name} (unknown to this worker)` : name)).join(", ");
  const count = ` (${number(due_jobs)} due)`;
  const resume = (text, action, target) => button(text, () => act(action, [target]), { key: `${action} ${target}` });
  return h("div", { class: "banner", id: "paused", key: "paused", role: "status" },
    h("span", {}, all ? `All handlers are paused${count}${names && `. By name: ${names}`}` : `Paused: ${names}${count}`),
    session.may.operate && all && resume(names ? "Resume all" : "Resume", "resume-all", "all handlers"),
    session.may.operate && handlers.map((name) => resume(all || handlers.length > 1 ? `Resume ${name}` : "Resume", "resume", name)));
}
