// The page of a job: what stands out, its processes, and its call sites with the bytes of each process.
"use strict";

const BARS = 400;
const SITES_OF_A_PROCESS = 20;

pages.job = (context) => {
  const { page, columns } = context;
  const leaks = page.finished && / leaks? /.test(page.headline);
  main.append(
    element("p", { class: "headline" + (leaks ? " bad" : "") }, page.headline),
    ...page.warnings.map((warning) => element("p", { class: "warning" }, warning)),
    ...outlying(page).map((text) => element("p", { class: "bad" }, text)),
  );
  const job = {
    ...page,
    columns,
    // The first process of each row of values.
    values: (site) => columns.values.subarray(site * page.processes.length, (site + 1) * page.processes.length),
    members: page.programs.map((_, program) => page.processes.map((_, nth) => nth).filter((nth) => page.processes[nth].program === program)),
  };
  showSites(job, main);
  showProcesses(job, main);
  if (page.shared.length > 0) section(main, "Shared between processes", element("ul", {}, page.shared.map((line) => element("li", {}, line))));
  if (page.unreadable.length > 0) {
    const lines = page.unreadable.map((line) => element("li", {}, line));
    section(main, "Not read", element("details", {}, element("summary", {}, plural(lines.length, "input", "inputs")), element("ul", {}, lines)));
  }
  if (page.next) main.append(element("p", {}, element("span", { class: "quiet" }, "next: "), element("code", {}, page.next)));
};

function outlying(page) {
  const sites = page.sites.filter((site) => site.sentence).slice(0, 5);
  const texts = sites.map((site) => [site.label, site.place, site.sentence].filter((text) => text).join("  "));
  return [...texts, ...page.notes];
}

// How a process is called: by rank if it has one.
function nameOf(process) {
  return process.rank === null ? process.host + ":" + process.pid : "rank " + process.rank;
}

function bytesColumn(title, name, value) {
  return { title, classes: "number", key: value, cell: (row) => numberCell(formatBytes(value(row)), name, value(row)) };
}

function showProcesses(job, host) {
  const { processes, columns } = job;
  const place = element("div");
  section(host, "Processes", place);
  const opener = { title: "Process", classes: "site", textual: false, key: (row) => processes[row].rank ?? Infinity, cell: (row) => ({ name: nameOf(processes[row]), rest: null }) };
  const text = (title, of) => ({ title, classes: "wide", textual: true, key: of, cell: of });
  const list = [
    opener,
    text("Host", (row) => processes[row].host),
    { title: "PID", classes: "number wide", key: (row) => processes[row].pid, cell: (row) => String(processes[row].pid) },
    text("Device", (row) => processes[row].devices),
    text("State", (row) => processes[row].state),
    bytesColumn(job.finished ? "Leaked" : "Held", "bytes", (row) => columns["process.held"][row]),
    { ...bytesColumn("Pools", "pools", (row) => columns["process.pools"][row]), classes: "number wide" },
    bytesColumn("Peak", "peak", (row) => columns["process.peak"][row]),
    { title: "Stands out", classes: "wide bad", textual: true, key: (row) => (processes[row].out ? "" : "~"), cell: (row) => (processes[row].out ? "yes" : "") },
  ];
  const detail = (row) => {
    const sites = job.sites.map((_, site) => site).filter((site) => job.sites[site].values && job.sites[site].program === processes[row].program);
    const held = sites.map((site) => [job.values(site)[row], site]).filter(([bytes]) => bytes > 0);
    held.sort(([a], [b]) => b - a);
    const lines = held.slice(0, SITES_OF_A_PROCESS).map(([bytes, site]) => {
      const usual = columns["site.median"][site];
      const others = usual === bytes ? "" : "  (median " + formatBytes(usual) + ")";
      return element("li", {}, formatBytes(bytes) + "  " + job.sites[site].label + "  " + job.sites[site].place + others);
    });
    return [element("p", { class: "quiet" }, processes[row].source), element("ul", { class: "holders" }, lines)];
  };
  new Table(place, { label: "Processes", columns: list, count: processes.length, detail, opener });
}

