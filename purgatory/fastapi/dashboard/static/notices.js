// What an action has come to: shown for a while, and said to screen readers.

import { $, h } from "./elements.js";

const SHOWN_MS = 5000;

export function announce(text) {
  $("announcement").textContent = text;
  document.querySelector(".toast")?.remove();
  // Already announced: the live region says it to screen readers.
  const toast = h("div", { class: "toast", "aria-hidden": "true" }, text);
  (document.querySelector("dialog[open]") || document.body).append(toast);
  setTimeout(() => toast.remove(), SHOWN_MS);
}
