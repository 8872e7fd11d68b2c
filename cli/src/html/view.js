// The graph with its controls: the meaning of widths and colours, the search, and the details of a frame.
"use strict";

// The search also filters the tables.
class View {
  // `name` is part of the ids of its controls. `title` is its heading, if it has one. `finder`: where the search goes that also
  // filters tables; else it is beside the other controls.
  constructor(context, stacks, samples, host, { places, name, title, finder }) {
    this.context = context;
    this.stacks = stacks;
    this.tables = [];
    this.isDiff = context.page.is_diff;
    this.column = (name) => context.columns[samples + "." + name];
    this.starts = new Uint32Array(stacks.count + 1);
    const of = this.column("stack");
    for (const stack of of) this.starts[stack + 1]++;
    for (let n = 0; n < stacks.count; n++) this.starts[n + 1] += this.starts[n];
    this.measure = "bytes";
    this.width = "change";
    this.place = -1;
    this.kind = -1;
    this.build(host, places, name || "", title, finder);
  }

  build(host, places, ownName, title, finder) {
    const { frames } = this.context;
    const choice = (label, options, act) => {
      const made = options.map(([value, text]) => element("option", { value }, text));
      const id = "choose-" + ownName + label.toLowerCase();
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
    const lines = element("input", { type: "checkbox", onchange: (event) => this.showLines(event.target.checked) });
    const tools = [
      choice("Width", [["bytes", "bytes"], ["count", "blocks"]], (value) => this.weighAgain(() => (this.measure = value))),
    ];
    if (this.isDiff) {
      tools.push(choice("of", [["change", "the change"], ["after", "what is held after"], ["before", "what was held before"]], (value) => this.weighAgain(() => (this.width = value))));
    } else if (places.length > 1) {
      const named = places.map((place, number) => [String(number), place]);
      tools.push(choice("in", [["-1", "all places"], ...named], (value) => this.weighAgain(() => (this.place = Number(value)))));
    }
    const finding = [this.search];
    const kinds = Array.from(new Set(this.column("kind"))).sort((a, b) => a - b);
    if (kinds.length > 1) {
      const named = kinds.map((kind) => [String(kind), this.context.header.kinds[kind]]);
      finding.push(choice("Kind", [["-1", "all kinds"], ...named], (value) => {
        this.weighAgain(() => (this.kind = Number(value)));
        this.find();
      }));
    }
    finding.push(this.result);
    this.owners = this.rankOwners();
    this.groups = this.rankGroups();
    this.rankSites();
    const colours = [["site", "call site"], ["kind", "kind of memory"]];
    // With a single module or owner these would show nothing.
    if (this.groups.size > 1) colours.unshift(["module", "module"]);
    if (this.owners.size > 1) colours.push(["owner", "owner"]);
    if (this.isDiff) colours.unshift(["change", "change"]);
    this.colours = colours[0][0];
    tools.push(
      choice("Colour", colours, (value) => {
        this.colours = value;
        this.graph.draw();
        this.showLegend();
      }),
      element("label", {}, inverted, "Inverted"),
      element("label", {}, lines, "Lines"),
      this.reset,
    );
    finder?.append(...finding);
    this.legend = element("div", { class: "legend" });
    this.details = element("div", { class: "details" });
    this.canvas = element("div", { class: "graph", id: ownName + "graph" });
    this.scroll = element("div", { class: "scroll" }, this.canvas);
    if (title) host.append(element("h2", {}, title));
    host.append(element("div", { class: "tools" }, finder ? tools : [...finding, ...tools]), this.legend, this.scroll, this.details);
    this.graph = new Graph(this.canvas, this.stacks, frames, {
      point: (node) => this.showDetails(node),
      colour: (node) => this.colour(node),
      describe: (node) => this.describe(node),
    });
    this.graph.zoomChanged = () => {
      this.reset.disabled = this.graph.zoomed.length === 0;
      this.scroll.scrollTop = 0;
      this.showDetails(this.graph.top());
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
    if (this.search.value) this.find();
  }

  // Filters these tables too; their rows lead to the graph.
  filters(tables) {
    this.tables = tables;
    for (const table of tables) {
      table.opening = (row) => {
        const stack = this.largestOf(row.line.querySelector(".site .name")?.textContent, row.line.querySelector(".site .at")?.textContent ?? "");
        if (stack === null) return;
        const reveal = () => this.reveal(stack);
        row.below.firstElementChild.prepend(element("button", { type: "button", onclick: reveal }, "show in graph"));
      };
    }
  }

  // The stack with the most memory that has this frame; null: none.
  largestOf(name, place) {
    const { frames } = this.context;
    const { starts, frames: all, count } = this.stacks;
    const isWanted = Uint8Array.from({ length: frames.count }, (_, frame) => frames.name(frame) === name && frames.place(frame) === place);
    let largest = null;
    for (let stack = 0; stack < count; stack++) {
      if (!all.subarray(starts[stack], starts[stack + 1]).some((frame) => isWanted[frame])) continue;
      if (largest === null || this.weights[stack] > this.weights[largest]) largest = stack;
    }
    return largest;
  }

  // Whether a row has memory of the selected kind.
  isOfKind(table, row) {
    const column = table.column("kind");
    return this.kind < 0 || column < 0 || table.cell(row, column).textContent.split(", ").includes(this.context.header.kinds[this.kind]);
  }

  // Computes the weight of each stack from the selected measure, place and kind.
  measured() {
    const { count } = this.stacks;
    const of = this.column("stack");
    const bytes = this.measure === "bytes";
    this.weights = new Float64Array(count);
    if (this.isDiff) {
      const kinds = this.column("kind");
      const before = this.column(bytes ? "before" : "before_count");
      const after = this.column(bytes ? "after" : "after_count");
      this.changes = new Float64Array(count);
      for (let i = 0; i < of.length; i++) {
        if (this.kind >= 0 && kinds[i] !== this.kind) continue;
        const change = after[i] - before[i];
        this.changes[of[i]] += change;
        this.weights[of[i]] += this.width === "change" ? Math.abs(change) : (this.width === "after" ? after : before)[i];
      }
      return;
    }
    const values = this.column(bytes ? "bytes" : "count");
    const place = this.column("place");
    const kinds = this.column("kind");
    for (let i = 0; i < of.length; i++) {
      if ((this.place < 0 || place[i] === this.place) && (this.kind < 0 || kinds[i] === this.kind)) this.weights[of[i]] += values[i];
    }
  }

  format(value) {
    return this.measure === "bytes" ? formatBytes(value) : formatBlocks(value);
  }

  invert(inverted) {
    this.graph.invert(inverted);
    this.graph.draw();
    this.graph.zoomChanged();
  }

  showLines(byLine) {
    this.graph.showLines(byLine);
    this.graph.draw();
    this.graph.zoomChanged();
  }

  size(node) {
    const part = this.format(node.value) + ", " + formatPart(node.value, this.graph.total);
    if (!this.isDiff) return part;
    const change = withSign(this.graph.changeOf(node), (value) => this.format(value));
    return this.width === "change" ? change + " (" + this.format(node.value) + " of changes, " + formatPart(node.value, this.graph.total) + ")" : part + " (" + change + ")";
  }

  describe(node) {
    const { frames } = this.context;
    const rest = node.group ? formatCount(node.group.length) + " narrow frames" : "all stacks";
    const place = node.frame === null ? "" : this.graph.placeOf(node.frame, frames.place(node.frame));
    const name = node.frame === null ? rest : frames.name(node.frame) + (place ? ", " + place : "");
    return name + ": " + this.size(node);
  }

  // Shows the details of a node.
  showDetails(node) {
    const { frames } = this.context;
    const lines = [element("div", {}, element("strong", {}, this.size(node)))];
    if (node.group) {
      const names = node.group.slice(0, 8).map((member) => frames.name(member.frame));
      const more = node.group.length > names.length ? " …" : "";
      lines.push(element("div", { class: "quiet" }, formatCount(node.group.length) + " frames that are too narrow to draw; click or press enter to see them"), element("div", { class: "code" }, names.join("  ") + more));
    } else if (node.frame === null) {
      lines.push(element("div", { class: "quiet" }, "all stacks; point at a frame for details, click to zoom in, press escape to zoom out"));
    } else {
      const path = this.graph.placeOf(node.frame, frames.path(node.frame));
      lines.push(element("div", { class: "code" }, frames.full(node.frame)), element("div", { class: "quiet code" }, [path, frames.module(node.frame), frames.inlined(node.frame) ? "inlined" : ""].filter((text) => text).join("   ")));
    }
    this.details.replaceChildren(...lines);
  }

  // The bytes of each sample; in a diff, those of its change.
  bytesOfSamples() {
    return this.isDiff ? this.column("after").map((after, i) => Math.abs(after - this.column("before")[i])) : this.column("bytes");
  }

  // The nine modules with the most bytes in their stacks; each gets a colour.
  rankGroups() {
    const { frames } = this.context;
    const of = this.column("stack");
    const bytes = this.bytesOfSamples();
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

  // The call site of each stack: its innermost frame in the program's own code, else its innermost frame. The nine call sites
  // with the most bytes get a colour.
  rankSites() {
    const { frames } = this.context;
    const { starts, frames: all, count } = this.stacks;
    this.siteOf = new Int32Array(count).fill(-1);
    for (let stack = 0; stack < count; stack++) {
      let at = starts[stack + 1] - 1;
      const innermost = at;
      while (at > starts[stack] && !frames.isUsers(all[at])) at--;
      if (innermost >= starts[stack]) this.siteOf[stack] = all[frames.isUsers(all[at]) ? at : innermost];
    }
    const sums = new Map();
    const bytes = this.bytesOfSamples();
    this.column("stack").forEach((stack, i) => sums.set(this.siteOf[stack], (sums.get(this.siteOf[stack]) || 0) + bytes[i]));
    const ranked = Array.from(sums.entries()).sort((a, b) => b[1] - a[1]);
    this.sites = new Map(ranked.slice(0, 9).map(([site], nth) => [site, nth]));
    this.moreSites = ranked.length > 9;
  }

  // The call site that all of a node's memory has, if it is one.
  onlySite(node) {
    let site;
    for (let i = node.from; i < node.to; i++) {
      const stack = this.graph.order[i];
      if (this.weights[stack] === 0) continue;
      if (site !== undefined && site !== this.siteOf[stack]) return undefined;
      site = this.siteOf[stack];
    }
    return site;
  }

  // Owners of memory (the program, CUDA's libraries, allocators), those with the most bytes first.
  rankOwners() {
    const owners = this.column("owner");
    const bytes = this.isDiff ? this.column("after") : this.column("bytes");
    const sums = new Map();
    for (let i = 0; i < owners.length; i++) sums.set(owners[i], (sums.get(owners[i]) || 0) + bytes[i]);
    const ranked = Array.from(sums.entries()).sort((a, b) => b[1] - a[1]);
    return new Map(ranked.map(([owner], nth) => [owner, nth]));
  }

  // The value of a column that most of a node's memory has.
  mostly(node, column) {
    const sums = new Map();
    const values = this.column(column);
    const kinds = this.column("kind");
    const bytes = this.isDiff ? null : this.column("bytes");
    const { order } = this.graph;
    for (let i = node.from; i < node.to; i++) {
      const stack = order[i];
      for (let at = this.starts[stack]; at < this.starts[stack + 1]; at++) {
        if (this.kind >= 0 && kinds[at] !== this.kind) continue;
        sums.set(values[at], (sums.get(values[at]) || 0) + (this.isDiff ? this.weights[stack] : bytes[at] + 1e-6));
      }
    }
    let most;
    for (const [value, sum] of sums) {
      if (most === undefined || sum > sums.get(most)) most = value;
    }
    return most;
  }

  colour(node) {
    if (this.colours === "change") {
      const part = node.value > 0 ? this.graph.changeOf(node) / node.value : 0;
      if (part === 0) return "";
      const strength = Math.abs(part) > 0.66 ? 3 : Math.abs(part) > 0.2 ? 2 : 1;
      return (part > 0 ? "grown" : "shrunk") + strength;
    }
    // A group has a paler colour of its largest member.
    if (node.group) return this.colour(node.group[0]) + " group";
    if (node.frame === null) return "";
    if (this.colours === "kind") return "c" + (this.mostly(node, "kind") % 10);
    if (this.colours === "owner") return this.ownerColour(this.mostly(node, "owner"));
    if (this.colours === "site") {
      const nth = this.sites.get(this.onlySite(node));
      return nth === undefined ? "" : "c" + nth;
    }
    const nth = this.groups.get(this.context.frames.group(node.frame));
    return nth === undefined ? "" : "c" + nth;
  }

  // Memory of the program itself has no colour.
  ownerColour(owner) {
    return owner ? "c" + (this.owners.get(owner) % 10) : "";
  }

  showLegend() {
    const entry = (classes, text) => element("span", {}, element("span", { class: "swatch " + classes }), " " + text);
    let entries;
    if (this.colours === "change") {
      entries = [entry("grown3", "grown"), entry("shrunk3", "shrunk"), entry("", "both, or neither")];
    } else if (this.colours === "kind") {
      const present = new Set(this.column("kind"));
      entries = Array.from(present).map((kind) => entry("c" + (kind % 10), this.context.header.kinds[kind]));
    } else if (this.colours === "owner") {
      entries = Array.from(this.owners.keys()).map((owner) => entry(this.ownerColour(owner), this.context.strings[owner] || "the program itself"));
    } else if (this.colours === "site") {
      const { frames } = this.context;
      const name = (site) => (site < 0 ? "(recorded without a stack)" : [frames.name(site), frames.place(site)].filter((text) => text).join(" "));
      entries = Array.from(this.sites).map(([site, nth]) => entry("c" + nth, shorten(name(site))));
      if (this.sites.size > 1) entries.push(entry("", this.moreSites ? "several, or another" : "several"));
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
      for (const table of this.tables) table.filter(this.kind < 0 ? null : (row) => this.isOfKind(table, row));
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
      table.filter((row) => this.isOfKind(table, row) && table.text(row).includes(wanted));
    }
    const matches = found.reduce((sum, one) => sum + one, 0);
    this.result.textContent = matches === 0 ? "no frame matches" : plural(matches, "frame", "frames") + " in stacks with " + this.format(sum) + ", " + formatPart(sum, this.graph.total);
  }

  reveal(stack) {
    this.graph.zoomToStack(stack);
    this.scroll.scrollIntoView({ block: "center" });
    this.graph.moveTo(this.graph.above, true);
  }
}