function showSites(job, host) {
  const { sites, columns } = job;
  const place = element("div");
  section(host, "Call sites", place);
  const opener = {
    title: "Call site",
    classes: "site code",
    textual: true,
    key: (row) => sites[row].label,
    cell: (row) => ({ name: shorten(sites[row].label), rest: [" ", element("span", { class: "quiet" }, [sites[row].place, sites[row].mark].join(" "))] }),
  };
  const of = (name) => (row) => columns["site." + name][row];
  const list = [
    bytesColumn("Sum", "bytes", of("sum")),
    { ...bytesColumn("Median", "median", of("median")), classes: "number wide", cell: (row) => numberCell((sites[row].exact ? "" : "~") + formatBytes(of("median")(row)), "median", of("median")(row)) },
    { ...bytesColumn("Min", "min", of("min")), classes: "number wide" },
    bytesColumn("Max", "max", of("max")),
    { title: "Processes", classes: "number", key: (row) => sites[row].processes, cell: (row) => formatCount(sites[row].processes) + "/" + formatCount(sites[row].of) },
    opener,
    { title: "Stands out", classes: "wide bad", textual: true, key: (row) => sites[row].sentence ?? "~", cell: (row) => sites[row].sentence ?? "" },
  ];
  const search = element("input", { type: "search", placeholder: "call site", "aria-label": "Search" });
  place.append(element("p", { class: "tools" }, search));
  const detail = (row) => [...siteBars(job, row), frameList(sites[row].stack)];
  const table = new Table(place, { label: "Call sites", columns: list, count: sites.length, detail, opener });
  search.oninput = () => {
    const wanted = search.value.toLowerCase();
    const text = (row) => [sites[row].label, sites[row].place, ...sites[row].stack.flatMap((frame) => [frame.function, frame.place])].join("\0").toLowerCase();
    table.filter(wanted ? (row) => text(row).includes(wanted) : null);
  };
  if (sites.length === 0) place.append(element("p", { class: "quiet" }, "no memory is held"));
  if (job.hidden) place.append(element("p", { class: "quiet" }, job.hidden));
}

function frameList(stack) {
  const lines = stack.map((frame) => element("li", { class: frame.users ? "users" : null }, frame.function + "  ", element("span", { class: "quiet" }, frame.place)));
  return element("ol", { class: "code" }, lines);
}

function shape(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// The bytes of each process at a call site. A bar of many processes is as high as the largest of them.
function siteBars(job, site) {
  if (!job.sites[site].values) return [element("p", { class: "quiet" }, "The values of each process are not on this page; culeak report has them for one process at a time.")];
  const members = job.members[job.sites[site].program];
  const values = job.values(site);
  const most = Math.max(1, ...chunks(members, 10000).map((part) => Math.max(...part.map((member) => values[member]))));
  const per = Math.ceil(members.length / BARS);
  const bars = chunks(members, per).map((part, nth) => {
    const largest = part.reduce((best, member) => (values[member] > values[best] ? member : best), part[0]);
    const height = (100 * values[largest]) / most;
    const name = per === 1 ? nameOf(job.processes[largest]) : nameOf(job.processes[part[0]]) + " to " + nameOf(job.processes[part[part.length - 1]]) + ", at most (" + nameOf(job.processes[largest]) + ")";
    const unusual = isUnusual(values[largest], job.columns["site.median"][site]);
    const title = shape("title", {}, name + ": " + formatBytes(values[largest]));
    return shape("rect", { x: nth + 0.05, y: 100 - height, width: 0.9, height, class: unusual ? "out" : "usual", "data-bytes": values[largest] }, title);
  });
  const median = 100 - (100 * job.columns["site.median"][site]) / most;
  const line = shape("line", { x1: 0, x2: bars.length, y1: median, y2: median });
  const spoken = "bytes of each process, at most " + formatBytes(most);
  const chart = shape("svg", { class: "bars", viewBox: `0 0 ${Math.max(bars.length, 8)} 100`, preserveAspectRatio: "none", role: "img", "aria-label": spoken }, ...bars, line);
  const largest = members.slice().sort((a, b) => values[b] - values[a] || a - b);
  const lines = largest.slice(0, 10).map((member) => element("li", {}, formatBytes(values[member]) + "  " + nameOf(job.processes[member]) + " on " + job.processes[member].host));
  const legend = "By process in the order of ranks; the highest bar is " + formatBytes(most) + ", the line the median, " + formatBytes(job.columns["site.median"][site]) + (per > 1 ? "; each bar is of " + per + " processes" : "");
  return [chart, element("p", { class: "quiet" }, legend), element("ul", { class: "holders" }, lines)];
}

// For the colour alone; the sentence has the judgement.
function isUnusual(bytes, median) {
  const distance = Math.abs(bytes - median);
  return distance >= 65536 && distance >= median / 10;
}

function chunks(list, size) {
  const parts = [];
  for (let at = 0; at < list.length; at += size) parts.push(list.slice(at, at + size));
  return parts;
}
