// The page of a report: headline, call sites, graph, ledger, memory over time, totals, and losses.
"use strict";

pages.report = (context) => {
  const names = context.page.processes.map((process) => process.source + ": " + process.process);
  oneOf(main, "Process", names, (number, host) => showProcess(context, number, host));
};

function showProcess(context, number, host) {
  const process = context.page.processes[number];
  const stacks = readStacks(context.columns, number + ".stacks");
  const leaks = process.finished && / leaks? /.test(process.headline);
  if (process.trigger) {
    host.append(element("p", { class: "headline bad" }, "out of memory: " + process.trigger.text), stackList(context, stacks, process.trigger.stack));
  }
  host.append(
    element("p", { class: "headline" + (leaks ? " bad" : "") }, process.headline),
    // The title names a single process.
    context.page.processes.length > 1 ? element("p", { class: "quiet" }, process.process) : "",
    ...process.warnings.map((warning) => element("p", { class: "warning" }, warning)),
  );
  const rows = rowsOf(context, number + ".rows");
  const finder = element("div", { class: "tools finder" });
  const tableHost = element("div");
  const title = process.by === "site" ? "Call sites" : "By " + process.by.replace("-", " ");
  // The search stays in view for what it filters.
  const found = element("div");
  host.append(found);
  section(found, title, finder, tableHost);
  const view = new View(context, stacks, number + ".samples", found, { places: process.places, title: "Live memory, by stack", finder });
  view.tables.push(showRows(context, rows, process, stacks, view, tableHost, title, process.held));
  if (process.hidden_rows > 0) {
    const text = plural(process.hidden_rows, "more row", "more rows") + " with " + formatBytes(process.hidden.bytes) + " left out by --top or --min-bytes";
    tableHost.append(element("p", { class: "quiet" }, text));
  }
  if (process.suppressed.length > 0) {
    const lines = process.suppressed.map((line) => element("li", {}, line));
    tableHost.append(element("details", { class: "suppressed" }, element("summary", {}, "Left out by suppressions, in the graph too"), element("ul", {}, lines)));
  }
  if (process.ledger.devices.length + process.ledger.beside.length > 0) showLedger(process.ledger, host);
  if (process.over_time) showOverTime(context, stacks, number + ".time", process.over_time, host);
  const pools = rowsOf(context, number + ".pools");
  if (pools.count > 0) {
    const poolHost = element("div");
    section(host, "Pools behind these blocks", element("p", { class: "quiet" }, "Memory that caching allocators obtained from the driver. The blocks in it are listed above."), poolHost);
    view.tables.push(showRows(context, pools, process, stacks, view, poolHost, "Pools behind these blocks"));
  }
  showRetained(process.retainers, host);
  if (process.failed.length > 0) {
    const items = process.failed.map((failed) => element("details", {}, element("summary", {}, failed.text), stackList(context, stacks, failed.stack)));
    section(host, "Failed requests", items);
  }
  showObjects(context, stacks, process, host);
  section(host, "Totals", facts(process.totals, "sums"));
  section(host, "Not recorded", losses(process.losses, process.all_losses));
  host.append(element("p", {}, element("span", { class: "quiet" }, "next: "), element("code", {}, process.next)));
  view.start();
}

function showObjects(context, stacks, process, host) {
  if (process.object_kinds.length === 0) return;
  const kinds = element("ul", {}, process.object_kinds.map((kind) => element("li", {}, kind)));
  const sites = process.objects.map((of) => element("details", {}, element("summary", {}, of.text), stackList(context, stacks, of.stack)));
  const hidden = process.hidden_objects;
  const more = hidden > 0 ? [element("p", { class: "quiet" }, "and " + plural(hidden, "more call site", "more call sites"))] : [];
  section(host, "Objects without an address", kinds, sites, more);
}

// What the recording lacks, with all counts on demand. The heading names the rows.
function losses(occurred, all) {
  const unnamed = (rows) => facts(rows.map(([, text]) => ["", text]), "sums losses");
  return [unnamed(occurred), element("details", {}, element("summary", {}, "all counts"), unnamed(all))];
}

function showLedger(ledger, host) {
  const devices = ledger.devices.map((device) => {
    const inSum = device.lines.filter((line) => line.in_sum && line.bytes > 0);
    const sum = inSum.reduce((sum, line) => sum + line.bytes, 0);
    const parts = inSum.map((line) => {
      const part = element("span", { class: "ledger-" + line.what, "data-bytes": line.bytes });
      part.style.width = (100 * line.bytes) / sum + "%";
      part.title = line.size + "  " + line.text;
      return part;
    });
    const spoken = inSum.map((line) => line.size + " " + line.text).join("; ");
    const lines = device.lines.map((line) =>
      element("tr", {}, element("td", {}, element("span", { class: "swatch " + (line.in_sum ? "ledger-" + line.what : "") })), element("td", { class: "size", "data-bytes": line.bytes }, line.size), element("td", {}, line.text, line.details.slice(0, 3).map((text) => element("div", { class: "quiet" }, text)))),
    );
    const name = "GPU " + device.ordinal + (device.name ? "  " + device.name : "");
    return element(
      "div",
      { class: "device" },
      element("h3", {}, name, element("span", { class: "quiet" }, ": " + device.title)),
      sum > 0 ? element("div", { class: "bar", role: "img", "aria-label": name + ": " + spoken }, parts) : null,
      element("table", { class: "ledger" }, element("tbody", {}, lines)),
      device.caches.map(showSegments),
    );
  });
  const content = [element("div", { class: "devices" }, devices)];
  if (ledger.beside.length > 0) content.push(facts(ledger.beside, "sums"));
  if (ledger.missing) content.push(element("p", { class: "quiet" }, "without the driver's figures: " + ledger.missing));
  section(host, "Where the memory is", content);
}

