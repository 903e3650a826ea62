"use strict";
// Charts on uPlot: each is a function of a section that returns options, data and words.

const LEAST_US = 100;
const SHARES = [0.5, 0.9, 0.99];
const PERCENTILES = ["p50", "p90", "p99"];
const HEAT_ROWS_PER_DOUBLING = 4;
const HEAT_COLUMN_PX = 5;
// The first label of a time axis may reach that far to the left of it.
const HALF_TIME_PX = 30;

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
  return Math.max(HALF_TIME_PX, Math.ceil(u.ctx.measureText(longest).width / devicePixelRatio) + 14);
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
const COUNTS = { values: (u, ticks) => ticks.map(shortCount) };
const OF_ALL = { values: (u, ticks) => ticks.map(share) };
const FROM_ZERO = { range: (u, min, max) => [0, max * 1.05 || 1] };
const WHOLE = { range: () => [0, 1.02] };
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

// A chart of lines, which are drawn in the order of `drawn`: over time, which it shares with its
// section, or over durations between `ends`, on which it is zoomed by itself.
function lineChart(section, lines, { times, ends, drawn = lines, y, axis, style, title, text, ...more }) {
  if (!lines.length) return null;
  const x = ends ? { ...logScale(ends), time: false } : timeScale(section);
  return {
    isLocal: Boolean(ends),
    data: [times, ...drawn.map((line) => line.sum ?? line.values)],
    keys: lines,
    options: {
      scales: { x, y },
      axes: axes(ends ? { ...WAIT_AXIS, size: 30 } : TIME_X, axis),
      series: [{}, ...drawn.map((line) => ({ stroke: line.colour, width: 2, points: { show: false }, ...style(line) }))],
      ...more.options,
    },
    bands: more.bands,
    words: (index) => ({
      title: title(index),
      rows: lines.map((line) => [line.name, text(line.values[index], line, index), line.colour]),
    }),
  };
}

function outcomesChart(section) {
  const { counts } = section;
  const found = counts.outcomes(section.isChosen);
  const upto = new Array(counts.count).fill(0);
  const lines = [...found.keys()].sort((one, other) => one - other).map((outcome) => {
    const values = found.get(outcome);
    values.forEach((many, step) => (upto[step] += many));
    return { name: section.data.outcomes[outcome], colour: css(`o${outcome}`), values, sum: [...upto] };
  });
  const bars = uPlot.paths.bars({ align: 1, size: [1, Infinity], gap: 0 });
  return lineChart(section, lines, {
    times: counts.times(0),
    // Stacked bars: the sum is drawn first, and smaller sums over it.
    drawn: [...lines].reverse(),
    y: FROM_ZERO,
    axis: COUNTS,
    style: (line) => ({ fill: line.colour, width: 0, paths: bars }),
    title: (index) => spanText(counts.timeOf(index), counts.width),
    text: count,
  });
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
  return lineChart(section, lines, {
    times: counts.times(0.5),
    y: logScale(lines.flatMap((line) => line.values)),
    axis: WAIT_AXIS,
    style: (line) => ({ points: lonePoints(line.colour) }),
    title: (index) => spanText(counts.timeOf(index), counts.width),
    text: (value) => (value === null ? "none" : duration(value)),
  });
}

function parkedChart(section) {
  const { start, width, kinds } = section.data.parked;
  const chosen = kinds.filter((_, kind) => section.kinds.has(kind));
  if (!chosen.length) return null;
  const places = [...chosen[0].mean.keys()];
  const sum = (name) => places.map((place) => chosen.reduce((total, one) => total + one[name][place], 0));
  const [peak, mean] = [css("k1"), css("k0")];
  const lines = [
    { name: chosen.length > 1 ? "peak, at most" : "peak", colour: peak, values: sum("peak"), width: 1 },
    { name: "mean", colour: mean, values: sum("mean"), width: 1.5, fill: faded(mean, 0.18) },
  ];
  return lineChart(section, lines, {
    times: places.map((place) => start + (place + 0.5) * width),
    y: FROM_ZERO,
    axis: COUNTS,
    style: ({ width, fill, colour }) => ({ width, fill, points: lonePoints(colour) }),
    title: (index) => spanText(start + index * width, width),
    text: count,
  });
}

