// Sums over time: blocks of one class that were allocated in one bucket of time and freed in another are one span.
//
// Boundary `k` is the end of bucket `k`; a span is live there if `from <= k < to`. So every sum at a boundary is exact.
"use strict";

class Spans {
  // `prefix` names the columns of one process.
  constructor(context, prefix, shown) {
    const column = (name) => context.columns[prefix + "." + name];
    this.shown = shown;
    this.place = column("samples.place");
    this.layer = column("samples.layer");
    this.groups = shown.groupings.map((title, nth) => column("group." + nth));
    this.high = shown.curves.map((curve, nth) => column("high." + nth));
    this.bytes = column("spans.bytes");
    this.count = column("spans.count");
    this.times = column("times");
    let time = shown.since_ns;
    for (let k = 0; k < this.times.length; k++) this.times[k] = time += this.times[k];
    this.last = this.times.length - 1;
    this.unpack(column("spans.of_class"), column("spans.from"), column("spans.length"));
  }

  // Spans are in the order of their classes: those of class `c` from `starts[c]` to `starts[c + 1]`.
  unpack(counts, from, length) {
    this.classes = counts.length;
    this.starts = new Uint32Array(this.classes + 1);
    for (let c = 0; c < this.classes; c++) this.starts[c + 1] = this.starts[c] + counts[c];
    this.from = from;
    this.to = length;
    for (let c = 0; c < this.classes; c++) {
      let before = 0;
      for (let s = this.starts[c]; s < this.starts[c + 1]; s++) {
        before = from[s] += before;
        length[s] = length[s] === 0 ? this.last + 1 : before + length[s];
      }
    }
  }

  // Whether a class counts for a place, at the level of the driver or else of blocks.
  counts(c, place, driver) {
    return this.place[c] === place && (driver ? this.layer[c] !== 0 : this.layer[c] !== 1);
  }

  // The curve of a place, with its high-water marks; null if it never held memory.
  curve(place, driver) {
    const nth = this.shown.curves.findIndex((curve) => curve.place === place && curve.driver === driver);
    return nth < 0 ? null : { ...this.shown.curves[nth], high: this.high[nth] };
  }

  // Adds the changes of a class to an array with one element for each boundary and one more.
  addChanges(c, changes) {
    for (let s = this.starts[c]; s < this.starts[c + 1]; s++) {
      changes[this.from[s]] += this.bytes[s];
      changes[this.to[s]] -= this.bytes[s];
    }
  }

  // The bytes of all these classes at each boundary.
  series(classes) {
    const sums = new Float64Array(this.last + 2);
    for (const c of classes) this.addChanges(c, sums);
    for (let k = 1; k <= this.last; k++) sums[k] += sums[k - 1];
    return sums;
  }

  // The values of a property with the most bytes at any one time, at most `most` of them, each with its series; and a last
  // one for all others, if there are more.
  stacked(place, driver, grouping, most) {
    const members = new Map();
    for (let c = 0; c < this.classes; c++) {
      if (!this.counts(c, place, driver)) continue;
      const name = this.groups[grouping][c];
      if (!members.has(name)) members.set(name, []);
      members.get(name).push(c);
    }
    const ranked = Array.from(members, ([name, classes]) => {
      let high = 0;
      for (const bytes of this.series(classes)) high = Math.max(high, bytes);
      return { name, classes, high };
    });
    ranked.sort((a, b) => b.high - a.high);
    while (ranked.length > 0 && ranked.at(-1).high === 0) ranked.pop();
    const bands = ranked.slice(0, most).map(({ name, classes, high }) => ({ name, high, series: this.series(classes) }));
    const rest = ranked.slice(most);
    if (rest.length > 0) bands.push({ name: null, many: rest.length, series: this.series(rest.flatMap(({ classes }) => classes)) });
    return bands;
  }

  // Bytes and blocks of each class that are live at boundary `b`; with `a`, only those allocated since boundary `a`.
  live(place, driver, a, b, bytes, count) {
    const since = a === null ? -1 : a;
    for (let c = 0; c < this.classes; c++) {
      let [sum, blocks] = [0, 0];
      if (this.counts(c, place, driver)) {
        for (let s = this.starts[c]; s < this.starts[c + 1]; s++) {
          if (this.from[s] > since && this.from[s] <= b && this.to[s] > b) {
            sum += this.bytes[s];
            blocks += this.count[s];
          }
        }
      }
      bytes[c] = sum;
      count[c] = blocks;
    }
  }

  // The most bytes live at once between two boundaries.
  highest(curve, a, b) {
    let high = 0;
    for (let k = a; k < b; k++) high = Math.max(high, curve.high[k]);
    return high;
  }

  // The boundary that is nearest to a time. Of several at one time, the last.
  nearest(time) {
    const { times } = this;
    let [low, high] = [0, this.last];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (times[middle] <= time) low = middle;
      else high = middle - 1;
    }
    return low < this.last && times[low + 1] - time < time - times[low] ? low + 1 : low;
  }
}
