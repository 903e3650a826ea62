// What all views share: elements, requests, dialogs, rows that keep their place and their focus.

import { number } from "./charts.js";

const TOKEN = "purgatory.token";
// The page is at {prefix}/dashboard, so this is {prefix}/ whatever is before it.
const BASE = new URL(".", location.href);

export const session = { may: {}, groups: [], identity: null };
export const $ = (id) => document.getElementById(id);

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function token() { return sessionStorage.getItem(TOKEN); }
export function keepToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

export class Refusal extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  // Without "./", what is before the colon of jobs:paused would be a scheme.
  const response = await fetch(new URL(`./${path}`, BASE), { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  let detail = `the server responded ${response.status}`;
  try {
    detail = (await response.json()).detail || detail;
  } catch { /* Not of ours: a proxy's page, perhaps. */ }
  throw new Refusal(response.status, detail);
}

export async function read(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value));
  return (await request(`${path}?${query}`.replace(/\?$/, ""))).json();
}

// As a sentence for people.
export function reason(error) {
  if (error instanceof Refusal) {
    if (error.status === 401) return "The token is not known here. Sign in with another one.";
    if (error.status === 403) return `This is not allowed: ${error.message}.`;
    return `The server refused: ${error.message}.`;
  }
  return "The server cannot be reached.";
}

export function announce(text) {
  $("announcement").textContent = text;
  document.querySelector(".toast")?.remove();
  // Already announced: the live region says it to screen readers.
  const toast = h("div", { class: "toast", "aria-hidden": "true" }, text);
  (document.querySelector("dialog[open]") || document.body).append(toast);
  setTimeout(() => toast.remove(), 5000);
}

const DONE = {
  fire: "Fired", "drop-key": "Dropped", "cancel-wait": "Cancelled", "cancel-job": "Cancelled",
  "run-job": "Due now", "retry-job": "Will be tried again", pause: "Paused", resume: "Resumed",
  "resume-all": "Resumed",
};

// Do an action on each target, and say what became of it. Returns true iff all were done.
export async function act(action, targets, value) {
  const results = [];
  try {
    for (let start = 0; start < targets.length; start += 500) {
      const body = { action, targets: targets.slice(start, start + 500) };
      if (value !== undefined) body.value = value;
      const response = await request("dashboard/actions", {
        method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" },
      });
      results.push(...(await response.json()).results);
    }
  } catch (error) {
    announce(reason(error));
    return false;
  }
  const refused = results.filter((result) => !result.done);
  const done = results.length - refused.length;
  const words = [];
  if (done) words.push(results.length === 1 ? `${DONE[action]}: ${results[0].detail}.` : `${DONE[action]}: ${number(done)}.`);
  if (refused.length) words.push(`${refused.length === 1 ? "One was" : `${number(refused.length)} were`} refused: ${refused[0].detail}.`);
  announce(words.join(" "));
  return !refused.length;
}

// Not a button that submits: Enter in a field would press it, as the first of the form.
for (const button of document.querySelectorAll("[data-close]")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}

// {dialog: ends its question}, of those that are asked.
const questions = new Map();

// Show a dialog. Returns true iff it was closed by its button "go".
export function asked(dialog) {
  // Closed, but its event is still to come, which would end the next question.
  questions.get(dialog)?.();
  dialog.returnValue = "";
  dialog.showModal();
  dialog.onclose = () => { if (!dialog.open) questions.get(dialog)?.(); };
  return new Promise((resolve) => {
    questions.set(dialog, () => {
      questions.delete(dialog);
      resolve(dialog.returnValue === "go");
    });
  });
}

export async function confirmed(title, text, verb) {
  const dialog = $("confirm-dialog");
  dialog.querySelector("h2").textContent = title;
  dialog.querySelector("p").textContent = text;
  dialog.querySelector("button.danger").textContent = verb;
  return asked(dialog);
}

export async function fire(key = "") {
  const dialog = $("fire-dialog"), wrong = dialog.querySelector(".wrong");
  $("fire-key").value = key;
  $("fire-value").value = "";
  wrong.textContent = "";
  for (;;) {
    if (!(await asked(dialog))) return false;
    const text = $("fire-value").value.trim();
    try {
      return await act("fire", [$("fire-key").value], text ? JSON.parse(text) : null);
    } catch (error) {
      wrong.textContent = `The value is not JSON: ${error.message}. A text needs quotes.`;
    }
  }
}

// Show only what the token may do.
export function applyPermissions(root = document) {
  for (const element of root.querySelectorAll("[data-needs]")) {
    const is_bulk = element.classList.contains("bulk");
    const is_allowed = Boolean(session.may[element.dataset.needs]);
    if (!is_bulk || !is_allowed) element.hidden = !is_allowed;
  }
}

// Rows by id, made once and updated in place: what has the focus keeps it.
export class Rows {
  constructor(body, make) {
    this.body = body;
    this.make = make;
    this.made = new Map();
  }

  show(items, idOf) {
    const rows = items.map((item) => {
      const id = idOf(item);
      if (!this.made.has(id)) this.made.set(id, this.make(item));
      const row = this.made.get(id);
      row.update(item);
      return [id, row.element];
    });
    const kept = new Map(rows.map(([id]) => [id, this.made.get(id)]));
    for (const [id, row] of this.made) if (!kept.has(id)) row.element.remove();
    this.made = kept;
    rows.forEach(([, element], i) => {
      if (this.body.children[i] !== element) this.body.insertBefore(element, this.body.children[i] || null);
    });
  }
}

// The boxes of a table that choose rows, and the bar of actions on what is chosen.
export class Choice {
  constructor(table, bar, label, noun) {
    this.ids = new Set();
    this.bar = bar;
    this.label = label;
    this.noun = noun;
    this.all = table.querySelector("thead input");
    this.body = table.tBodies[0];
    this.all.addEventListener("change", () => {
      for (const box of this.body.querySelectorAll("input[type=checkbox]")) this.set(box, this.all.checked);
      this.show();
    });
  }

  box(id, name) {
    return h("input", { type: "checkbox", "aria-label": `Choose ${name}`, "data-id": id, onchange: (event) => {
      this.set(event.target, event.target.checked);
      this.show();
    } });
  }

  set(box, is_chosen) {
    box.checked = is_chosen;
    if (is_chosen) this.ids.add(box.dataset.id);
    else this.ids.delete(box.dataset.id);
  }

  // Forget what is no longer shown.
  keep(ids) {
    const shown = new Set(ids);
    for (const id of this.ids) if (!shown.has(id)) this.ids.delete(id);
    this.show();
  }

  clear() {
    for (const box of this.body.querySelectorAll("input[type=checkbox]")) this.set(box, false);
    this.show();
  }

  show() {
    this.bar.hidden = !this.ids.size || !session.may[this.bar.dataset.needs];
    this.label.textContent = `${number(this.ids.size)} ${this.noun} chosen`;
    const boxes = this.body.querySelectorAll("input[type=checkbox]").length;
    this.all.checked = boxes > 0 && this.ids.size === boxes;
    this.all.indeterminate = this.ids.size > 0 && this.ids.size < boxes;
  }
}
