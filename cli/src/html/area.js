// Memory over time as stacked areas, with the events of the program on the axis and two sliders that select a window.
//
// The areas are painted on a canvas, which style sheets do not affect, so they are painted again when the theme changes. The
// sliders are elements, which take the focus and which screen readers read.
"use strict";

const AREA_HEIGHT = 260;
const AREA_LEFT = 72;
const AREA_RIGHT = 14;
const AREA_TOP = 22;
const LANE_HEIGHT = 16;
// A name is written in an area that is this high, at one of the places that are this far apart.
const NAME_HEIGHT = 15;
const NAME_STEP = 8;
// The most lanes of nested phases.
const LANES = 4;
const TIME_STEPS = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat().filter((step) => step <= 1e10).concat([30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400].map((seconds) => seconds * 1e9));

// A time on the axis; `step` decides on its decimals.
function formatTime(ns, step) {
  if (ns >= 60e9 && step >= 1e9) return formatDuration(Math.round(ns)).replace(/ 0 [smh]$/, "");
  const digits = Math.max(0, Math.min(9, Math.ceil(9 - Math.log10(Math.max(step, 1)))));
  return (ns / 1e9).toFixed(digits) + " s";
}

class AreaChart {
  // `changed` is called with the boundaries of the window, `pointed` with the boundary under the pointer or null.
  constructor(host, spans, { changed, pointed }) {
    this.spans = spans;
    this.shown = spans.shown;
    this.changed = changed;
    this.pointed = pointed;
    this.a = 0;
    this.b = spans.last;
    this.lanes = Math.min(LANES, this.shown.phases.reduce((most, phase) => Math.max(most, phase.depth + 1), 0));
    this.height = AREA_TOP + AREA_HEIGHT + this.lanes * LANE_HEIGHT + 26;
    this.canvas = element("canvas", { role: "img" });
    this.before = element("div", { class: "unselected" });
    this.after = element("div", { class: "unselected" });
    this.handles = ["Start of the window", "End of the window"].map((label, nth) => {
      const handle = element("div", { class: "handle", role: "slider", tabindex: 0, "aria-label": label, "aria-valuemin": 0, "aria-valuemax": spans.last });
      handle.addEventListener("keydown", (event) => this.key(event, nth));
      return handle;
    });
    this.host = element("div", { class: "area" }, this.canvas, this.before, this.after, this.handles);
    this.host.style.height = this.height + "px";
    host.append(this.host);
    this.host.addEventListener("pointerdown", (event) => this.press(event));
    this.host.addEventListener("pointermove", (event) => this.move(event));
    this.host.addEventListener("pointerup", () => (this.drag = null));
    this.host.addEventListener("pointerleave", () => this.pointed(null));
    const again = () => requestAnimationFrame(() => this.paint());
    document.getElementById("theme").addEventListener("change", again);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    new ResizeObserver(() => {
      if (this.host.clientWidth > 0 && this.host.clientWidth !== this.width) this.paint();
    }).observe(this.host);
    this.showAll();
  }

  // `bands` are series with a class of colour each; `curve` has the high-water marks.
  show(bands, curve, spoken) {
    this.bands = bands;
    this.curve = curve;
    this.canvas.setAttribute("aria-label", spoken);
    this.paint();
  }

  showAll() {
    const { since_ns, until_ns } = this.shown;
    // A piece of the time before the log, if there is any.
    const before = Math.min(since_ns, (until_ns - since_ns) / 20);
    this.view(since_ns - before, until_ns);
  }

  view(from, to) {
    this.from = from;
    this.to = Math.max(to, from + 1);
    if (this.bands) this.paint();
  }

  x(time) {
    return AREA_LEFT + ((time - this.from) / (this.to - this.from)) * (this.width - AREA_LEFT - AREA_RIGHT);
  }

  timeAt(x) {
    return this.from + ((x - AREA_LEFT) / (this.width - AREA_LEFT - AREA_RIGHT)) * (this.to - this.from);
  }

  within(x) {
    return Math.min(Math.max(x, AREA_LEFT), this.width - AREA_RIGHT);
  }

  boundaryAt(event) {
    const x = this.within(event.clientX - this.host.getBoundingClientRect().left);
    return this.spans.nearest(this.timeAt(x));
  }