function waitsChart(section, mode) {
  const { counts } = section;
  const lines = section.groups(mode).map((group) => {
    const isOf = (series) => section.isChosen(series) && series[mode] === group.number;
    const histogram = counts.histogram(isOf, section.range);
    const total = histogram.reduce((sum, many) => sum + many, 0);
    const values = Array.from(histogram, (many) => (total ? many / total : 0));
    // Buckets are of different widths on this axis: as high as if all were equal, 100 % together.
    const densities = values.map((part, bucket) => part / Math.log2(counts.edges[bucket + 1] / counts.edges[bucket]));
    const sum = densities.reduce((one, other) => one + other, 0);
    const heights = densities.map((density) => density / sum);
    // The last step ends where its bucket does.
    return { ...group, total, histogram, values, sum: [...heights, 0] };
  }).filter((line) => line.total);
  const starts = counts.edges.map((edge) => Math.max(1, edge));
  const stepped = uPlot.paths.stepped({ align: 1 });
  const bucketAt = (index) => Math.min(index, counts.buckets - 1);
  return lineChart(section, lines, {
    times: starts,
    ends: starts,
    y: FROM_ZERO,
    axis: OF_ALL,
    style: (line) => ({ width: 1.5, fill: faded(line.colour, 0.12), paths: stepped }),
    title: (index) => `${duration(counts.edges[bucketAt(index)])} to ${duration(counts.edges[bucketAt(index) + 1])}`,
    text: (_, { values, histogram }, index) => `${share(values[bucketAt(index)])} (${count(histogram[bucketAt(index)])})`,
  });
}

// The curves of each chosen kind that has one, with times of their own, on one axis.
function joined(section, name, completed) {
  const chosen = section.groups("kind").filter(({ number }) => section.data[name][number]?.[0]?.length);
  const curves = chosen.map(({ number }) => completed(section.data[name][number]));
  const times = [...new Set(curves.flatMap((curve) => curve[0]))].sort((one, other) => one - other);
  const lines = curves.map(([at, ...columns], index) => {
    const [values, ...span] = columns.map((column) => {
      const found = new Array(times.length).fill(null);
      let place = 0;
      times.forEach((time, index) => {
        while (place + 1 < at.length && at[place + 1] <= time) place++;
        if (at[place] <= time && time <= at.at(-1)) found[index] = column[place];
      });
      return found;
    });
    return { ...chosen[index], values, span };
  });
  return [times, lines];
}

function survivalChart(section) {
  // Every curve begins with all that wait.
  const [times, lines] = joined(section, "survival", ([at, ...columns]) => [
    [LEAST_US, ...at.map((time) => Math.max(LEAST_US, time))],
    ...columns.map((column) => [1, ...column]),
  ]);
  const isVisible = ({ values }, index) => values[index] !== null && values[index] < 1 - INVISIBLE;
  const first = times.find((time, index) => lines.some((line) => isVisible(line, index)));
  const stepped = uPlot.paths.stepped({ align: 1 });
  return lineChart(section, lines, {
    times,
    ends: [first ?? LEAST_US, times.at(-1)],
    drawn: lines.flatMap((line) => [line, ...line.span.map((values) => ({ values, colour: "transparent" }))]),
    bands: lines.map((line, place) => ({ series: [place * 3 + 3, place * 3 + 2], fill: faded(line.colour, 0.2) })),
    y: WHOLE,
    axis: OF_ALL,
    style: () => ({ paths: stepped }),
    title: (index) => `after ${duration(times[index])}`,
    text: (value) => (value === null ? "unknown" : `${share(value)} still wait`),
    options: { hooks: { draw: [(u) => drawTimeouts(u, lines, section)] } },
  });
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

function latenessChart(section) {
  const [times, lines] = joined(section, "lateness", ([at, values]) => [at.map((time) => Math.max(10, time)), values]);
  for (const line of lines) {
    // None are before the first value, and all are after the last.
    const first = line.values.findIndex((value) => value !== null);
    line.values = line.values.map((value, index) => value ?? (index < first ? 0 : 1));
  }
  const first = times.find((time, index) => lines.some((line) => line.values[index] > INVISIBLE));
  const stepped = uPlot.paths.stepped({ align: 1 });
  return lineChart(section, lines, {
    times,
    ends: [first, times.at(-1)],
    y: WHOLE,
    axis: OF_ALL,
    style: () => ({ paths: stepped }),
    title: (index) => `at most ${duration(times[index])} late`,
    text: share,
  });
}
