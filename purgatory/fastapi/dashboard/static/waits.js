// The view of keys and waits: who waits, since when, until when; fire and cancel.

import { act, confirmed, fire } from "./action_dialogs.js";
import { $, applyPermissions, Choice, h, Rows } from "./elements.js";
import { read, reason } from "./requests.js";
import { duration, number } from "./charts.js";

const form = $("waits-form");
const choice = new Choice($("waits-table"), $("cancel-waits").parentElement, $("waits-chosen"), "waits");
// So that the waits below are in sight.
const FEW_KEYS = 8;
let isLong = false, latestKeys = [[], 0];
let after = null, isShown = false, isAsking = false, readAt = 0, shown = [];

const keys = new Rows($("keys-table").tBodies[0], (item) => {
  const waiting = h("td", { class: "number", "data-label": "Waiting" }), oldest = h("td", { class: "number", "data-label": "Oldest" });
  const link = h("button", { class: "link", onclick: () => choose(item.key) }, item.key);
  const actions = h("td", { class: "actions" },
    h("button", { class: "small", "data-needs": "fire", "aria-label": `Fire ${item.key}`, onclick: () => fire(item.key).then(refresh) }, "Fire…"),
    h("button", { class: "small danger", "data-needs": "drop", "aria-label": `Drop ${item.key}`, onclick: () => drop(item.key) }, "Drop…"));
  const element = h("tr", {}, h("td", { class: "mono", "data-label": "Key" }, link), waiting, oldest, actions);
  applyPermissions(element);
  return {
    element,
    update(each) {
      waiting.textContent = number(each.waiting);
      oldest.textContent = duration(each.oldest_ms);
    },
  };
});

export function drawKeys(all, total) {
  latestKeys = [all, total];
  const found = all.slice(0, isLong ? 50 : FEW_KEYS);
  $("keys-more").hidden = all.length <= FEW_KEYS;
  keys.show(found, (each) => each.key);
  $("keys-table").closest(".card").querySelector(".empty").hidden = found.length > 0;
  $("keys-table").hidden = !found.length;
  const of = `${total.is_bound ? "at most " : ""}${number(total.keys)}`;
  $("keys-hint").textContent = total.keys > found.length ? `The ${number(found.length)} fullest of ${of}` : "";
}

async function drop(key) {
  const text = `All waits on ${key} end as cancelled, and its signals are deleted: cursors from before are expired.`;
  if (await confirmed("Drop the key?", text, "Drop it") && await act("drop-key", [key])) refresh();
}

const waits = new Rows($("waits-table").tBodies[0], (item) => {
  const age = h("td", { class: "number", "data-label": "Age" }), rest = h("td", { class: "number", "data-label": "Ends in" });
  const name = `the wait of ${item.client || item.kind} on ${item.key}`;
  const box = choice.box(item.id, name);
  const element = h("tr", {},
    h("td", { "data-needs": "operate" }, box),
    h("td", { class: "mono", "data-label": "Key" }, item.keys > 1 ? `${item.key} and ${item.keys - 1} more` : item.key),
    h("td", { "data-label": "Kind" }, item.kind),
    h("td", { class: item.client ? "mono" : "none", "data-label": "Client" }, item.client || "–"),
    age, rest,
    h("td", { class: item.wait_id ? "mono" : "none", "data-label": "Wait-Id", title: item.wait_id || "" }, item.wait_id ? `${item.wait_id.slice(0, 8)}…` : "–"),
    h("td", { class: "mono", "data-label": "Worker" }, item.worker),
    h("td", { class: "actions", "data-needs": "operate" },
      h("button", { class: "small", "data-needs": "fire", "aria-label": `Fire ${item.key}, for which ${item.client || item.kind} waits`, onclick: () => fire(item.key).then(refresh) }, "Fire…"),
      h("button", { class: "small danger", "aria-label": `Cancel ${name}`, onclick: () => cancel([item.id]) }, "Cancel")));
  applyPermissions(element);
  return {
    element,
    update(each) {
      box.checked = choice.ids.has(each.id);
      age.textContent = duration(each.age_ms);
      rest.textContent = duration(Math.max(0, each.remaining_ms));
    },
  };
});

async function cancel(ids) {
  await act("cancel-wait", ids);
  choice.clear();
  refresh();
}

function draw() {
  const passed = Date.now() - readAt;
  const aged = shown.map((each) => ({ ...each, age_ms: each.age_ms + passed, remaining_ms: each.remaining_ms - passed }));
  waits.show(aged, (each) => each.id);
}

async function refresh() {
  if (isAsking || !isShown) return;
  isAsking = true;
  const text = form.elements.text.value, match = form.elements.match.value;
  try {
    const page = await read("waits", { [match]: text, order: form.elements.order.value, limit: "50", after });
    readAt = Date.now();
    shown = page.waits;
    draw();
    choice.keep(shown.map((each) => each.id));
    $("waits-table").parentElement.nextElementSibling.hidden = shown.length > 0;
    $("waits-next").hidden = !page.next;
    $("waits-next").dataset.after = page.next || "";
    $("waits-first").hidden = !after;
    $("waits-hint").textContent = page.next || after ? `${number(shown.length)} on this page` : `${number(shown.length)} in all`;
  } catch (error) {
    $("waits-hint").textContent = reason(error);
  } finally {
    isAsking = false;
  }
}

function choose(key) {
  location.hash = `#waits?key=${encodeURIComponent(key)}`;
  $("waits-form").scrollIntoView({ block: "nearest" });
}

export function showWaits(parameters) {
  isShown = true;
  after = null;
  if (parameters.has("key")) {
    form.elements.text.value = parameters.get("key");
    form.elements.match.value = "key";
  }
  refresh();
}

export function hideWaits() { isShown = false; }

form.addEventListener("submit", (event) => {
  event.preventDefault();
  after = null;
  refresh();
});
form.elements.order.addEventListener("change", () => { after = null; refresh(); });
$("waits-next").addEventListener("click", () => { after = $("waits-next").dataset.after; refresh(); });
$("waits-first").addEventListener("click", () => { after = null; refresh(); });
$("keys-more").addEventListener("click", () => {
  isLong = !isLong;
  $("keys-more").textContent = isLong ? "Show fewer keys" : "Show more keys";
  $("keys-more").setAttribute("aria-expanded", String(isLong));
  drawKeys(...latestKeys);
});
$("fire-any").addEventListener("click", () => fire().then(refresh));
$("cancel-waits").addEventListener("click", async () => {
  const ids = [...choice.ids];
  const text = `${number(ids.length)} waits end as cancelled. Their clients may wait again.`;
  if (await confirmed("Cancel the chosen waits?", text, "Cancel them")) cancel(ids);
});
setInterval(() => {
  if (!isShown || document.hidden) return;
  if (form.elements.live.checked && !choice.ids.size) refresh();
  else draw();
}, 2000);
