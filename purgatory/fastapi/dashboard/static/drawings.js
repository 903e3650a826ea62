// Numbers as texts, and as drawings: lines, bars, and the timing wheel.

import { details, h } from "./elements.js";

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

export function number(value) {
  if (!Number.isFinite(value)) return "–";
  if (Math.abs(value) < 10 && !Number.isInteger(value)) return value.toFixed(1);
  return Math.round(value).toLocaleString("en");
}

export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000, i = UNITS.findIndex(([, size]) => s >= size);
  if (s < 10) return `${Number(s.toFixed(1))} s`;
  const [name, size] = UNITS[i], [lesser, part] = UNITS[i + 1] ?? ["", 1];
  const rest = lesser && Math.floor((s % size) / part);
  return `${Math.floor(s / size)} ${name}${rest ? ` ${rest} ${lesser}` : ""}`;
}

// The course of a value: points are [time, value], oldest first. Has words, and an area, if labelled.
export function line(points, spanMs, style, label) {
  const end = points.at(-1)[0], known = points.filter(([at, value]) => end - at <= spanMs && Number.isFinite(value));
  const top = Math.max(1, ...known.map(([, value]) => value));
  const places = known.map(([at, value]) => `${(100 - (100 * (end - at)) / spanMs).toFixed(2)} ${(98 - (94 * value) / top).toFixed(2)}`);
  const path = places.length > 1 ? `M${places.join("L")}` : "";
  const first = places[0]?.split(" ")[0];
  const words = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  return h("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", ...words },
    label && path && h("path", { class: "area", d: `${path}V98H${first}Z` }), h("path", { class: `line ${style}`, d: path }));
}

// Stacked bars: parts is [{style, counts}], with one count more than there are bounds.
export function bars(bounds, parts, what) {
  const sums = [...bounds, Infinity].map((_, i) => parts.reduce((sum, part) => sum + part.counts[i], 0));
  const top = Math.max(...sums, 1);
  const name = (i) => (i < bounds.length ? `up to ${duration(bounds[i])}` : `above ${duration(bounds.at(-1))}`);
  const said = sums.map((sum, i) => sum && `${name(i)} ${number(sum)}`).filter(Boolean).join(", ") || "none yet";
  return [
    h("svg", { viewBox: `0 0 ${sums.length} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `${what}: ${said}` },
      sums.map((sum, i) => {
        let y = 100;
        return h("g", {}, h("title", {}, `${name(i)}: ${number(sum)}`), h("rect", { x: i, width: 1, height: 100 }),
          parts.map(({ style, counts }) => {
            const height = (98 * counts[i]) / top;
            y -= height;
            return h("rect", { class: style, x: i + 0.06, width: 0.88, y, height });
          }));
      })),
    h("p", { class: "axis", "aria-hidden": "true" }, sums.map((_, i) => h("span", {}, i % 3 || i === bounds.length ? "" : duration(bounds[i])))),
  ];
}

// The levels of the timing wheel as rings, the finest inside. The bucket of now is at the top.
export function wheel(levels) {
  const all = number(levels.reduce((sum, level) => sum + level.tasks, 0)), room = 96 / levels.length;
  return [
    h("svg", { viewBox: "-152 -152 304 304", role: "img", "aria-label": `Timing wheel: ${all} timers on ${levels.length} levels, listed below` },
      levels.map((level, i) => ring(level, 48 + (i + 0.5) * room, room - 7)),
      h("path", { class: "now", d: "M0 -146l6 -6h-12z" }), h("text", { class: "total", y: 4 }, all), h("text", { y: 20 }, "timers")),
    details(levels.map(({ size, tick_ms, tasks }) => [`${size} buckets of ${duration(tick_ms)}, ${duration(tick_ms * size)} in all`, number(tasks)])),
  ];
}

function ring({ size, position, buckets }, radius, width) {
  const top = Math.max(1, ...buckets.map(([, count]) => count)), shades = ["", "", "", "", ""];
  const place = (part) => `${(Math.sin(part * 2 * Math.PI) * radius).toFixed(2)} ${(-Math.cos(part * 2 * Math.PI) * radius).toFixed(2)}`;
  for (const [index, count] of buckets) {
    const from = (index - position) / size, shade = Math.ceil((5 * Math.log(count + 1)) / Math.log(top + 1) - 1e-9);
    // As wide as can be seen, even where a level has very many buckets.
    shades[shade - 1] += `M${place(from)}A${radius} ${radius} 0 0 1 ${place(from + Math.max(1 / size, 0.0055))}`;
  }
  return h("g", { class: "ring", "stroke-width": width }, h("circle", { r: radius }), shades.map((d, i) => h("path", { class: `f${i + 1}`, d })));
}
