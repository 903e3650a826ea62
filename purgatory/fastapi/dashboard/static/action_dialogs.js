// Actions on waits, keys and jobs, and the dialogs that ask first.

import { number } from "./charts.js";
import { $ } from "./elements.js";
import { announce } from "./notices.js";
import { reason, request } from "./requests.js";

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
