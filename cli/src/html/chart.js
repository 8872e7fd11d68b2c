// Charts over time, drawn by uPlot: a large one with axes, and small curves in table rows.
//
// uPlot paints on a canvas, which style sheets do not affect. So colours are looked up when a chart is made, and every
// chart is made again when the theme changes.
"use strict";

const charts = [];

function paintAgain() {
  for (let nth = charts.length - 1; nth >= 0; nth--) {
    const chart = charts[nth];
    if (chart.host.isConnected) chart.paint();
    else charts.splice(nth, 1);
  }
}

// The page has its new colours in the next frame.
const paintSoon = () => requestAnimationFrame(paintAgain);
document.getElementById("theme").addEventListener("change", paintSoon);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintSoon);

// `make` returns uPlot's options and data for a width.
function chart(host, make) {
  let plot = null;
  const paint = () => {
    plot?.destroy();
    const { options, data } = make(host.clientWidth || 150);
    plot = new uPlot(options, data, host);
  };
  charts.push({ host, paint });
  return { paint, resize: () => plot?.setSize({ width: host.clientWidth, height: plot.height }) };
}

// One value per point of a trend, with a gap between processes.
function withGaps(points, values, joined) {
  const spread = [];
  points.forEach((point, nth) => {
    if (!joined && nth > 0 && points[nth - 1].process !== point.process) spread.push(null);
    spread.push(values[nth]);
  });
  return spread;
}

// The x positions: times are in seconds, because uPlot rounds steps below 1 to decimals.
function positions(trend, joined) {
  const points = trend.points;
  const x = points.map((point) => point.x * trend.scale);
  const between = x.slice();
  const spread = [];
  points.forEach((point, nth) => {
    if (!joined && nth > 0 && points[nth - 1].process !== point.process) spread.push((between[nth - 1] + between[nth]) / 2);
    spread.push(between[nth]);
  });
  return spread;
}

// `lines` have a name, values, a colour variable, and `counts` if the values are numbers of blocks.
function timeChart(host, trend, lines, height, spoken) {
  const joined = trend.against === "runs";
  const one = trend.points.length === 1;
  const made = chart(host, (width) => {
    const quiet = colourOf("--quiet");
    const line = colourOf("--line");
    const axis = { stroke: quiet, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const sizes = (plot, splits) => splits.map(formatBytes);
    const counts = (plot, splits) => splits.map(formatCount);
    // Without a pointer on the chart, the legend has the last value of each line.
    const shown = (format, last) => (plot, value, series, at) => (value !== null ? format(value) : at === null || at === undefined ? format(last) : "");
    const options = {
      width,
      height,
      scales: { x: { time: false }, y: { range: (plot, low, high) => [0, high > 0 ? high * 1.05 : 1] }, count: { range: (plot, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
      axes: [
        { ...axis, space: 90, incrs: trend.against === "time" ? TIMES : WHOLE, values: (plot, splits) => splits.map((x) => trend.at(x)) },
        { ...axis, size: 74, values: sizes, incrs: POWERS },
        ...(lines.some((each) => each.counts) ? [{ ...axis, scale: "count", side: 1, size: 64, grid: { show: false }, values: counts }] : []),
      ],
      series: [
        { label: trend.axis, value: shown((x) => trend.at(x), trend.points[trend.points.length - 1].x * trend.scale) },
        ...lines.map((each) => ({
          label: each.name,
          scale: each.counts ? "count" : "y",
          stroke: colourOf(each.colour),
          width: 2,
          dash: each.counts ? [5, 4] : undefined,
          points: { show: one || trend.points.length < 40, size: 5 },
          value: shown(each.counts ? formatCount : formatBytes, each.values[each.values.length - 1]),
        })),
      ],
    };
    return { options, data: [positions(trend, joined), ...lines.map((each) => withGaps(trend.points, each.values, joined))] };
  });
  host.setAttribute("role", "img");
  host.setAttribute("aria-label", spoken);
  requestAnimationFrame(() => {
    made.paint();
    let width = host.clientWidth;
    new ResizeObserver(() => {
      if (host.clientWidth !== width && host.clientWidth > 0) {
        width = host.clientWidth;
        made.resize();
      }
    }).observe(host);
  });
}

// Steps of an axis: powers of two for bytes, clock and calendar units for seconds, else decimal.
const POWERS = Array.from({ length: 63 }, (_, power) => 2 ** power);
const TIMES = [0.001, 0.01, 0.1, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200].concat([1, 2, 5, 10, 30, 100, 300, 1000].map((days) => days * 86400));
const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

function smallCurve(trend, values, colour) {
  const host = element("div", { class: "curve", "aria-hidden": "true" });
  const joined = trend.against === "runs";
  const made = chart(host, () => ({
    options: {
      width: 140,
      height: 24,
      padding: [2, 2, 2, 2],
      cursor: { show: false },
      legend: { show: false },
      scales: { x: { time: false }, y: { range: (plot, low, high) => [0, high > 0 ? high : 1] } },
      axes: [{ show: false }, { show: false }],
      series: [{}, { stroke: colourOf(colour), width: 1.5, points: { show: false } }],
    },
    data: [positions(trend, joined), withGaps(trend.points, values, joined)],
  }));
  made.paint();
  return host;
}
