// The section "Memory over time": the chart, its controls, and the graph of the selected window.
"use strict";

// Bands with a colour of their own.
const BANDS = 9;
// Marks and phases listed at first.
const LISTED = 100;

function showOverTime(context, stacks, prefix, shown, host) {
  if (shown.curves.length === 0) {
    section(host, "Memory over time", element("p", { class: "quiet" }, "The log has no allocation."), shown.lacks.map((text) => element("p", { class: "warning" }, text)));
    return;
  }
  new OverTime(context, stacks, prefix, shown, host);
}

class OverTime {
  constructor(context, stacks, prefix, shown, host) {
    this.context = context;
    this.shown = shown;
    this.spans = new Spans(context, prefix, shown);
    const { classes } = this.spans;
    this.bytes = context.columns[prefix + ".samples.bytes"] = new Float64Array(classes);
    this.count = context.columns[prefix + ".samples.count"] = new Float64Array(classes);
    const peak = (place) => this.spans.curve(place, false)?.peak_bytes || 0;
    const places = shown.places.map((name, place) => place).filter((place) => shown.curves.some((curve) => curve.place === place));
    places.sort((a, b) => peak(b) - peak(a));
    this.place = places[0];
    this.driver = false;
    this.grouping = 0;
    this.all = false;
    this.build(host, places, stacks, prefix);
  }

  build(host, places, stacks, prefix) {
    const choice = (label, options, act) => {
      const id = "time-" + label.toLowerCase().replace(/ /g, "-");
      const made = options.map(([value, text]) => element("option", { value }, text));
      return element("span", {}, element("label", { for: id }, label), " ", element("select", { id, onchange: (event) => act(Number(event.target.value)) }, made));
    };
    const tools = [];
    if (places.length > 1) {
      tools.push(choice("Device", places.map((place) => [place, this.shown.places[place]]), (place) => {
        this.place = place;
        this.show();
      }));
    }
    tools.push(choice("Stacked by", this.shown.groupings.map((title, nth) => [nth, title]), (nth) => {
      this.grouping = nth;
      this.show();
    }));
    // Without blocks of frameworks, both levels are the same.
    if (this.spans.layer.some((layer) => layer !== 2)) {
      tools.push(choice("Level", [[0, "tensors and other memory in use"], [1, "memory from the driver"]], (driver) => {
        this.driver = driver === 1;
        this.show();
      }));
    }
    const zoom = element("button", { type: "button", onclick: () => this.chart.view(this.spans.times[this.chart.a], this.spans.times[this.chart.b]) }, "Zoom to window");
    const all = element("button", { type: "button", onclick: () => this.showAll() }, "Show all");
    const peak = element("button", { type: "button", onclick: () => this.showPeak() }, "Select the peak");
    this.legend = element("div", { class: "legend areas" });
    this.pointed = element("div", { class: "details pointed", "aria-hidden": "true" });
    const canvas = element("div");
    section(host, "Memory over time", element("div", { class: "tools" }, tools, zoom, all, peak), this.legend, canvas, this.pointed, this.shown.lacks.map((text) => element("p", { class: "warning" }, text)), this.list());
    this.chart = new AreaChart(canvas, this.spans, {
      changed: () => this.showWindow(),
      pointed: (boundary) => this.point(boundary),
    });
    this.summary = element("p", { class: "window", role: "status" });
    // The graph of everything is that of the live memory.
    this.hint = element("p", { class: "quiet" }, "Move the sliders, or drag across the chart, to see the stacks of a part of the time.");
    this.mode = choice("Graph of", [[0, "what was allocated in the window and is alive at its end"], [1, "all memory alive at the end of the window"]], (all) => {
      this.all = all === 1;
      this.showWindow();
    });
    this.show();
    // Modules and call sites get their colours by what they have at the peak.
    if (this.curve) this.spans.live(this.place, this.driver, null, this.curve.peak, this.bytes, this.count);
    this.graph = element("div");
    section(host, "The window, by stack", element("p", {}, this.mode), this.summary, this.hint, this.graph);
    this.view = new View(this.context, stacks, prefix + ".samples", this.graph, { places: [], name: "window-" });
    this.view.start();
    this.showWindow();
  }

  // The chart for the selected device, level and property.
  show() {
    const { place, driver } = this;
    const bands = this.spans.stacked(place, driver, this.grouping, BANDS);
    bands.forEach((band, nth) => (band.colour = band.name === null ? "plain-frame" : "c" + nth));
    this.bands = bands;
    this.curve = this.spans.curve(place, driver);
    const name = (band) => (band.name === null ? formatCount(band.many) + " others" : shorten(this.context.strings[band.name]));
    this.nameOf = name;
    bands.forEach((band) => (band.label = name(band)));
    this.legend.replaceChildren(...bands.map((band) => element("span", {}, element("span", { class: "swatch " + (band.name === null ? "" : band.colour) }), " " + name(band))));
    const peak = this.curve ? `; peak ${formatBytes(this.curve.peak_bytes)} at ${formatTime(this.spans.times[this.curve.peak], 1e6)}` : "";
    this.chart.show(bands, this.curve, `Memory of ${this.shown.places[place]} over time${peak}`);
    this.point(null);
    if (this.view) this.showWindow();
  }

