"use strict";
// Charts on uPlot: each is a function of a section that returns options, data and words.

const LEAST_US = 100;
const SHARES = [0.5, 0.9, 0.99];
const PERCENTILES = ["p50", "p90", "p99"];
const HEAT_ROWS_PER_DOUBLING = 4;
const HEAT_COLUMN_PX = 5;

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function faded(colour, alpha) {
  return colour + Math.round(alpha * 255).toString(16).padStart(2, "0");
}

function axisSize(u, values, axis, cycle) {
  if (cycle > 1) return u.axes[axis]._size;
  const longest = (values ?? []).reduce((one, other) => {
    return String(other ?? "").length > one.length ? String(other) : one;
  }, "");
  u.ctx.font = u.axes[axis].font[0];
  return Math.ceil(u.ctx.measureText(longest).width / devicePixelRatio) + 14;
}

function axes(xOptions, yOptions) {
  const style = {
    stroke: css("quiet"),
    font: "12px system-ui, sans-serif",
    grid: { stroke: css("grid"), width: 1 },
    ticks: { stroke: css("line"), width: 1, size: 5 },
  };
  return [
    { ...style, space: 64, ...xOptions },
    { ...style, size: axisSize, space: 34, ...yOptions },
  ];
}

const TIME_X = { values: timeLabels, size: 44 };
// Shares of a curve that are not visible: the axis begins and ends within them.
const INVISIBLE = 0.002;
const WAIT_AXIS = {
  splits: timeTicks,
  values: (u, ticks) => ticks.map(duration),
  filter: (u, ticks) => ticks,
};

// Points only where a value has no neighbour, since a line of one point is not visible.
function lonePoints(colour) {
  const isValue = (value) => value !== null && value !== undefined;
  const filter = (u, series) => {
    const values = u.data[series];
    const isLone = (index) => isValue(values[index]) && !isValue(values[index - 1]) && !isValue(values[index + 1]);
    return [...values.keys()].filter(isLone);
  };
  return { show: false, filter, size: 7, width: 0, stroke: colour, fill: colour };
}

function timeScale(section) {
  return { time: true, range: () => section.range };
}

function logScale(values) {
  const known = values.filter((value) => value > 0);
  const low = Math.min(...known) * 0.8;
  const high = Math.max(...known) * 1.25;
  return { distr: 3, range: () => [Math.max(1, low), Math.max(10, high)] };
}

// Stacked bars: the sum is drawn first, and smaller sums over it.
function outcomesChart(section) {
  const { counts } = section;
  const found = counts.outcomes(section.isChosen);
  const names = [...found.keys()].sort((one, other) => one - other);
  if (!names.length) return null;
  const sums = [];
  for (const outcome of names) {
    const below = sums.at(-1);
    sums.push(found.get(outcome).map((many, step) => many + (below ? below[step] : 0)));
  }
  const times = Array.from({ length: counts.count }, (_, step) => counts.timeOf(step));
  const shown = names.map((outcome, place) => ({
    name: section.data.outcomes[outcome],
    colour: section.outcomeColour(outcome),
    values: found.get(outcome),
    sum: sums[place],
  }));
  const bars = uPlot.paths.bars({ align: 1, size: [1, Infinity], gap: 0 });
  return {
    data: [times, ...shown.map((one) => one.sum).reverse()],
    keys: shown,
    options: {
      scales: { x: timeScale(section), y: { range: (u, min, max) => [0, max * 1.05 || 1] } },
      axes: axes(TIME_X, { values: (u, ticks) => ticks.map(shortCount) }),
      series: [
        {},
        ...shown.map((one) => ({ fill: one.colour, width: 0, paths: bars, points: { show: false } })).reverse(),
      ],
    },
    words: (index) => ({
      title: `${isoMinute(times[index])}, ${duration(counts.width * 1e6)}`,
      rows: shown.map((one) => [one.name, count(one.values[index]), one.colour]),
    }),
  };
}

function percentileLines(section, mode) {
  const { counts } = section;
  if (mode === "all") {
    const values = counts.percentiles(section.isChosen, SHARES);
    const colours = [css("k0"), css("k3"), css("k1")];
    return PERCENTILES.map((name, place) => ({ name, colour: colours[place], values: values[place] }));
  }
  const [name, by] = mode.split(" by ");
  const part = SHARES[PERCENTILES.indexOf(name)];
  return section.groups(by).map((group) => {
    const isOf = (series) => section.isChosen(series) && series[by] === group.number;
    const [values] = counts.percentiles(isOf, [part]);
    return { name: `${group.name} ${name}`, colour: group.colour, values };
  });
}

