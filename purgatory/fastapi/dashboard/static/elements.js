// Elements: made, shown to whom they are for, and rows that keep their place and their focus.

import { number } from "./charts.js";
import { session } from "./session.js";

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
