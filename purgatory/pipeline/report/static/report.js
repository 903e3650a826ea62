"use strict";
// The sections of the page: filters, zoom, and charts that follow them.

const BUILDERS = {
  outcomes: outcomesChart,
  percentiles: percentilesChart,
  heat: heatChart,
  parked: parkedChart,
  waits: waitsChart,
  survival: survivalChart,
  lateness: latenessChart,
};
const MODES = {
  percentiles: ["all", "p50 by kind", "p90 by kind", "p99 by kind", "p50 by outcome", "p99 by outcome"],
  waits: ["kind", "outcome"],
};
const MODE_WORDS = { all: "p50, p90, p99 of all shown", kind: "by kind", outcome: "by outcome" };
const HEIGHT = 240;
const LEAST_DRAG_PX = 6;
const HOW_TO_ZOOM = matchMedia("(hover: none)").matches ? "" : "Drag over a chart to zoom";

const tip = document.getElementById("tip");

function made(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function swatch(colour) {
  const dot = made("i", { class: "dot" });
  dot.style.setProperty("--c", colour ?? "transparent");
  return dot;
}

let pointed = null;

function showTip(u, words) {
  const rows = words.rows.map(([name, value, colour]) =>
    made("div", {}, swatch(colour), made("span", {}, name), made("span", {}, value)),
  );
  tip.replaceChildren(made("b", {}, words.title), ...rows);
  tip.hidden = false;
  pointed = u;
  placeTip();
}

function placeTip() {
  const plot = pointed.over.getBoundingClientRect();
  const size = tip.getBoundingClientRect();
  const x = plot.left + pointed.cursor.left;
  const isRight = x + size.width + 24 < document.documentElement.clientWidth;
  const left = isRight ? x + 14 : Math.max(4, x - size.width - 14);
  const top = plot.top + Math.max(0, pointed.cursor.top) - size.height - 10;
  tip.style.left = `${left}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

function hideTip() {
  pointed = null;
  tip.hidden = true;
}

// What is shown of a chart scrolls with it.
function followScroll() {
  if (!pointed) return;
  const { top, bottom } = pointed.over.getBoundingClientRect();
  tip.hidden = bottom < 0 || top > innerHeight;
  if (!tip.hidden) placeTip();
}

class Chart {
  constructor(section, plot) {
    Object.assign(this, { section, plot, name: plot.dataset.chart, mode: null, u: null });
    const modes = MODES[this.name];
    if (modes) {
      // The longest waits of each kind, if there are several.
      const isCompared = this.name === "percentiles" && section.data.kinds.length > 1;
      this.mode = isCompared ? "p99 by kind" : modes[0];
      const label = `${plot.closest("figure").querySelector("h3").textContent}: lines`;
      const isChosen = (mode) => (mode === this.mode ? { selected: "" } : {});
      const choices = modes.map((mode) => made("option", { value: mode, ...isChosen(mode) }, MODE_WORDS[mode] ?? mode));
      const change = (event) => {
        this.mode = event.target.value;
        this.draw();
      };
      plot.before(made("p", {}, made("select", { "aria-label": label, onchange: change }, ...choices)));
    }
    this.keys = made("div", { class: "keys" });
    plot.before(this.keys);
    plot.addEventListener("keydown", (event) => this.press(event));
    plot.addEventListener("blur", () => this.leave());
  }

  draw() {
    this.u?.destroy();
    this.u = null;
    const width = Math.floor(this.plot.clientWidth);
    this.chart = BUILDERS[this.name](this.section, this.mode, width);
    this.plot.replaceChildren();
    this.keys.replaceChildren();
    if (!this.chart) {
      this.plot.append(made("div", { class: "empty" }, "Nothing is chosen, or nothing ended."));
      return;
    }
    for (const key of this.chart.keys) this.keys.append(made("span", {}, swatch(key.colour), key.name));
    if (this.chart.scale) this.keys.append(this.scale(this.chart.scale));
    const { options, data, bands } = this.chart;
    const { cursor, hooks } = options;
    this.u = new uPlot(
      {
        ...options,
        width,
        height: HEIGHT,
        bands,
        legend: { show: false },
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
        padding: [8, 30, 0, 0],
        cursor: {
          y: false,
          ...cursor,
          drag: { x: true, y: false, setScale: Boolean(this.chart.isLocal), dist: LEAST_DRAG_PX },
          ...(this.chart.isLocal ? {} : { bind: { dblclick: () => () => this.section.zoom(null) } }),
        },
        hooks: {
          ...hooks,
          setCursor: [(u) => this.point(u)],
          setSelect: this.chart.isLocal ? [] : [(u) => this.select(u)],
        },
      },
      data,
      this.plot,
    );
    if (!this.chart.isLocal) return;
    // A scale whose range is fixed cannot be zoomed: from now on it is where the drag puts it.
    const { min, max } = this.u.scales.x;
    this.whole = { min, max };
    this.u.scales.x.range = (u, low, high) => [low ?? min, high ?? max];
  }

  scale({ most, colours }) {
    const strip = made("span", { class: "shades", "aria-hidden": "true" });
    for (const colour of most > 1 ? colours : colours.slice(0, 1)) {
      const shade = made("i");
      shade.style.background = colour;
      strip.append(shade);
    }
    if (most === 1) return made("span", { class: "range-text" }, strip, "1 operation");
    return made("span", { class: "range-text" }, "1", strip, `${count(most)} operations, logarithmic`);
  }

  point(u) {
    const { idx, left } = u.cursor;
    if (left === undefined || left < 0 || idx === null || idx === undefined) hideTip();
    else showTip(u, this.chart.words(idx, u));
  }

  leave() {
    this.u?.setCursor({ left: -10, top: -10 });
    hideTip();
  }

  select(u) {
    const { left, width } = u.select;
    if (width < LEAST_DRAG_PX) return;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.section.zoom([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
  }

  press(event) {
    const { u } = this;
    if (!u || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    const by = (moves[event.key] ?? 0) * (event.shiftKey ? 10 : 1);
    if (by) this.move(by);
    else if (this.chart.rows && event.key === "ArrowUp") this.lift(1);
    else if (this.chart.rows && event.key === "ArrowDown") this.lift(-1);
    else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "Escape" || event.key === "0") this.reset();
    else return;
    event.preventDefault();
  }

  move(by) {
    const { u } = this;
    const times = u.data[0];
    const { min, max } = u.scales.x;
    const low = times.findIndex((time) => time >= min);
    const high = times.findLastIndex((time) => time <= max);
    const present = u.cursor.left >= 0 && u.cursor.idx !== null ? u.cursor.idx : by > 0 ? low - 1 : high + 1;
    const index = Math.min(high, Math.max(low, present + by));
    const top = u.cursor.top >= 0 ? u.cursor.top : u.over.clientHeight / 2;
    u.setCursor({ left: u.valToPos(times[index], "x"), top });
  }

  lift(by) {
    const { u } = this;
    const { low, high, edgeOf, rowAt } = this.chart.rows;
    if (!(u.cursor.left >= 0)) this.move(Infinity);
    const row = Math.min(high, Math.max(low, rowAt(u.posToVal(u.cursor.top, "y")) + by));
    const middle = Math.sqrt(edgeOf(row) * edgeOf(row + 1));
    u.setCursor({ left: u.cursor.left, top: u.valToPos(middle, "y") });
  }

  zoom(factor) {
    if (!this.chart.isLocal) {
      this.section.zoomBy(factor, this.u.cursor.left >= 0 ? this.u.data[0][this.u.cursor.idx] : null);
      return;
    }
    const { min, max } = this.u.scales.x;
    const middle = Math.sqrt(min * max);
    const spread = (max / min) ** (factor / 2);
    const [low, high] = [middle / spread, middle * spread];
    this.u.setScale("x", { min: Math.max(low, this.whole.min), max: Math.min(high, this.whole.max) });
  }

  reset() {
    this.leave();
    if (this.chart.isLocal) this.u.setScale("x", this.whole);
    else this.section.zoom(null);
  }
}

class Section {
  constructor(root) {
    this.root = root;
    this.data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    this.counts = new Counts(this.data.steps);
    this.full = [this.counts.start, this.counts.end];
    this.range = this.full;
    this.kinds = new Set(this.data.kinds.keys());
    this.outcomes = new Set(this.data.outcomes.keys());
    this.isChosen = ({ kind, outcome }) => this.kinds.has(kind) && this.outcomes.has(outcome);
    this.charts = [...root.querySelectorAll(".plot")].map((plot) => new Chart(this, plot));
    this.filters();
  }

  // The chosen kinds or outcomes, with their colours.
  groups(by) {
    const [names, chosen] = by === "kind" ? [this.data.kinds, this.kinds] : [this.data.outcomes, this.outcomes];
    return names
      .map((name, number) => ({ name, number, colour: css(by === "kind" ? `k${number % 8}` : `o${number}`) }))
      .filter(({ number }) => chosen.has(number));
  }

  filters() {
    const bar = this.root.querySelector(".filters");
    const present = new Set(this.counts.series.map((series) => series.outcome));
    const outcomes = this.data.outcomes.map((name, number) => [name, number]).filter(([, number]) => present.has(number));
    const kinds = this.data.kinds.map((name, number) => [name, number]);
    this.text = made("span", { class: "range-text", role: "status" });
    const button = (text, label, act) => made("button", { type: "button", "aria-label": label, onclick: act }, text);
    this.whole = button("Whole time", "Show the whole time", () => this.zoom(null));
    bar.append(
      this.chips("Kinds", kinds, this.kinds, (number) => `k${number % 8}`),
      this.chips("Outcomes", outcomes, this.outcomes, (number) => `o${number}`),
      made(
        "fieldset",
        {},
        made("legend", {}, "Time"),
        button("\u2212", "Zoom out", () => this.zoomBy(2, null)),
        button("+", "Zoom in", () => this.zoomBy(0.5, null)),
        this.whole,
        this.text,
      ),
    );
    bar.hidden = false;
  }

  chips(title, entries, chosen, series) {
    const chips = entries.map(([name, number]) => {
      const chip = made("button", { type: "button", class: "chip", "aria-pressed": "true" });
      chip.append(made("i", { class: `dot ${series(number)}` }), name);
      chip.addEventListener("click", () => {
        if (!chosen.delete(number)) chosen.add(number);
        chip.setAttribute("aria-pressed", String(chosen.has(number)));
        this.draw();
      });
      return chip;
    });
    return made("fieldset", {}, made("legend", {}, title), ...chips);
  }

  zoom(range) {
    const least = Math.min(this.counts.width, 60);
    const [low, high] = range ?? this.full;
    this.range = [Math.max(low, this.full[0]), Math.min(high, this.full[1])];
    if (this.range[1] - this.range[0] < least) this.range = this.full;
    this.draw();
  }

  zoomBy(factor, around) {
    const [low, high] = this.range;
    const middle = around ?? (low + high) / 2;
    const half = Math.max(((high - low) * factor) / 2, this.counts.width);
    this.zoom([middle - half, middle + half]);
  }

  draw() {
    hideTip();
    const isWhole = this.range[0] === this.full[0] && this.range[1] === this.full[1];
    this.whole.disabled = isWhole;
    this.text.textContent = isWhole
      ? HOW_TO_ZOOM
      : `${isoMinute(this.range[0])} to ${isoMinute(this.range[1])}`;
    for (const chart of this.charts) chart.draw();
  }
}

// Rows of the table of hot keys by a part of their name.
function findKeys() {
  const place = document.querySelector(".find");
  const rows = [...place.parentElement.querySelectorAll(".find + .scroll tbody tr")];
  const found = made("span", { class: "range-text", role: "status" });
  const search = made("input", { type: "search", placeholder: "Find a key", "aria-label": "Find a key" });
  search.addEventListener("input", () => {
    const part = search.value.toLowerCase();
    for (const row of rows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(part);
    found.textContent = part ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : "";
  });
  place.append(search, " ", found);
  place.hidden = !rows.length;
}

const sections = [...document.querySelectorAll("section.part")].map((root) => new Section(root));
const redraw = () => sections.forEach((section) => section.draw());

redraw();
findKeys();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let drawnWidth = innerWidth;
addEventListener("resize", () => {
  // On phones the height changes while one scrolls.
  if (innerWidth !== drawnWidth) redraw();
  drawnWidth = innerWidth;
});
addEventListener("scroll", followScroll, { passive: true });
