"use strict";
// The heat map of waits by time and duration.

// A shade for a count of 1 to most: equal ratios are equal steps.
function shadeOf(many, most) {
  return Math.min(9, Math.floor((Math.log(many) / Math.max(Math.log(most), 1e-9)) * 10));
}

// The counts with as many columns as the width has room for, and fewer rows.
function heatCells(section, width) {
  const { counts } = section;
  const [low, high] = section.range;
  const visible = Math.max(1, Math.round((high - low) / counts.width));
  const perColumn = Math.max(1, Math.ceil((visible * HEAT_COLUMN_PX) / width));
  const perRow = 8 / HEAT_ROWS_PER_DOUBLING;
  const cells = new Map();
  counts.visit(section.isChosen, (step, bucket, many) => {
    if (bucket < 0) return;
    const row = Math.floor((bucket + counts.first) / perRow);
    const key = `${Math.floor(step / perColumn)} ${row}`;
    cells.set(key, (cells.get(key) ?? 0) + many);
  });
  const found = [...cells].map(([key, many]) => [...key.split(" ").map(Number), many]);
  return { perColumn, perRow, found, most: Math.max(1, ...cells.values()), cells };
}

function heatChart(section, mode, width) {
  const { counts } = section;
  const heat = heatCells(section, width);
  if (!heat.found.length) return null;
  const edgeOf = (row) => {
    const place = row * heat.perRow - counts.first;
    const inside = Math.min(counts.buckets, Math.max(0, place));
    return Math.max(1, counts.edges[inside]);
  };
  const rows = heat.found.map(([, row]) => row);
  const [lowRow, highRow] = [Math.min(...rows), Math.max(...rows)];
  const rowAt = (wait) => {
    let row = lowRow;
    while (row < highRow && edgeOf(row + 1) <= wait) row++;
    return row;
  };
  const columns = Math.ceil(counts.count / heat.perColumn);
  const times = Array.from({ length: columns }, (_, column) => counts.timeOf((column + 0.5) * heat.perColumn));
  const middle = Math.sqrt(edgeOf(lowRow) * edgeOf(highRow + 1));
  const colours = Array.from({ length: 10 }, (_, shade) => css(`q${shade}`));
  const draw = (u) => {
    const { ctx } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    for (const [column, row, many] of heat.found) {
      const from = counts.timeOf(column * heat.perColumn);
      const left = Math.round(u.valToPos(from, "x", true));
      const right = Math.round(u.valToPos(from + heat.perColumn * counts.width, "x", true));
      const top = Math.round(u.valToPos(edgeOf(row + 1), "y", true));
      const bottom = Math.round(u.valToPos(edgeOf(row), "y", true));
      ctx.fillStyle = colours[shadeOf(many, heat.most)];
      ctx.fillRect(left, top, Math.max(1, right - left), Math.max(1, bottom - top));
    }
    ctx.restore();
  };
  return {
    data: [times, times.map(() => middle)],
    keys: [],
    scale: { most: heat.most, colours },
    rows: { low: lowRow, high: highRow, edgeOf, rowAt },
    options: {
      scales: { x: timeScale(section), y: { distr: 3, range: () => [edgeOf(lowRow), edgeOf(highRow + 1)] } },
      axes: axes(TIME_X, WAIT_AXIS),
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: { draw: [draw] },
      cursor: { y: true, points: { show: false } },
    },
    words: (index, u) => {
      const row = rowAt(u.posToVal(u.cursor.top, "y"));
      const many = heat.cells.get(`${index} ${row}`) ?? 0;
      const from = counts.timeOf(index * heat.perColumn);
      return {
        title: spanText(from, heat.perColumn * counts.width),
        rows: [[`${duration(edgeOf(row))} to ${duration(edgeOf(row + 1))}`, count(many), many ? colours[shadeOf(many, heat.most)] : null]],
      };
    },
  };
}