  showAll() {
    this.chart.showAll();
    this.chart.select(0, this.spans.last);
  }

  showPeak() {
    if (!this.curve) return;
    this.all = true;
    this.mode.querySelector("select").value = "1";
    this.chart.select(Math.min(this.chart.a, this.curve.peak), this.curve.peak);
    this.showWindow();
  }

  // The memory at a boundary; the peak if none is pointed at.
  point(boundary) {
    const at = boundary === null ? this.curve?.peak : boundary;
    if (at === undefined) return this.pointed.replaceChildren("no memory");
    const held = this.bands.map((band) => ({ band, bytes: band.series[at] })).filter(({ bytes }) => bytes > 0);
    held.sort((a, b) => b.bytes - a.bytes);
    const sum = held.reduce((sum, { bytes }) => sum + bytes, 0);
    const time = this.chart.timeText(this.spans.times[at]);
    const heading = boundary === null ? `peak, at ${time}: ${formatBytes(sum)}` : `at ${time}: ${formatBytes(sum)}`;
    const parts = held.slice(0, 6).map(({ band, bytes }) => element("span", { class: "part" }, element("span", { class: "swatch " + (band.name === null ? "" : band.colour) }), ` ${formatBytes(bytes)} ${this.nameOf(band)}`));
    this.pointed.replaceChildren(element("div", {}, element("strong", {}, heading)), element("div", { class: "parts" }, parts));
  }

  // The graph and the sums of the window.
  showWindow() {
    const { a, b } = this.chart;
    const { place, driver, spans } = this;
    spans.live(place, driver, this.all ? null : a, b, this.bytes, this.count);
    const isEverything = !this.all && a === 0 && b === spans.last;
    this.graph.classList.toggle("hidden", isEverything);
    this.hint.classList.toggle("hidden", !isEverything);
    this.view.weighAgain(() => {});
    const sum = (numbers) => numbers.reduce((sum, number) => sum + number, 0);
    const total = (at) => this.bands.reduce((sum, band) => sum + band.series[at], 0);
    const time = (at) => this.chart.timeText(spans.times[at]);
    const what = this.all ? `alive at ${time(b)}` : `allocated between ${time(a)} and ${time(b)} and alive at ${time(b)}`;
    const highest = this.curve ? Math.max(spans.highest(this.curve, a, b), total(a)) : 0;
    const text = `${formatBytes(sum(this.bytes))} in ${formatBlocks(sum(this.count))} ${what}. In the window: ${formatBytes(total(a))} held at its start, ${formatBytes(total(b))} at its end, at most ${formatBytes(highest)} at once.`;
    this.summary.replaceChildren(element("span", { "data-bytes": sum(this.bytes), "data-count": sum(this.count), "data-highest": highest }, text));
  }

  selectTimes(from, to) {
    const [a, b] = [this.spans.nearest(from), this.spans.nearest(to)];
    this.chart.select(a, Math.max(a, b));
  }

  // Marks, phases and failed requests as a list that selects windows.
  list() {
    const { marks, phases, failed } = this.shown;
    if (marks.length + phases.length + failed.length === 0) return null;
    const until = (time) => this.selectTimes(this.spans.times[this.chart.a], time);
    const items = [
      ...failed.map((mark) => ({ time: mark.time_ns, text: mark.text, act: () => until(mark.time_ns), hint: "" })),
      ...marks.map((mark) => ({ time: mark.time_ns, text: mark.text, act: () => until(mark.time_ns), hint: "mark" })),
      ...phases.map((phase) => ({ time: phase.begin_ns, text: phase.text, act: () => this.selectTimes(phase.begin_ns, phase.end_ns), hint: "phase of " + formatDuration(phase.end_ns - phase.begin_ns) })),
    ].sort((one, other) => one.time - other.time);
    const line = (item) => element("li", {}, element("button", { type: "button", onclick: item.act }, item.text), element("span", { class: "quiet" }, ` at ${formatTime(item.time, 1e6)}${item.hint ? ", " + item.hint : ""}`));
    const list = element("ul", { class: "instants" }, items.slice(0, LISTED).map(line));
    if (items.length > LISTED) {
      const more = element("button", { type: "button", onclick: () => list.replaceChildren(...items.map(line)) }, `Show all ${formatCount(items.length)}`);
      list.append(element("li", {}, more));
    }
    const counts = [[failed.length, "failed request", "failed requests"], [marks.length, "mark", "marks"], [phases.length, "phase", "phases"]].filter(([count]) => count > 0);
    const summary = counts.map(([count, one, many]) => plural(count, one, many)).join(", ");
    return element("details", {}, element("summary", {}, summary + ": select one as the window"), list);
  }
}
