// Drawings: sparklines, the chart of parked operations, histograms, and the timing wheel.

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function number(value) {
  if (!Number.isFinite(value)) return "–";
  if (value !== 0 && Math.abs(value) < 10 && !Number.isInteger(value)) return value.toFixed(1);
  return Math.round(value).toLocaleString("en");
}

export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

function path(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

// The least round number that is not below the value.
function ceiling(value) {
  if (value <= 5) return 5;
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 5, 7.5, 10].find((factor) => factor * step >= value) * step;
}

export function sparkline(values, style) {
  const top = Math.max(...values, 1);
  const points = values.map((value, i) => [
    (i / Math.max(1, values.length - 1)) * 100, 30 - (value / top) * 27,
  ]);
  const drawing = svg("svg", { viewBox: "0 0 100 32", preserveAspectRatio: "none", "aria-hidden": "true" });
  if (points.length > 1) drawing.append(svg("path", { class: `line ${style}`, d: path(points) }));
  return drawing;
}

// Parked operations over the last minutes: history is [{at, parked}], oldest first.
export function parkedChart(place, history, spanMs) {
  const width = place.clientWidth || 600, height = place.clientHeight || 200;
  const left = 46, bottom = 18, right = 8;
  const top = ceiling(Math.max(...history.map((point) => point.parked), 1));
  const end = history.at(-1).at;
  const x = (at) => left + (width - left - right) * (1 - (end - at) / spanMs);
  const y = (value) => 8 + (height - bottom - 8) * (1 - value / top);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  drawing.setAttribute("aria-label", `Parked operations: ${number(history.at(-1).parked)} now, at most ${number(Math.max(...history.map((p) => p.parked)))} in the last ${duration(spanMs)}`);
  for (const part of [0, 0.5, 1]) {
    const line = y(top * part);
    drawing.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: line, y2: line }));
    drawing.append(svg("text", { x: left - 8, y: line + 4, "text-anchor": "end" }, number(top * part)));
  }
  const step = spanMs > 120000 ? 60000 : spanMs > 30000 ? 30000 : 10000;
  for (let ago = 0; ago <= spanMs; ago += step) {
    const label = ago ? `−${ago % 60000 ? `${ago / 1000} s` : `${ago / 60000} min`}` : "now";
    drawing.append(svg("text", { x: x(end - ago), y: height - 2, "text-anchor": ago ? "middle" : "end" }, label));
  }
  const points = history.filter((p) => end - p.at <= spanMs).map((p) => [x(p.at), y(p.parked)]);
  if (points.length > 1) {
    const [first, last] = [points[0], points.at(-1)];
    drawing.append(svg("path", { class: "area", d: `${path(points)}L${last[0]} ${y(0)}L${first[0]} ${y(0)}Z` }));
    drawing.append(svg("path", { class: "line", d: path(points) }));
  }
  const [cx, cy] = points.at(-1);
  drawing.append(svg("circle", { class: "c-accent", cx, cy, r: 3.5 }));
  place.replaceChildren(drawing);
}

// Stacked bars: parts is [{name, style, counts}], with one count more than there are bounds.
export function histogram(place, bounds, parts, what) {
  const width = place.clientWidth || 320, height = place.clientHeight || 140, bottom = 16, head = 14;
  const count = bounds.length + 1;
  const sums = Array.from({ length: count }, (_, i) => parts.reduce((sum, part) => sum + part.counts[i], 0));
  const top = Math.max(...sums, 1), all = sums.reduce((a, b) => a + b, 0);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const name = (i) => (i < bounds.length ? `up to ${duration(bounds[i])}` : `above ${duration(bounds.at(-1))}`);
  drawing.setAttribute("aria-label", all ? `${what}: ${sums.map((s, i) => (s ? `${name(i)} ${number(s)}` : "")).filter(Boolean).join(", ")}` : `${what}: none yet`);
  const step = width / count;
  for (let i = 0; i < count; i++) {
    let y = height - bottom;
    const bar = svg("g", {}, svg("title", {}, `${name(i)}: ${number(sums[i])}`));
    bar.append(svg("rect", { x: i * step, y: 0, width: step, height, fill: "transparent" }));
    for (const part of parts) {
      const tall = (part.counts[i] / top) * (height - bottom - head);
      if (!tall) continue;
      y -= tall;
      bar.append(svg("rect", { class: part.style, x: i * step + 2, y, width: Math.max(1, step - 4), height: Math.max(1, tall), rx: 2 }));
    }
    drawing.append(bar);
    if (i % 3 === 0 && i < bounds.length) {
      drawing.append(svg("text", { x: i * step + step / 2, y: height - 2, "text-anchor": "middle" }, duration(bounds[i]).replace(/ min 0 s$/, " min").replace(/\.0 s$/, " s")));
    }
  }
  drawing.append(svg("line", { class: "grid", x1: 0, x2: width, y1: height - bottom, y2: height - bottom }));
  if (!all) drawing.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "none yet"));
  place.replaceChildren(drawing);
}