function percentilesChart(section, mode) {
  const { counts } = section;
  const lines = percentileLines(section, mode).filter((line) => line.values.some((one) => one !== null));
  if (!lines.length) return null;
  const times = Array.from({ length: counts.count }, (_, step) => counts.timeOf(step + 0.5));
  return {
    data: [times, ...lines.map((line) => line.values)],
    keys: lines,
    options: {
      scales: { x: timeScale(section), y: logScale(lines.flatMap((line) => line.values)) },
      axes: axes(TIME_X, WAIT_AXIS),
      series: [{}, ...lines.map((line) => ({ stroke: line.colour, width: 2, points: lonePoints(line.colour) }))],
    },
    words: (index) => ({
      title: `${isoMinute(counts.timeOf(index))}, ${duration(counts.width * 1e6)}`,
      rows: lines.map((line) => [line.name, line.values[index] === null ? "none" : duration(line.values[index]), line.colour]),
    }),
  };
}

function parkedChart(section) {
  const { start, width, kinds } = section.data.parked;
  const chosen = kinds.filter((_, kind) => section.kinds.has(kind));
  if (!chosen.length) return null;
  const size = chosen[0].mean.length;
  const sum = (name) =>
    Array.from({ length: size }, (_, place) => chosen.reduce((total, one) => total + one[name][place], 0));
  const lines = [
    { name: chosen.length > 1 ? "peak, at most" : "peak", colour: css("k1"), values: sum("peak") },
    { name: "mean", colour: css("k0"), values: sum("mean") },
  ];
  const times = Array.from({ length: size }, (_, place) => start + (place + 0.5) * width);
  return {
    data: [times, ...lines.map((line) => line.values)],
    keys: lines,
    options: {
      scales: { x: timeScale(section), y: { range: (u, min, max) => [0, max * 1.05 || 1] } },
      axes: axes(TIME_X, { values: (u, ticks) => ticks.map(shortCount) }),
      series: [
        {},
        { stroke: lines[0].colour, width: 1, points: lonePoints(lines[0].colour) },
        { stroke: lines[1].colour, width: 1.5, fill: faded(lines[1].colour, 0.18), points: lonePoints(lines[1].colour) },
      ],
    },
    words: (index) => ({
      title: `${isoMinute(start + index * width)}, ${duration(width * 1e6)}`,
      rows: lines.map((line) => [line.name, count(line.values[index]), line.colour]),
    }),
  };
}

function waitsChart(section, mode) {
  const { counts } = section;
  const lines = section.groups(mode).map((group) => {
    const isOf = (series) => section.isChosen(series) && series[mode] === group.number;
    const histogram = counts.histogram(isOf, section.range);
    const total = histogram.reduce((sum, many) => sum + many, 0);
    const parts = Array.from(histogram, (many) => (total ? many / total : 0));
    // Buckets are of different widths on this axis: as high as if all were eighths of a doubling.
    const values = parts.map((part, bucket) => part / (8 * Math.log2(counts.edges[bucket + 1] / counts.edges[bucket])));
    return { ...group, total, histogram, parts, values };
  }).filter((line) => line.total);
  if (!lines.length) return null;
  const starts = counts.edges.map((edge) => Math.max(1, edge));
  // The last step ends where its bucket does.
  const ended = lines.map((line) => [...line.values, 0]);
  const stepped = uPlot.paths.stepped({ align: 1 });
  return {
    isLocal: true,
    data: [starts, ...ended],
    keys: lines,
    options: {
      scales: { x: { ...logScale(starts), time: false }, y: { range: (u, min, max) => [0, max * 1.05 || 1] } },
      axes: axes({ ...WAIT_AXIS, size: 30 }, { values: (u, ticks) => ticks.map(share) }),
      series: [
        {},
        ...lines.map((line) => ({ stroke: line.colour, width: 1.5, fill: faded(line.colour, 0.12), paths: stepped, points: { show: false } })),
      ],
    },
    words: (index) => {
      const bucket = Math.min(index, counts.buckets - 1);
      return {
        title: `${duration(counts.edges[bucket])} to ${duration(counts.edges[bucket + 1])}`,
        rows: lines.map((line) => [line.name, `${share(line.parts[bucket])} (${count(line.histogram[bucket])})`, line.colour]),
      };
    },
  };
}

