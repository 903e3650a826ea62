// The banner of paused handlers, on the views of which they explain something.

import { act } from "./action_dialogs.js";
import { $, h } from "./elements.js";
import { read } from "./requests.js";
import { session } from "./session.js";
import { number } from "./charts.js";

let isShown = false;

function button(text, action, target) {
  return h("button", { type: "button", class: "small", onclick: async () => {
    await act(action, [target]);
    refreshPaused();
  } }, text);
}

function draw({ handlers, all, jobs, unknown }) {
  const place = $("paused"), text = JSON.stringify([handlers, all, jobs, unknown, session.may.operate]);
  place.hidden = !isShown || !(all || handlers.length);
  // What has the focus keeps it.
  if (place.dataset.text === text) return;
  place.dataset.text = text;
  const names = handlers.map((name) => (unknown.includes(name) ? `${name} (unknown to this worker)` : name)).join(", ");
  const count = ` (${number(jobs)} due)`;
  const words = all ? `All handlers are paused${count}${names && `. By name: ${names}`}` : `Paused: ${names}${count}`;
  const buttons = handlers.map((name) => button(all || handlers.length > 1 ? `Resume ${name}` : "Resume", "resume", name));
  if (all) buttons.unshift(button(names ? "Resume all" : "Resume", "resume-all", "all handlers"));
  place.replaceChildren(h("span", {}, words), ...(session.may.operate ? buttons : []));
}

export async function refreshPaused() {
  if (!isShown || !session.has_jobs) return;
  try {
    draw(await read("jobs:paused"));
  } catch { /* The next snapshot says what is wrong; the banner stays as it was. */ }
}

export function showPaused() {
  isShown = true;
  refreshPaused();
}

export function hidePaused() {
  isShown = false;
  $("paused").hidden = true;
}

setInterval(() => { if (!document.hidden) refreshPaused(); }, 5000);
