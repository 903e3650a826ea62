"use strict";
// Numbers, durations and times as text, as in purgatory.pipeline.console.

const UNITS = [
  [86400e6, 2 * 86400e6, "d"],
  [3600e6, 2 * 3600e6, "h"],
  [60e6, 2 * 60e6, "min"],
  [1e6, 999500, "s"],
  [1e3, 999.5, "ms"],
];
const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
// Whole numbers of the units that people use: 100 s is on no clock.
const COARSE_TICKS = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 6e7, 6e8, 36e8, 36e9, 864e8, 864e9, 864e10];
const FINE_TICKS = [
  ...[1, 10, 100, 1e3, 1e4, 1e5].flatMap((ten) => [ten, 2 * ten, 5 * ten]),
  ...[1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18000, 36000, 86400].map((one) => one * 1e6),
  ...[2, 5, 10, 20, 50, 100, 200, 500].map((one) => one * 864e8),
];
const SPACE_PX = [66, 26];

function figure(value, digits = 3) {
  if (value >= 10 ** digits - 0.5) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}

function duration(micros) {
  for (const [size, least, unit] of UNITS) {
    if (micros >= least) return `${figure(micros / size)} ${unit}`;
  }
  return `${figure(micros)} us`;
}

function count(value) {
  return value.toLocaleString("en-US", { maximumFractionDigits: value < 100 ? 2 : 0 });
}

function shortCount(value) {
  if (value >= 1e6) return `${figure(value / 1e6)}M`;
  return value >= 1e4 ? `${figure(value / 1e3)}k` : count(value);
}

function share(value) {
  return `${figure(100 * value)} %`;
}

function day(seconds) {
  const at = new Date(seconds * 1000);
  return `${DAYS[at.getUTCDay()]} ${at.getUTCDate()}`;
}

function isoMinute(seconds) {
  return new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ");
}

function spanText(start, width) {
  return `${isoMinute(start)}, ${duration(width * 1e6)}`;
}

// The labels of a time axis in UTC: seconds, hours, days or months; below the first of a day, of a
// month or of a year that one.
function timeLabels(u, splits, axis, space, increment) {
  let last = null;
  return splits.map((at) => {
    const [label, name] = timeLabel(at, increment);
    const isNew = name !== last;
    last = name;
    return isNew ? `${label}\n${name}` : label;
  });
}

function timeLabel(seconds, increment) {
  const at = new Date(seconds * 1000);
  const month = MONTHS[at.getUTCMonth()];
  if (increment >= 28 * 86400) return [month, at.getUTCFullYear()];
  if (increment >= 86400) return [day(seconds), month];
  return [at.toISOString().slice(11, increment >= 60 ? 16 : 19), day(seconds)];
}

// Two to six multiples of a tick, for a range so short that it has fewer ticks; [] if it is so short
// that their labels, of three digits, would be the same.
function evenTicks(min, max) {
  const fits = (step) => step >= max / 100 && Math.floor(max / step) > Math.ceil(min / step);
  const step = FINE_TICKS.findLast(fits);
  if (!step) return [];
  const first = Math.ceil(min / step);
  return Array.from({ length: Math.floor(max / step) - first + 1 }, (_, place) => (first + place) * step);
}

// As many ticks of a logarithmic axis as it has room for.
function timeTicks(u, axis, min, max) {
  const size = (axis ? u.bbox.height : u.bbox.width) / devicePixelRatio;
  const room = Math.max(2, Math.floor(size / SPACE_PX[axis > 0 ? 1 : 0]));
  const within = (ticks) => ticks.filter((tick) => tick >= min && tick <= max);
  const fine = within(FINE_TICKS);
  if (fine.length > 1 && fine.length <= room) return fine;
  const coarse = within(COARSE_TICKS);
  const found = [coarse, fine, evenTicks(min, max)].find((ticks) => ticks.length > 1) ?? fine;
  const nth = Math.ceil(found.length / room);
  return found.filter((tick, place) => place % nth === 0);
}