function sector(from, to, inner, outer) {
  const point = (angle, radius) => `${(Math.sin(angle) * radius).toFixed(2)} ${(-Math.cos(angle) * radius).toFixed(2)}`;
  return `M${point(from, inner)}L${point(from, outer)}A${outer} ${outer} 0 0 1 ${point(to, outer)}L${point(to, inner)}A${inner} ${inner} 0 0 0 ${point(from, inner)}Z`;
}

// The levels of the timing wheel as rings, the finest inside. The bucket of now is at the top; each
// ring turns as its time passes.
export class Wheel {
  constructor(place) {
    this.place = place;
    this.rings = [];
    this.total = svg("text", { class: "total", "text-anchor": "middle", y: 4 });
    this.drawing = svg("svg", { viewBox: "-152 -152 304 304", role: "img" });
    this.list = document.createElement("ul");
    this.list.className = "levels";
    place.append(this.drawing, this.list);
  }

  draw(levels) {
    if (this.rings.length !== levels.length) this.build(levels.length);
    const all = levels.reduce((sum, level) => sum + level.tasks, 0);
    this.total.textContent = number(all);
    this.list.replaceChildren(...levels.map((level) => {
      const item = document.createElement("li"), count = document.createElement("b");
      count.textContent = number(level.tasks);
      item.append(`${level.size} buckets of ${duration(level.tick_ms)}, ${duration(level.tick_ms * level.size)} in all`, count);
      return item;
    }));
    this.drawing.setAttribute("aria-label", `Timing wheel: ${number(all)} timers on ${levels.length} levels, listed below`);
    levels.forEach((level, i) => this.turn(this.rings[i], level));
  }

  build(count) {
    const room = 96 / Math.max(count, 1);
    this.drawing.replaceChildren();
    this.rings = Array.from({ length: count }, (_, i) => {
      const inner = 48 + i * room, outer = inner + room - 7, middle = (inner + outer) / 2;
      const track = svg("circle", { class: "track", r: middle, "stroke-width": outer - inner });
      const turning = svg("g", { class: "turn" });
      const fills = [1, 2, 3, 4, 5].map((n) => svg("path", { class: `fill f${n}` }));
      turning.append(...fills);
      this.drawing.append(track, turning);
      return { inner, outer, turning, fills, position: null, turned: 0 };
    });
    this.drawing.append(svg("path", { class: "now", d: "M0 -146l6 -6h-12z" }), this.total,
      svg("text", { "text-anchor": "middle", y: 20 }, "timers"));
  }

  turn(ring, level) {
    const angle = (2 * Math.PI) / level.size;
    const paths = ["", "", "", "", ""];
    const top = Math.max(1, ...level.buckets.map(([, count]) => count));
    for (const [index, count] of level.buckets) {
      const shade = Math.min(4, Math.floor((Math.log(count + 1) / Math.log(top + 1)) * 5 - 1e-9));
      // As wide as can be seen, even where a level has very many buckets.
      const wide = Math.max(angle, 0.035);
      const middle = (index + 0.5) * angle;
      paths[Math.max(0, shade)] += sector(middle - wide / 2, middle + wide / 2, ring.inner, ring.outer);
    }
    ring.fills.forEach((fill, i) => fill.setAttribute("d", paths[i]));
    // A level that turns more than half a round between two snapshots would seem to stand or go back.
    const isSlow = level.tick_ms * level.size > 4000;
    ring.turning.classList.toggle("moves", isSlow && ring.position !== null);
    ring.turned += ring.position === null ? level.position : (level.position - ring.position + level.size) % level.size;
    ring.position = level.position;
    ring.turning.style.transform = `rotate(${-(ring.turned / level.size) * 360}deg)`;
  }
}