  press(event) {
    if (event.button !== 0) return;
    const at = this.boundaryAt(event);
    const nth = this.handles.indexOf(event.target);
    // A slider moves; elsewhere, a new window begins.
    this.drag = nth >= 0 ? { nth } : { anchor: at, x: event.clientX };
    this.host.setPointerCapture(event.pointerId);
    if (nth >= 0) this.handles[nth].focus();
    event.preventDefault();
  }

  move(event) {
    const at = this.boundaryAt(event);
    if (!this.drag) return this.pointed(at, event);
    if (this.drag.nth >= 0) return this.drag.nth === 0 ? this.select(Math.min(at, this.b), this.b) : this.select(this.a, Math.max(at, this.a));
    if (Math.abs(event.clientX - this.drag.x) > 3) this.select(Math.min(at, this.drag.anchor), Math.max(at, this.drag.anchor));
  }

  key(event, nth) {
    const page = Math.max(1, Math.round(this.spans.last / 20));
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -page, PageUp: page, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
    const to = Math.min(this.spans.last, Math.max(0, (nth === 0 ? this.a : this.b) + steps[event.key]));
    if (nth === 0) this.select(Math.min(to, this.b), this.b);
    else this.select(this.a, Math.max(to, this.a));
    event.preventDefault();
  }

  select(a, b) {
    if (a === this.a && b === this.b) return;
    this.a = a;
    this.b = b;
    this.place();
    cancelAnimationFrame(this.soon);
    this.soon = requestAnimationFrame(() => this.changed(this.a, this.b));
  }

  // Places the sliders.
  place() {
    const { times } = this.spans;
    const ends = [this.a, this.b].map((at) => this.within(this.x(times[at])));
    this.handles.forEach((handle, nth) => {
      handle.style.left = ends[nth] + "px";
      handle.style.height = AREA_TOP + AREA_HEIGHT + "px";
      handle.setAttribute("aria-valuenow", [this.a, this.b][nth]);
      handle.setAttribute("aria-valuetext", this.timeText(times[[this.a, this.b][nth]]));
    });
    for (const [shade, from, to] of [[this.before, AREA_LEFT, ends[0]], [this.after, ends[1], this.width - AREA_RIGHT]]) {
      shade.style.left = from + "px";
      shade.style.width = Math.max(0, to - from) + "px";
      shade.style.top = AREA_TOP + "px";
      shade.style.height = AREA_HEIGHT + "px";
    }
  }

  // A time with as many decimals as the view can tell apart.
  timeText(time) {
    return formatTime(time, (this.to - this.from) / 1000);
  }

  // The first and the last boundary to paint.
  visible() {
    const { times, last } = this.spans;
    let first = this.spans.nearest(this.from);
    let end = this.spans.nearest(this.to);
    while (first > 0 && times[first] >= this.from) first--;
    while (end < last && times[end] <= this.to) end++;
    return [first, end];
  }