// Several curves with times of their own, on one axis.
function joined(curves) {
  const times = [...new Set(curves.flatMap((curve) => curve[0]))].sort((one, other) => one - other);
  const columns = curves.map((curve) =>
    curve.slice(1).map((values) => {
      const found = new Array(times.length).fill(null);
      let place = 0;
      times.forEach((time, index) => {
        while (place + 1 < curve[0].length && curve[0][place + 1] <= time) place++;
        if (curve[0][place] <= time && time <= curve[0].at(-1)) found[index] = values[place];
      });
      return found;
    }),
  );
  return [times, columns];
}

function survivalChart(section) {
  const chosen = section.groups("kind").filter((group) => section.data.survival[group.number]?.[0]?.length);
  if (!chosen.length) return null;
  // Every curve begins with all that wait.
  const [times, columns] = joined(chosen.map((group) => {
    const [at, ...values] = section.data.survival[group.number];
    const times = at.map((time) => Math.max(LEAST_US, time));
    return [[LEAST_US, ...times], ...values.map((column) => [1, ...column])];
  }));
  const first = times.find((time, index) => columns.some(([values]) => values[index] !== null && values[index] < 1 - INVISIBLE));
  const stepped = uPlot.paths.stepped({ align: 1 });
  const plain = { paths: stepped, points: { show: false } };
  const lines = chosen.map((group, place) => ({ ...group, values: columns[place][0], span: columns[place].slice(1) }));
  return {
    isLocal: true,
    data: [times, ...columns.flat()],
    keys: lines,
    bands: lines.map((line, place) => ({ series: [place * 3 + 3, place * 3 + 2], fill: faded(line.colour, 0.2) })),
    options: {
      scales: { x: { ...logScale([first ?? LEAST_US, times.at(-1)]), time: false }, y: { range: () => [0, 1.02] } },
      axes: axes({ ...WAIT_AXIS, size: 30 }, { values: (u, ticks) => ticks.map(share) }),
      series: [
        {},
        ...lines.flatMap((line) => [
          { ...plain, stroke: line.colour, width: 2 },
          { ...plain, stroke: "transparent", width: 0 },
          { ...plain, stroke: "transparent", width: 0 },
        ]),
      ],
      hooks: { draw: [(u) => drawTimeouts(u, lines, section)] },
    },
    words: (index) => ({
      title: `after ${duration(times[index])}`,
      rows: lines.map((line) => [line.name, line.values[index] === null ? "unknown" : `${share(line.values[index])} still wait`, line.colour]),
    }),
  };
}

// A line at the median timeout of each kind, in its colour.
function drawTimeouts(u, lines, section) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.lineWidth = devicePixelRatio;
  for (const line of lines) {
    const timeout = section.data.timeouts[line.name];
    const x = timeout ? u.valToPos(timeout, "x", true) : -1;
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = line.colour;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

// None are before the first value, and all are after the last.
function cumulated(values) {
  const first = values.findIndex((value) => value !== null);
  return values.map((value, index) => value ?? (index < first ? 0 : 1));
}

function latenessChart(section) {
  const chosen = section.groups("kind").filter((group) => section.data.lateness[group.number]?.[0]?.length);
  if (!chosen.length) return null;
  const [times, columns] = joined(chosen.map((group) => {
    const [at, values] = section.data.lateness[group.number];
    return [at.map((time) => Math.max(10, time)), values];
  }));
  const lines = chosen.map((group, place) => ({
    ...group,
    values: cumulated(columns[place][0]),
  }));
  const first = times.find((time, index) => lines.some((line) => line.values[index] > INVISIBLE));
  return {
    isLocal: true,
    data: [times, ...lines.map((line) => line.values)],
    keys: lines,
    options: {
      scales: { x: { ...logScale([first, times.at(-1)]), time: false }, y: { range: () => [0, 1.02] } },
      axes: axes({ ...WAIT_AXIS, size: 30 }, { values: (u, ticks) => ticks.map(share) }),
      series: [{}, ...lines.map((line) => ({ stroke: line.colour, width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }))],
    },
    words: (index) => ({
      title: `at most ${duration(times[index])} late`,
      rows: lines.map((line) => [line.name, share(line.values[index]), line.colour]),
    }),
  };
}
