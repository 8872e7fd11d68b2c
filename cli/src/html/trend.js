// The page of a trend: memory over time, and per call site its curve, its class and the evidence.
"use strict";

// Lines in the first chart besides the total.
const LINES = 5;

pages.trend = (context) => {
  const names = context.page.trends.map((trend) => trend.program + ": " + trend.processes.join("; "));
  oneOf(main, "Processes", names, (number, host) => showTrend(context, number, host));
};

function showTrend(context, number, host) {
  const trend = context.page.trends[number];
  const column = (name) => context.columns[number + "." + name];
  const values = (name, row) => Array.from(column(name).subarray(row * trend.points.length, (row + 1) * trend.points.length));
  trend.scale = trend.against === "time" ? 3600 : 1;
  trend.at = (x) => (trend.against === "time" ? formatDuration(Math.round(x * 1e9)).replace(/ 0 [smh]$|^0 ns$/, (zero) => (zero === "0 ns" ? "0" : "")) : formatCount(Math.round(x * 10) / 10));
  trend.axis = { time: "since the first snapshot", marks: "marks passed", runs: "run" }[trend.against];
  host.append(
    element("p", { class: "headline" + (trend.growing ? " bad" : "") }, trend.headline[0]),
    ...trend.headline.slice(1).map((line) => element("p", {}, line)),
    ...trend.warnings.map((warning) => element("p", { class: "warning" }, warning)),
  );
  if (trend.devices.length > 0) host.append(element("ul", {}, trend.devices.map((device) => element("li", {}, device))));
  const numbers = [...trend.rows.keys()].filter((nth) => !trend.rows[nth].object).slice(0, LINES);
  const name = (row) => shorten(row.label + (row.place ? "  " + row.place : ""));
  const top = numbers.map((nth, line) => ({ name: name(trend.rows[nth]), values: values("series.bytes", nth), colour: "--s" + (line + 1) }));
  const all = { name: "all call sites", values: Array.from(column("points.bytes")), colour: "--s0" };
  const canvas = element("div", { class: "chart", id: "chart" });
  section(host, "Memory over time", canvas);
  timeChart(canvas, trend, [all, ...top], 280, trend.headline[0]);

  const search = element("input", { type: "search", placeholder: "Search function, file or class ( / )", "aria-label": "Search function, file or class", oninput: () => find() });
  const tableHost = element("div");
  section(host, trend.by === "stack" ? "Stacks" : "Call sites", element("div", { class: "tools" }, search), tableHost);
  const table = showSites(trend, values, tableHost);
  const find = () => {
    const wanted = search.value.trim().toLowerCase();
    const text = (row) => [row.label, row.place, row.class, row.kinds, row.mark, ...row.stack.map((frame) => frame.function + " " + frame.place)].join("\0").toLowerCase();
    table.filter(wanted ? (nth) => text(trend.rows[nth]).includes(wanted) : null);
  };
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && search.value) {
      search.value = "";
      find();
      event.preventDefault();
    }
  });
  if (trend.hidden_rows > 0) tableHost.append(element("p", { class: "quiet" }, "and " + plural(trend.hidden_rows, "call site", "call sites") + " unchanged or beyond --top; --all --top 0 shows all"));
  section(host, "Processes", element("ul", {}, trend.processes.map((process) => element("li", {}, process))));
  if (trend.next) host.append(element("p", {}, element("span", { class: "quiet" }, "next: "), element("code", {}, trend.next)));
}

function showSites(trend, values, host) {
  const row = (nth) => trend.rows[nth];
  // Objects have counts only.
  const shown = (nth) => (row(nth).object ? row(nth).count : row(nth).bytes);
  const amount = (nth) => (row(nth).object ? (count) => plural(count, ...row(nth).object) : formatBytes);
  const series = (nth) => values(row(nth).object ? "series.counts" : "series.bytes", nth);
  const per = (pace, format = formatBytes) => pace === null ? "unknown" : withSign(Math.trunc(pace), format) + " per " + trend.unit;
  const site = {
    title: "Call site",
    classes: "site code",
    textual: true,
    key: (nth) => row(nth).label,
    cell: (nth) => ({ name: shorten(row(nth).label), rest: [row(nth).mark ? element("span", { class: "mark" }, row(nth).mark) : null, element("div", { class: "narrow quiet" }, shorten(row(nth).place))] }),
  };
  const change = (nth) => shown(nth).last - shown(nth).first;
  const columns = [
    { title: "Class", textual: true, key: (nth) => row(nth).class, cell: (nth) => element("span", { class: "tone-" + row(nth).tone }, row(nth).class) },
    { title: "Over time", classes: "curve wide", key: change, cell: (nth) => smallCurve(trend, series(nth), row(nth).tone === "bad" ? "--s1" : "--s2") },
    { title: "Last", classes: "number", key: (nth) => shown(nth).last, cell: (nth) => numberCell(amount(nth)(shown(nth).last), row(nth).object ? "count" : "bytes", shown(nth).last) },
    { title: "Change", classes: "number wide", key: change, cell: (nth) => withSign(change(nth), amount(nth)) },
    site,
    { title: "Place", classes: "site code wide", textual: true, key: (nth) => row(nth).place, cell: (nth) => shorten(row(nth).place) },
    { title: "Pace", classes: "number wide", key: (nth) => shown(nth).pace, cell: (nth) => per(shown(nth).pace, amount(nth)) },
    { title: "Confidence", classes: "number wide", key: (nth) => row(nth).confidence, cell: (nth) => Math.round(row(nth).confidence * 100) + " %" },
  ];
  const detail = (nth) => {
    const of = row(nth);
    const canvas = element("div", { class: "chart" });
    const bytes = [
      { name: "bytes", values: values("series.bytes", nth), colour: "--s1" },
      { name: "blocks", values: values("series.counts", nth), colour: "--s2", counts: true },
    ];
    const counts = [{ name: of.object?.[1], values: values("series.counts", nth), colour: "--s1", counts: true }];
    const lines = of.object ? counts : bytes;
    timeChart(canvas, trend, lines, 200, of.sentence);
    const range = (evidence, format) => `first ${format(evidence.first)}, last ${format(evidence.last)}, between ${format(evidence.least)} and ${format(evidence.most)}`;
    const list = [
      ["name", of.label],
      of.object ? ["objects", range(of.count, formatCount)] : ["bytes", range(of.bytes, formatBytes)],
      ...(of.object ? [] : [["blocks", range(of.count, formatCount)]]),
      ["evidence", of.evidence],
      ["pace", `${per(shown(nth).pace, amount(nth))}, with 95 % confidence between ${per(shown(nth).pace_low, amount(nth))} and ${per(shown(nth).pace_high, amount(nth))}`],
      ["kind", of.kinds],
    ];
    const frames = of.stack.map((frame) => element("li", { class: frame.users ? null : "foreign" }, frame.function, element("span", { class: "at" }, frame.place)));
    return [element("p", { class: "sentence" }, of.sentence), canvas, facts(list), element("ol", { class: "stack code" }, frames)];
  };
  return new Table(host, { label: "Call sites over time", columns, count: trend.rows.length, detail, opener: site });
}