  paint() {
    this.width = this.host.clientWidth;
    if (!this.width || !this.bands) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = this.width * ratio;
    this.canvas.height = this.height * ratio;
    this.canvas.style.width = this.width + "px";
    this.canvas.style.height = this.height + "px";
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = getComputedStyle(this.host).font;
    this.ink = Object.fromEntries(["text", "quiet", "line", "accent", "bad", "warn", "plain-frame", "raised", "ground", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9"].map((name) => [name, colourOf("--" + name)]));
    const [first, end] = this.visible();
    let most = 0;
    for (let k = first; k < end; k++) most = Math.max(most, this.curve ? this.curve.high[k] : 0);
    this.most = most > 0 ? most * 1.04 : 1;
    pen.save();
    pen.beginPath();
    pen.rect(AREA_LEFT, AREA_TOP, this.width - AREA_LEFT - AREA_RIGHT, AREA_HEIGHT);
    pen.clip();
    this.paintUnknown(pen);
    this.paintBands(pen, first, end);
    this.paintHigh(pen, first, end);
    this.paintNames(pen);
    pen.restore();
    this.paintAxes(pen);
    this.paintEvents(pen);
    this.place();
  }

  y(bytes) {
    return AREA_TOP + AREA_HEIGHT * (1 - bytes / this.most);
  }

  // The time before the log.
  paintUnknown(pen) {
    const until = this.x(this.shown.since_ns);
    if (this.shown.since_ns <= this.from) return;
    pen.strokeStyle = this.ink.line;
    for (let x = AREA_LEFT - AREA_HEIGHT; x < until; x += 7) {
      pen.beginPath();
      pen.moveTo(x, AREA_TOP + AREA_HEIGHT);
      pen.lineTo(x + AREA_HEIGHT, AREA_TOP);
      pen.stroke();
    }
    pen.clearRect(until, AREA_TOP, this.width, AREA_HEIGHT);
  }

  paintBands(pen, first, end) {
    const { times } = this.spans;
    const below = new Float64Array(end - first + 1);
    for (const band of this.bands) {
      pen.beginPath();
      for (let k = first; k <= end; k++) pen.lineTo(this.x(times[k]), this.y(below[k - first] + band.series[k]));
      for (let k = end; k >= first; k--) pen.lineTo(this.x(times[k]), this.y(below[k - first]));
      pen.closePath();
      pen.fillStyle = this.ink[band.colour];
      pen.fill();
      for (let k = first; k <= end; k++) below[k - first] += band.series[k];
    }
  }

  // Names the areas with room for it, each where it has most room.
  paintNames(pen) {
    const { times, last } = this.spans;
    const xs = Array.from({ length: Math.floor((this.width - AREA_LEFT - AREA_RIGHT) / NAME_STEP) }, (_, nth) => AREA_LEFT + nth * NAME_STEP);
    // The boundaries around each x, and where x is between them.
    let k = 0;
    const places = xs.map((x) => {
      const time = this.timeAt(x);
      while (k < last - 1 && times[k + 1] <= time) k++;
      return time < times[0] || last === 0 ? null : [k, Math.min(1, (time - times[k]) / Math.max(1, times[k + 1] - times[k]))];
    });
    const below = new Float64Array(xs.length);
    pen.fillStyle = this.ink.text;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (const band of this.bands) {
      const bottom = Array.from(below, (bytes) => this.y(bytes));
      places.forEach((place, nth) => {
        if (place) below[nth] += band.series[place[0]] * (1 - place[1]) + band.series[place[0] + 1] * place[1];
      });
      const top = Array.from(below, (bytes) => this.y(bytes));
      const name = band.label.length > 40 ? band.label.slice(0, 39) + "…" : band.label;
      const wide = Math.ceil((pen.measureText(name).width + 8) / NAME_STEP) + 1;
      let best = { room: NAME_HEIGHT };
      for (let from = 0; from + wide <= xs.length; from++) {
        const [high, low] = [Math.max(...top.slice(from, from + wide)), Math.min(...bottom.slice(from, from + wide))];
        if (low - high > best.room) best = { room: low - high, x: xs[from] + ((wide - 1) * NAME_STEP) / 2, y: (low + high) / 2 };
      }
      if (best.x !== undefined) pen.fillText(name, best.x, best.y + 1);
    }
  }

  paintHigh(pen, first, end) {
    if (!this.curve) return;
    const { times } = this.spans;
    pen.strokeStyle = this.ink.quiet;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let k = first; k < end; k++) {
      const y = this.y(this.curve.high[k]);
      pen.lineTo(this.x(times[k]), y);
      pen.lineTo(this.x(times[k + 1]), y);
    }
    pen.stroke();
  }

  paintAxes(pen) {
    const right = this.width - AREA_RIGHT;
    const bottom = AREA_TOP + AREA_HEIGHT;
    const step = 2 ** Math.ceil(Math.log2(Math.max(1, this.most / 5)));
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (let bytes = 0; bytes <= this.most; bytes += step) {
      const y = Math.round(this.y(bytes)) + 0.5;
      this.line(pen, AREA_LEFT, y, right, y, bytes === 0 ? "quiet" : "line");
      pen.fillStyle = this.ink.quiet;
      pen.fillText(formatBytes(bytes), AREA_LEFT - 6, y);
    }
    const wanted = (this.to - this.from) / Math.max(2, (right - AREA_LEFT) / 110);
    const tick = TIME_STEPS.find((each) => each >= wanted) || Math.ceil(wanted / 864e11) * 864e11;
    const axis = bottom + this.lanes * LANE_HEIGHT;
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (let time = Math.ceil(this.from / tick) * tick; time <= this.to; time += tick) {
      const x = Math.round(this.x(time)) + 0.5;
      this.line(pen, x, bottom, x, axis + 4, "line");
      pen.fillStyle = this.ink.quiet;
      pen.fillText(formatTime(time, tick), Math.min(x, right - 20), axis + 7);
    }
  }

  line(pen, x, y, toX, toY, colour) {
    pen.strokeStyle = this.ink[colour];
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(toX, toY);
    pen.stroke();
  }

  isVisible(time) {
    return this.from <= time && time <= this.to;
  }

  paintEvents(pen) {
    const bottom = AREA_TOP + AREA_HEIGHT;
    // Labels that would overlap are left out; the list below the chart has them.
    let free = 0;
    const label = (text, x, colour) => {
      const short = text.length > 40 ? text.slice(0, 39) + "…" : text;
      const width = pen.measureText(short).width;
      const left = Math.min(x + 3, this.width - width - 2);
      if (left < free) return;
      pen.fillStyle = this.ink[colour];
      pen.textAlign = "left";
      pen.textBaseline = "top";
      pen.fillText(short, left, 2);
      free = left + width + 10;
    };
    this.paintPhases(pen, bottom);
    const lines = [...this.shown.failed.map((mark) => ({ ...mark, colour: "bad" })), ...this.shown.marks.map((mark) => ({ ...mark, colour: "accent" }))].filter((mark) => this.isVisible(mark.time_ns));
    lines.sort((one, other) => one.time_ns - other.time_ns);
    // Many lines would hide the areas.
    const few = lines.length <= 40;
    for (const mark of lines) {
      const x = Math.round(this.x(mark.time_ns)) + 0.5;
      pen.setLineDash(mark.colour === "bad" ? [] : [3, 3]);
      this.line(pen, x, AREA_TOP - 4, x, few || mark.colour === "bad" ? bottom : AREA_TOP + 5, mark.colour);
      pen.setLineDash([]);
      if (mark.colour === "bad") this.triangle(pen, x, bottom);
    }
    for (const mark of lines) label(mark.text, this.x(mark.time_ns), mark.colour);
    const peak = this.curve && this.spans.times[this.curve.peak];
    if (this.curve && this.isVisible(peak)) this.paintPeak(pen, this.x(peak), this.y(this.curve.peak_bytes));
  }

  paintPeak(pen, x, y) {
    pen.beginPath();
    pen.arc(x, y, 4, 0, 7);
    pen.fillStyle = this.ink.text;
    pen.fill();
    pen.strokeStyle = this.ink.ground;
    pen.stroke();
    const text = "peak " + formatBytes(this.curve.peak_bytes);
    const isRight = x - AREA_LEFT < pen.measureText(text).width + 12;
    pen.textAlign = isRight ? "left" : "right";
    pen.textBaseline = "middle";
    pen.lineWidth = 4;
    // Legible over all colours.
    pen.strokeText(text, isRight ? x + 9 : x - 9, y + 1);
    pen.fillText(text, isRight ? x + 9 : x - 9, y + 1);
  }

  triangle(pen, x, bottom) {
    pen.fillStyle = this.ink.bad;
    pen.beginPath();
    pen.moveTo(x - 5, bottom);
    pen.lineTo(x + 5, bottom);
    pen.lineTo(x, bottom - 9);
    pen.fill();
  }

  paintPhases(pen, top) {
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.save();
    pen.beginPath();
    pen.rect(AREA_LEFT, top, this.width - AREA_LEFT - AREA_RIGHT, this.lanes * LANE_HEIGHT);
    pen.clip();
    this.shown.phases.forEach((phase) => {
      if (phase.depth >= LANES || phase.end_ns < this.from || phase.begin_ns > this.to) return;
      const x = Math.max(AREA_LEFT, this.x(phase.begin_ns));
      const width = Math.max(1, Math.min(this.x(phase.end_ns), this.width - AREA_RIGHT) - x);
      const y = top + phase.depth * LANE_HEIGHT;
      pen.fillStyle = this.ink["plain-frame"];
      pen.fillRect(x, y + 2, width, LANE_HEIGHT - 3);
      pen.strokeStyle = this.ink.ground;
      pen.strokeRect(x, y + 2, width, LANE_HEIGHT - 3);
      if (width < 30) return;
      pen.save();
      pen.beginPath();
      pen.rect(x, y, width - 3, LANE_HEIGHT);
      pen.clip();
      pen.fillStyle = this.ink.text;
      pen.fillText(phase.text, x + 4, y + LANE_HEIGHT / 2 + 1);
      pen.restore();
    });
    pen.restore();
  }
}