function showSegments(cache) {
  const items = cache.segments.map((segment) => {
    const fill = element("span");
    fill.style.width = (100 * segment.live_bytes) / segment.bytes + "%";
    const text = formatBytes(segment.live_bytes) + " of " + formatBytes(segment.bytes) + " in " + formatBlocks(segment.blocks, 0) + ", largest free run " + formatBytes(segment.largest_free_run) + (segment.expandable ? ", expandable" : "");
    return element("li", {}, element("span", { class: "fill" }, fill), text);
  });
  if (cache.hidden > 0) items.push(element("li", { class: "quiet" }, "and " + formatCount(cache.hidden) + " more"));
  const count = cache.segments.length + cache.hidden;
  return element("details", {}, element("summary", {}, plural(count, "segment", "segments") + " of " + cache.owner + ", " + formatBytes(cache.bytes) + " in all"), element("ul", { class: "segments" }, items));
}

function showRows(context, rows, process, stacks, view, host, label, held) {
  const number = (name) => (row) => rows.number(name, row);
  const estimated = number("estimated");
  const size = (row) => formatEstimate(formatBytes(rows.number("bytes", row)), estimated(row));
  const blocks = (row) => formatAbout(formatBlocks(rows.number("count", row), rows.number("claims", row)), estimated(row));
  const bytes = { title: "Size", classes: "number", key: number("bytes"), cell: (row) => numberCell(size(row), "bytes", rows.number("bytes", row)) };
  const count = { title: "Blocks", classes: "number", key: number("count"), cell: (row) => numberCell(blocks(row), "count", rows.number("count", row)) };
  const site = {
    title: process.is_code ? "Call site" : "What",
    classes: "site code",
    textual: true,
    key: rows.label,
    cell: (row) => ({ name: shorten(rows.label(row)), rest: [rows.mark(row) ? element("span", { class: "mark" }, rows.mark(row)) : null, narrowPlace(rows, row)] }),
  };
  const columns = [bytes, count, site];
  if (process.is_code) columns.push({ title: "Place", classes: "site code wide", textual: true, key: rows.place, cell: (row) => shorten(rows.place(row)) });
  const names = (title, dimension) => ({ title, classes: "wide", textual: true, key: (row) => rows.names(row, dimension), cell: (row) => shorten(rows.names(row, dimension)) });
  if (process.by !== "kind") columns.push(names("Kind", "kinds"));
  if (process.by !== "device") columns.push(names("Device", "devices"));
  columns.push({ title: "Oldest", classes: "number wide", key: number("oldest"), cell: (row) => formatDuration(rows.number("oldest", row)) });
  const detail = (row) => rowDetail(context, rows, row, stacks, view, held);
  const table = new Table(host, { label, columns, count: rows.count, detail, opener: site });
  table.rows = rows;
  if (rows.count === 0) host.prepend(element("p", { class: "quiet" }, "nothing to list"));
  return table;
}

function rowDetail(context, rows, row, stacks, view, held) {
  const number = (name) => rows.number(name, row);
  const estimated = number("estimated");
  const about = (text) => formatAbout(text, estimated);
  const range = number("smallest") === number("largest") ? formatBytes(number("smallest")) : formatBytes(number("smallest")) + " to " + formatBytes(number("largest"));
  const age = number("count") === 1 ? formatDuration(number("oldest")) + " old" : "oldest " + formatDuration(number("oldest")) + ", newest " + formatDuration(number("newest"));
  const list = [["name", rows.label(row)], ["size", formatEstimate(exact(number("bytes")), estimated) + " in " + about(formatBlocks(number("count"), number("claims")))], ["each", range]];
  const titles = { kinds: "kind", devices: "device", streams: "stream", threads: "thread", apis: "allocated by" };
  for (const dimension of context.page.dimensions) {
    const tallies = rows.tallies(row, dimension);
    const text = tallies.length === 1 ? tallies[0].name : tallies.map((tally) => tally.name + " (" + about(formatBytes(tally.bytes)) + " in " + about(formatCount(tally.count)) + ")").join(", ");
    if (text) list.push([titles[dimension], text]);
  }
  list.push(["age", age]);
  const parts = rows.stacksOf(row);
  const heading = (part) =>
    element(
      "h3",
      {},
      about(formatBytes(part.bytes)) + " in " + about(formatBlocks(part.count, 0)) + " ",
      element("button", { type: "button", onclick: () => view.reveal(part.stack) }, "show in graph"),
    );
  const others = number("stacks_in_all") - parts.length;
  const more = others > 0 ? element("p", { class: "quiet" }, "and " + plural(others, "other stack", "other stacks") + "; search for the call site to see them in the graph") : null;
  const holders = held?.[row]?.length > 0 ? [element("h3", {}, "held by"), holderList(held[row])] : null;
  return [facts(list), holders, stackLists(context, stacks, parts, heading), more];
}
