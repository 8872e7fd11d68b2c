// Puts the data on the page: headline, ledger, graph, tables, and what could not be seen.
"use strict";

const main = document.getElementById("main");
const statusLine = document.getElementById("status");

document.getElementById("theme").onchange = (event) => {
  document.documentElement.dataset.theme = event.target.value;
};

// The first of these is where the page's own keys go: "/" to the search.
document.addEventListener("keydown", (event) => {
  const writing = event.target.closest?.("input, select, textarea");
  const search = main.querySelector('input[type="search"]');
  if (event.key === "/" && !writing && search && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    search.focus();
  }
});

start().catch((error) => {
  statusLine.textContent =
    "This page could not be read (" + error.message + "). It needs a browser that knows DecompressionStream: Chrome 80, Firefox 113, Safari 16.4 or newer. In a terminal: culeak report.";
});

async function start() {
  statusLine.textContent = "Reading …";
  const source = document.getElementById("data");
  const { header, columns } = await readData(source.textContent);
  source.remove();
  const { page } = header;
  const context = { header, columns, page, strings: header.strings, frames: new Frames(columns, header.strings) };
  document.getElementById("made-by").textContent = "made by " + header.made_by;
  if (page.what === "diff") showDiff(context);
  else showProcesses(context);
  statusLine.textContent = "";
  statusLine.classList.add("hidden");
  document.documentElement.dataset.ready = "";
}

function showProcesses(context) {
  const { processes } = context.page;
  const host = element("div");
  const show = (number) => {
    host.replaceChildren();
    showProcess(context, number, host);
  };
  if (processes.length > 1) {
    const options = processes.map((process, number) => element("option", { value: number }, process.source + ": " + process.process));
    const choice = element("select", { id: "process", onchange: (event) => show(Number(event.target.value)) }, options);
    main.append(element("p", {}, element("label", {}, "Process ", choice)));
  }
  main.append(host);
  if (processes.length > 0) show(0);
}

function section(host, title, ...content) {
  const heading = element("h2", {}, title);
  host.append(heading, ...content.flat());
  return heading;
}

function showProcess(context, number, host) {
  const process = context.page.processes[number];
  const stacks = readStacks(context.columns, number + ".stacks");
  const leaks = process.finished && / leaks? /.test(process.headline);
  if (process.failed) {
    host.append(element("p", { class: "headline bad" }, "out of memory: " + process.failed.text), stackList(context, stacks, process.failed.stack));
  }
  host.append(
    element("p", { class: "headline" + (leaks ? " bad" : "") }, process.headline),
    // Of one process alone the title says it.
    context.page.processes.length > 1 ? element("p", { class: "quiet" }, process.process) : "",
    ...process.warnings.map((warning) => element("p", { class: "warning" }, warning)),
  );
  if (process.ledger.devices.length + process.ledger.beside.length > 0) showLedger(process.ledger, host);

  const view = new View(context, stacks, number + ".samples", host, process);
  const rows = rowsOf(context, number + ".rows");
  const tableHost = element("div");
  const title = process.by === "site" ? "Call sites" : "By " + process.by.replace("-", " ");
  section(host, title, tableHost);
  view.tables.push(showRows(context, rows, process, stacks, view, tableHost, title));
  if (process.hidden_rows > 0) {
    const text = formatCount(process.hidden_rows) + " more rows with " + formatBytes(process.hidden.bytes) + " were left out by --top or --min-bytes";
    tableHost.append(element("p", { class: "quiet" }, text));
  }
  const pools = rowsOf(context, number + ".pools");
  if (pools.count > 0) {
    const poolHost = element("div");
    section(host, "Pools behind these blocks", element("p", { class: "quiet" }, "What caching allocators asked the driver for; the blocks handed out of it are listed above."), poolHost);
    view.tables.push(showRows(context, pools, process, stacks, view, poolHost, "Pools behind these blocks"));
  }
  if (process.refused.length > 0) {
    const items = process.refused.map((refused) => element("details", {}, element("summary", {}, refused.text), stackList(context, stacks, refused.stack)));
    section(host, "Refused requests", items);
  }
  section(host, "Sums", facts(process.totals, "sums"));
  section(host, "What could not be seen", facts(process.honesty, "sums honesty"));
  host.append(element("p", {}, element("span", { class: "quiet" }, "next: "), element("code", {}, process.next)));
  view.start();
}

