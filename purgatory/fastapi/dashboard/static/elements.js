// Elements: views are made anew as nodes, and the elements that are there are changed to match.

const SVG = "http://www.w3.org/2000/svg";
// What is set as a property, not as an attribute.
const PROPERTY = /^(on.*|key|checked|indeterminate)$/;
const SHOWN_MS = 5000;
let hiding = null, asked = 0;

export const $ = (id) => document.getElementById(id);

// A node: attributes that begin with "on" are listeners, and `key` names it among its neighbours.
export function h(tag, attributes = {}, ...children) {
  return { tag, attributes, children };
}

export function card(title, hint, ...body) {
  return h("div", { class: "card" }, h("div", { class: "head" }, h("h2", {}, title), hint), body);
}

export function details(found) {
  return h("dl", { class: "details" }, found.map(([name, content]) => [h("dt", {}, name), h("dd", {}, content)]));
}

// Have `parent` contain these nodes and texts. Elements stay, by their keys or else their places, so
// what has the focus keeps it.
export function render(parent, ...nodes) {
  const before = new Map([...parent.childNodes].map((each, i) => [each.key ?? i, each]));
  const after = nodes.flat(Infinity).filter((node) => node || node === 0).map((node, i) => {
    const { tag = "#text", attributes = {} } = node, old = before.get(attributes.key ?? i);
    const element = old?.nodeName.toLowerCase() === tag ? old : made(tag, parent);
    if (tag !== "#text") update(element, node);
    else if (element.data !== String(node)) element.data = node;
    return element;
  });
  const kept = new Set(after);
  for (const each of before.values()) if (!kept.has(each)) each.remove();
  after.forEach((element, i) => {
    if (parent.childNodes[i] !== element) parent.insertBefore(element, parent.childNodes[i] ?? null);
  });
}

function made(tag, parent) {
  if (tag === "#text") return new Text();
  const is_svg = tag === "svg" || parent.namespaceURI === SVG;
  return is_svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
}

function update(element, { attributes, children }) {
  for (const { name } of [...element.attributes]) if (!(name in attributes)) element.removeAttribute(name);
  for (const name of element.properties ?? []) if (!(name in attributes)) element[name] = null;
  element.properties = Object.keys(attributes).filter((name) => PROPERTY.test(name));
  for (const [name, value] of Object.entries(attributes)) {
    if (PROPERTY.test(name)) element[name] = value;
    else if (value === false || value === null) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }
  render(element, children);
}

// Draw the page anew.
export function redraw() { dispatchEvent(new Event("redraw")); }

// Show what an action has come to for a while; screen readers say it.
export function announce(text) {
  clearTimeout(hiding);
  $("announcement").textContent = text;
  hiding = setTimeout(() => { $("announcement").textContent = ""; }, SHOWN_MS);
}

// Ask in a dialog. Returns its fields and, as `verb`, the value of the button; null if it was closed.
export function ask(title, body, ...buttons) {
  const dialog = $("dialog");
  render(dialog, h("form", { key: ++asked, method: "dialog" }, h("h2", { id: "dialog-title" }, title), body,
    // Not a button that submits: Enter in a field would press it, as the first of the form.
    h("div", { class: "row end" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close"), buttons)));
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.onclose = () => {
      // The event of the dialog before may still come.
      if (dialog.open) return;
      const verb = dialog.returnValue;
      resolve(verb && { ...Object.fromEntries(new FormData(dialog.querySelector("form"))), verb });
    };
  });
}
