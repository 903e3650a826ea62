"use strict";
// The counts of operations by time, kind, outcome and wait, and sums of them.

class Counts {
  constructor(steps) {
    Object.assign(this, { start: steps.start, width: steps.width, count: steps.count });
    this.first = steps.edges.first;
    // Starts of the buckets, and the end of the last.
    this.edges = steps.edges.starts;
    this.buckets = this.edges.length - 1;
    this.series = steps.cells.map(([kind, outcome, numbers]) => ({ kind, outcome, numbers }));
  }

  get end() {
    return this.start + this.count * this.width;
  }

  timeOf(step) {
    return this.start + step * this.width;
  }

  // The time of each step, or of a place within it.
  times(within) {
    return Array.from({ length: this.count }, (_, step) => this.timeOf(step + within));
  }

  // Call visit(step, bucket, count, outcome) for the cells of a selection; a bucket below 0 has no
  // wait.
  visit(isChosen, visit) {
    for (const { numbers, outcome } of this.series.filter(isChosen)) {
      let step = 0;
      for (let place = 0; place < numbers.length; place += 3) {
        step += numbers[place];
        const bucket = numbers[place + 1] < 0 ? -1 : numbers[place + 1] - this.first;
        visit(step, bucket, numbers[place + 2], outcome);
      }
    }
  }

  // The number of operations of each step, by the outcome.
  outcomes(isChosen) {
    const found = new Map();
    this.visit(isChosen, (step, bucket, many, outcome) => {
      if (!found.has(outcome)) found.set(outcome, new Array(this.count).fill(0));
      found.get(outcome)[step] += many;
    });
    return found;
  }

  // Histograms of the waits, one for each step, in one array.
  byStep(isChosen) {
    const found = new Float64Array(this.count * this.buckets);
    this.visit(isChosen, (step, bucket, many) => {
      if (bucket >= 0) found[step * this.buckets + bucket] += many;
    });
    return found;
  }

  // One histogram of the waits that began between two times.
  histogram(isChosen, [low, high]) {
    const found = new Float64Array(this.buckets);
    this.visit(isChosen, (step, bucket, many) => {
      const at = this.timeOf(step);
      if (bucket >= 0 && at + this.width > low && at < high) found[bucket] += many;
    });
    return found;
  }

  // Percentiles of each step; null where nothing ended.
  percentiles(isChosen, shares) {
    const histograms = this.byStep(isChosen);
    const found = shares.map(() => new Array(this.count).fill(null));
    for (let step = 0; step < this.count; step++) {
      const row = histograms.subarray(step * this.buckets, (step + 1) * this.buckets);
      const values = percentilesOf(row, this.edges, shares);
      values.forEach((value, place) => (found[place][step] = value));
    }
    return found;
  }
}

// Within a bucket waits are taken to be spread evenly.
function percentilesOf(histogram, edges, shares) {
  const total = histogram.reduce((sum, many) => sum + many, 0);
  if (!total) return shares.map(() => null);
  const found = [];
  let upto = 0;
  let bucket = 0;
  for (const part of shares) {
    while (bucket < histogram.length - 1 && upto + histogram[bucket] < part * total) {
      upto += histogram[bucket++];
    }
    const within = histogram[bucket] ? (part * total - upto) / histogram[bucket] : 0;
    const [low, high] = [edges[bucket], edges[bucket + 1]];
    found.push(Math.max(1, low + Math.min(1, Math.max(0, within)) * (high - low)));
  }
  return found;
}