// Rows with a name and a text; an empty name continues the row above.
function facts(rows, classes) {
  return element("dl", { class: "facts " + (classes || "") }, rows.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
}

function showLedger(ledger, host) {
  const devices = ledger.devices.map((device) => {
    const inSum = device.lines.filter((line) => line.in_sum && line.bytes > 0);
    const sum = inSum.reduce((sum, line) => sum + line.bytes, 0);
    const parts = inSum.map((line) => {
      const part = element("span", { class: line.what, "data-bytes": line.bytes });
      part.style.width = (100 * line.bytes) / sum + "%";
      part.title = line.size + "  " + line.text;
      return part;
    });
    const spoken = inSum.map((line) => line.size + " " + line.text).join("; ");
    const lines = device.lines.map((line) =>
      element("tr", {}, element("td", {}, element("span", { class: "swatch " + (line.in_sum ? line.what : "") })), element("td", { class: "size", "data-bytes": line.bytes }, line.size), element("td", {}, line.text)),
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
  if (ledger.missing) content.push(element("p", { class: "quiet" }, "from the records alone: " + ledger.missing));
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
  return element("details", {}, element("summary", {}, formatCount(count) + (count === 1 ? " segment" : " segments") + " of " + cache.owner + ", " + formatBytes(cache.bytes) + " in all"), element("ul", { class: "segments" }, items));
}

// The graph with its tools. The search also filters the tables.
class View {
  constructor(context, stacks, samples, host, process) {
    this.context = context;
    this.stacks = stacks;
    this.tables = [];
    this.isDiff = context.page.what === "diff";
    this.column = (name) => context.columns[samples + "." + name];
    this.starts = new Uint32Array(stacks.count + 1);
    const of = this.column("stack");
    for (const stack of of) this.starts[stack + 1]++;
    for (let n = 0; n < stacks.count; n++) this.starts[n + 1] += this.starts[n];
    this.measure = "bytes";
    this.width = "change";
    this.colours = this.isDiff ? "change" : "module";
    this.place = -1;
    this.build(host, process);
  }

  build(host, process) {
    const { frames } = this.context;
    const choice = (label, options, act) => {
      const made = options.map(([value, text]) => element("option", { value }, text));
      const id = "choose-" + label.toLowerCase();
      return element("span", {}, element("label", { for: id }, label), " ", element("select", { id, onchange: (event) => act(event.target.value) }, made));
    };
    this.search = element("input", { type: "search", placeholder: "Search function, file or module ( / )", "aria-label": "Search function, file or module", oninput: () => this.searchSoon() });
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.search.value) {
        this.search.value = "";
        this.find();
        event.preventDefault();
      }
    });
    this.result = element("span", { class: "result", role: "status" });
    this.reset = element("button", { type: "button", disabled: true, onclick: () => this.graph.zoomOut(true) }, "Reset zoom");
    const inverted = element("input", { type: "checkbox", onchange: (event) => this.invert(event.target.checked) });
    const tools = [
      this.search,
      choice("Width", [["bytes", "bytes"], ["count", "blocks"]], (value) => this.weighAgain(() => (this.measure = value))),
    ];
    if (this.isDiff) {
      tools.push(choice("of", [["change", "the change"], ["after", "what is held after"], ["before", "what was held before"]], (value) => this.weighAgain(() => (this.width = value))));
    } else if (process.places.length > 1) {
      const places = process.places.map((place, number) => [String(number), place]);
      tools.push(choice("in", [["-1", "all places"], ...places], (value) => this.weighAgain(() => (this.place = Number(value)))));
    }
    const colours = [["module", "module"], ["kind", "kind of memory"]];
    if (this.isDiff) colours.unshift(["change", "change"]);
    tools.push(
      choice("Colour", colours, (value) => {
        this.colours = value;
        this.graph.draw();
        this.showLegend();
      }),
      element("label", {}, inverted, "Inverted"),
      this.reset,
      this.result,
    );
    this.legend = element("div", { class: "legend" });
    this.told = element("div", { class: "told", role: "status" });
    this.canvas = element("div", { class: "graph", id: "graph" });
    this.scroll = element("div", { class: "scroll" }, this.canvas);
    section(host, this.isDiff ? "What changed, by stack" : "Who asked for it, by stack", element("div", { class: "tools" }, tools), this.legend, this.scroll, this.told);
    this.groups = this.rankGroups();
    this.graph = new Graph(this.canvas, this.stacks, frames, {
      told: (node) => this.tell(node),
      colour: (node) => this.colour(node),
      describe: (node) => this.describe(node),
    });
    this.graph.zoomChanged = () => {
      this.reset.disabled = this.graph.zoomed.length === 0;
      this.scroll.scrollTop = 0;
    };
  }

  start() {
    this.weighAgain(() => {});
  }

  weighAgain(change) {
    change();
    this.measured();
    this.graph.weigh(this.weights, this.changes);
    this.graph.draw();
    this.graph.zoomChanged();
    this.showLegend();
    this.tell(this.graph.root());
    if (this.search.value) this.find();
  }

  // The weight of each stack, as chosen.
  measured() {
    const { count } = this.stacks;
    const of = this.column("stack");
    const bytes = this.measure === "bytes";
    this.weights = new Float64Array(count);
    if (this.isDiff) {
      const before = this.column(bytes ? "before" : "before_count");
      const after = this.column(bytes ? "after" : "after_count");
      this.changes = new Float64Array(count);
      for (let i = 0; i < of.length; i++) {
        const change = after[i] - before[i];
        this.changes[of[i]] += change;
        this.weights[of[i]] += this.width === "change" ? Math.abs(change) : (this.width === "after" ? after : before)[i];
      }
      return;
    }
    const values = this.column(bytes ? "bytes" : "count");
    const place = this.column("place");
    for (let i = 0; i < of.length; i++) {
      if (this.place < 0 || place[i] === this.place) this.weights[of[i]] += values[i];
    }
  }

  format(value) {
    return this.measure === "bytes" ? formatBytes(value) : formatBlocks(value, 0);
  }

  invert(inverted) {
    this.graph.invert(inverted);
    this.graph.draw();
    this.graph.zoomChanged();
    this.tell(this.graph.root());
  }

  amount(node) {
    const part = this.format(node.value) + ", " + formatPart(node.value, this.graph.total);
    if (!this.isDiff) return part;
    const change = withSign(this.graph.changeOf(node), (value) => this.format(value));
    return this.width === "change" ? change + " (" + this.format(node.value) + " of changes, " + formatPart(node.value, this.graph.total) + ")" : part + " (" + change + ")";
  }

  describe(node) {
    const { frames } = this.context;
    const rest = node.group ? formatCount(node.group.length) + " narrow frames" : "all stacks";
    const name = node.frame === null ? rest : frames.name(node.frame) + (frames.place(node.frame) ? ", " + frames.place(node.frame) : "");
    return name + ": " + this.amount(node);
  }

  // Everything about the frame pointed at.
  tell(node) {
    const { frames } = this.context;
    const lines = [element("div", {}, element("strong", {}, this.amount(node)))];
    if (node.group) {
      const names = node.group.slice(0, 8).map((member) => frames.name(member.frame));
      const more = node.group.length > names.length ? " …" : "";
      lines.push(element("div", { class: "quiet" }, formatCount(node.group.length) + " frames too narrow to be drawn one by one; click, or press enter, to see them"), element("div", { class: "code" }, names.join("  ") + more));
    } else if (node.frame === null) {
      lines.push(element("div", { class: "quiet" }, "all stacks; point at a frame to see more, click to zoom in, escape to come back"));
    } else {
      const path = frames.path(node.frame);
      lines.push(element("div", { class: "code" }, frames.full(node.frame)), element("div", { class: "quiet code" }, [path, frames.module(node.frame), frames.inlined(node.frame) ? "inlined" : ""].filter((text) => text).join("   ")));
    }
    this.told.replaceChildren(...lines);
  }

  // Modules by the number of bytes they took part in, the nine largest with a colour of their own.
  rankGroups() {
    const { frames } = this.context;
    const of = this.column("stack");
    const bytes = this.isDiff ? this.column("after").map((after, i) => Math.abs(after - this.column("before")[i])) : this.column("bytes");
    const sums = new Map();
    let last = -1;
    let groups = new Set();
    for (let i = 0; i < of.length; i++) {
      if (of[i] !== last) {
        last = of[i];
        groups = new Set();
        for (let at = this.stacks.starts[last]; at < this.stacks.starts[last + 1]; at++) groups.add(frames.group(this.stacks.frames[at]));
      }
      for (const group of groups) sums.set(group, (sums.get(group) || 0) + bytes[i]);
    }
    const ranked = Array.from(sums.entries()).sort((a, b) => b[1] - a[1]);
    return new Map(ranked.slice(0, 9).map(([group], nth) => [group, nth]));
  }

  kindOf(node) {
    const sums = new Float64Array(this.context.header.kinds.length);
    const kinds = this.column("kind");
    const { order } = this.graph;
    for (let i = node.from; i < node.to; i++) {
      const stack = order[i];
      for (let at = this.starts[stack]; at < this.starts[stack + 1]; at++) sums[kinds[at]] += this.isDiff ? this.weights[stack] : this.column("bytes")[at] + 1e-6;
    }
    return sums.indexOf(Math.max(...sums));
  }

  colour(node) {
    if (this.colours === "change") {
      const part = node.value > 0 ? this.graph.changeOf(node) / node.value : 0;
      if (part === 0) return "";
      const strength = Math.abs(part) > 0.66 ? 3 : Math.abs(part) > 0.2 ? 2 : 1;
      return (part > 0 ? "grown" : "shrunk") + strength;
    }
    if (node.frame === null) return "";
    if (this.colours === "kind") return "c" + (this.kindOf(node) % 10);
    const nth = this.groups.get(this.context.frames.group(node.frame));
    return nth === undefined ? "" : "c" + nth;
  }

  showLegend() {
    const entry = (classes, text) => element("span", {}, element("span", { class: "swatch " + classes }), " " + text);
    let entries;
    if (this.colours === "change") {
      entries = [entry("grown3", "grown"), entry("shrunk3", "shrunk"), entry("", "both, or neither")];
    } else if (this.colours === "kind") {
      const present = new Set(this.column("kind"));
      entries = Array.from(present).map((kind) => entry("c" + (kind % 10), this.context.header.kinds[kind]));
    } else {
      entries = Array.from(this.groups).map(([group, nth]) => entry("c" + nth, shorten(this.context.strings[group]) || "no module"));
    }
    this.legend.replaceChildren(...entries);
  }

  searchSoon() {
    cancelAnimationFrame(this.soon);
    this.soon = requestAnimationFrame(() => this.find());
  }

  find() {
    const text = this.search.value.trim();
    if (!text) {
      this.graph.search(null);
      for (const table of this.tables) table.filter(null);
      this.result.textContent = "";
      return;
    }
    const { frames } = this.context;
    const found = frames.matching(text);
    const { starts, frames: all, count } = this.stacks;
    const hit = new Uint8Array(count);
    let sum = 0;
    for (let stack = 0; stack < count; stack++) {
      for (let at = starts[stack]; at < starts[stack + 1] && !hit[stack]; at++) hit[stack] = found[all[at]];
      if (hit[stack]) sum += this.weights[stack];
    }
    this.graph.search(found);
    const wanted = text.toLowerCase();
    for (const table of this.tables) {
      table.filter((row) => table.rows.stacksOf(row).some((part) => hit[part.stack]) || table.rows.text(row).toLowerCase().includes(wanted));
    }
    const matches = found.reduce((sum, one) => sum + one, 0);
    this.result.textContent = matches === 0 ? "no frame matches" : formatCount(matches) + (matches === 1 ? " frame" : " frames") + " in stacks with " + this.format(sum) + ", " + formatPart(sum, this.graph.total);
  }

  reveal(stack) {
    this.graph.zoomToStack(stack);
    this.scroll.scrollIntoView({ block: "center" });
    this.graph.moveTo(this.graph.above, true);
  }
}

// The rows of a report by number.
function rowsOf(context, prefix) {
  const column = (name) => context.columns[prefix + "." + name];
  const string = (name) => (row) => context.strings[column(name)[row]];
  const firsts = (counts) => {
    const firsts = new Uint32Array(counts.length + 1);
    for (let row = 0; row < counts.length; row++) firsts[row + 1] = firsts[row] + counts[row];
    return firsts;
  };
  const label = string("label");
  const stackFirsts = firsts(column("stacks"));
  const rows = {
    count: column("label").length,
    label,
    place: string("place"),
    number: (name, row) => column(name)[row],
    stacksOf(row) {
      const parts = [];
      for (let at = stackFirsts[row]; at < stackFirsts[row + 1]; at++) {
        parts.push({ stack: column("stack.number")[at], bytes: column("stack.bytes")?.[at], count: column("stack.count")?.[at] });
      }
      return parts;
    },
  };
  if (context.page.what === "diff") {
    rows.kinds = string("kinds");
    rows.state = (row) => context.page.states[column("state")[row]];
    rows.text = (row) => label(row) + "\0" + rows.place(row) + "\0" + rows.kinds(row) + "\0" + rows.state(row);
    return rows;
  }
  rows.mark = string("mark");
  const shareFirsts = firsts(column("shares"));
  rows.shares = (row, dimension) => {
    const wanted = context.page.dimensions.indexOf(dimension);
    const found = [];
    for (let at = shareFirsts[row]; at < shareFirsts[row + 1]; at++) {
      if (column("share.dimension")[at] !== wanted) continue;
      found.push({ name: context.strings[column("share.name")[at]], bytes: column("share.bytes")[at], count: column("share.count")[at] });
    }
    return found.sort((a, b) => b.bytes - a.bytes || b.count - a.count);
  };
  rows.names = (row, dimension) => rows.shares(row, dimension).map((share) => share.name).join(", ");
  rows.text = (row) => [label(row), rows.place(row), rows.mark(row), rows.names(row, "kinds"), rows.names(row, "devices")].join("\0");
  return rows;
}

// A long name keeps its beginning and its end; all of it stands in the row's detail.
function shorten(name) {
  return name.length <= 120 ? name : name.slice(0, 80) + "…" + name.slice(-39);
}

// Where there is no room for a column of places, each stands below its name.
function narrowPlace(rows, row) {
  return element("div", { class: "narrow quiet" }, shorten(rows.place(row)));
}

function exact(bytes) {
  return formatCount(bytes) + " bytes";
}

function numberCell(text, name, value) {
  return element("span", { ["data-" + name]: value, title: name === "bytes" ? exact(value) : null }, text);
}

function showRows(context, rows, process, stacks, view, host, label) {
  const number = (name) => (row) => rows.number(name, row);
  const bytes = { title: "Size", classes: "number", key: number("bytes"), cell: (row) => numberCell(formatBytes(rows.number("bytes", row)), "bytes", rows.number("bytes", row)) };
  const count = { title: "Blocks", classes: "number", key: number("count"), cell: (row) => numberCell(formatBlocks(rows.number("count", row), rows.number("claims", row)), "count", rows.number("count", row)) };
  const site = {
    title: process.by === "site" ? "Call site" : "Row",
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
  const detail = (row) => rowDetail(context, rows, row, stacks, view);
  const table = new Table(host, { label, columns, count: rows.count, detail, opener: site });
  table.rows = rows;
  if (rows.count === 0) host.prepend(element("p", { class: "quiet" }, "nothing to list"));
  return table;
}

function rowDetail(context, rows, row, stacks, view) {
  const number = (name) => rows.number(name, row);
  const range = number("smallest") === number("largest") ? formatBytes(number("smallest")) : formatBytes(number("smallest")) + " to " + formatBytes(number("largest"));
  const age = number("count") === 1 ? formatDuration(number("oldest")) + " old" : "oldest " + formatDuration(number("oldest")) + ", newest " + formatDuration(number("newest"));
  const list = [["name", rows.label(row)], ["size", exact(number("bytes")) + " in " + formatBlocks(number("count"), number("claims"))], ["each", range]];
  const titles = { kinds: "kind", devices: "device", streams: "stream", threads: "thread", apis: "asked with" };
  for (const dimension of context.page.dimensions) {
    const shares = rows.shares(row, dimension);
    const text = shares.length === 1 ? shares[0].name : shares.map((share) => share.name + " (" + formatBytes(share.bytes) + " in " + formatCount(share.count) + ")").join(", ");
    if (text) list.push([titles[dimension], text]);
  }
  list.push(["age", age]);
  const parts = rows.stacksOf(row);
  const shown = parts.map((part) => [
    element(
      "h3",
      {},
      formatBytes(part.bytes) + " in " + formatBlocks(part.count, 0) + " ",
      element("button", { type: "button", onclick: () => view.reveal(part.stack) }, "show in graph"),
    ),
    stackList(context, stacks, part.stack),
  ]);
  const others = number("stacks_in_all") - parts.length;
  const more = others > 0 ? element("p", { class: "quiet" }, "and " + formatCount(others) + (others === 1 ? " other way" : " other ways") + " to it; search for its name to see them in the graph") : null;
  return [facts(list), ...shown, more];
}

// A stack's frames, the innermost first, as in a terminal.
function stackList(context, stacks, stack) {
  const { frames } = context;
  const items = [];
  for (let at = stacks.starts[stack + 1] - 1; at >= stacks.starts[stack]; at--) {
    const frame = stacks.frames[at];
    const place = (frames.path(frame) || frames.module(frame)) + (frames.inlined(frame) ? " (inlined)" : "");
    items.push(element("li", { class: frames.isUsers(frame) ? null : "foreign", title: frames.full(frame) }, frames.name(frame), element("span", { class: "at" }, place)));
  }
  if (items.length === 0) items.push(element("li", { class: "quiet" }, "(recorded without a stack)"));
  if (stacks.truncated[stack]) items.push(element("li", { class: "quiet" }, "… (the stack was cut here)"));
  return element("ol", { class: "stack code" }, items);
}

function showDiff(context) {
  const { page } = context;
  const stacks = readStacks(context.columns, "0.stacks");
  main.append(element("p", { class: "headline" }, page.headline), ...page.warnings.map((warning) => element("p", { class: "warning" }, warning)));
  main.append(facts(page.totals, "sums"));
  const view = new View(context, stacks, "0.samples", main, null);
  const rows = rowsOf(context, "0.rows");
  const host = element("div");
  section(main, page.by === "site" ? "Call sites" : "Stacks", host);
  const change = (row) => rows.number("after", row) - rows.number("before", row);
  const counted = (row) => rows.number("after_count", row) - rows.number("before_count", row);
  const tone = (value) => (value > 0 ? "grown" : value < 0 ? "shrunk" : "quiet");
  const site = { title: "Call site", classes: "site code", textual: true, key: rows.label, cell: (row) => ({ name: shorten(rows.label(row)), rest: [rows.number("pool", row) ? element("span", { class: "mark" }, "[pool]") : null, narrowPlace(rows, row)] }) };
  const columns = [
    { title: "Change", classes: "number", key: change, cell: (row) => element("span", { class: tone(change(row)), "data-bytes": change(row), title: exact(change(row)) }, withSign(change(row), formatBytes)) },
    { title: "Blocks", classes: "number", key: counted, cell: (row) => element("span", { class: tone(counted(row)), "data-count": counted(row) }, withSign(counted(row), formatCount)) },
    { title: "", classes: "", textual: true, key: rows.state, cell: rows.state },
    site,
    { title: "Place", classes: "site code wide", textual: true, key: rows.place, cell: (row) => shorten(rows.place(row)) },
    { title: "After", classes: "number wide", key: (row) => rows.number("after", row), cell: (row) => numberCell(formatBytes(rows.number("after", row)), "bytes-after", rows.number("after", row)) },
    { title: "Before", classes: "number wide", key: (row) => rows.number("before", row), cell: (row) => numberCell(formatBytes(rows.number("before", row)), "bytes-before", rows.number("before", row)) },
    { title: "Kind", classes: "wide", textual: true, key: rows.kinds, cell: rows.kinds },
  ];
  columns[2].title = "State";
  const detail = (row) => {
    const list = [
      ["name", rows.label(row)],
      ["before", exact(rows.number("before", row)) + " in " + formatBlocks(rows.number("before_count", row), 0)],
      ["after", exact(rows.number("after", row)) + " in " + formatBlocks(rows.number("after_count", row), 0)],
      ["kind", rows.kinds(row)],
    ];
    const parts = rows.stacksOf(row).slice(0, 20);
    const shown = parts.map((part) => [element("h3", {}, element("button", { type: "button", onclick: () => view.reveal(part.stack) }, "show in graph")), stackList(context, stacks, part.stack)]);
    const others = rows.stacksOf(row).length - parts.length;
    return [facts(list), ...shown, others > 0 ? element("p", { class: "quiet" }, "and " + formatCount(others) + " other ways to it") : null];
  };
  const table = new Table(host, { label: "Changes", columns, count: rows.count, detail, opener: site });
  table.rows = rows;
  view.tables.push(table);
  if (rows.count === 0) host.prepend(element("p", { class: "quiet" }, "nothing changed"));
  if (page.hidden_rows > 0) host.append(element("p", { class: "quiet" }, formatCount(page.hidden_rows) + " more rows were left out by --top or --min-bytes"));
  section(main, "What could not be seen");
  for (const [nth, side] of ["before", "after"].entries()) main.append(element("h3", {}, side), facts(page.honesty[nth], "sums honesty"));
  view.start();
}
