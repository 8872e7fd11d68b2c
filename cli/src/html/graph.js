// Stacks as an icicle graph: callers above callees; the width is the memory allocated below a frame.
//
// Stacks are sorted, so every frame is a range of stacks, and its callees are the runs of equal frames one level down.
// The page builds no tree of all stacks: d3-hierarchy lays out the visible ranges, and d3-selection puts them on the page
// as elements that take the focus and that screen readers read. Frames are functions; on request, the lines of a function are apart. Callees that are too narrow to be drawn form groups,
// which open like frames. The inverted view does the same with stacks sorted from the innermost frame.
"use strict";

const ROW_HEIGHT = 19;
// In pixels. Narrower callees are grouped.
const NARROWEST = 5;
// The most rows below the zoomed frame; zooming in shows deeper ones. A damaged file may be deeper.
const DEEPEST = 400;

class Graph {
  // `point` is called with the node under the pointer or focus; `colour` returns the class of a node.
  constructor(host, stacks, frames, { point, colour, describe }) {
    this.host = host;
    this.stacks = stacks;
    this.frames = frames;
    this.point = point;
    this.colour = colour;
    this.describe = describe;
    this.inverted = false;
    this.byLine = false;
    this.zoomed = [];
    this.found = null;
    this.nodes = [];
    this.current = 0;
    host.setAttribute("role", "tree");
    host.addEventListener("click", (event) => this.at(event, (nth) => this.zoomTo(this.nodes[nth])));
    host.addEventListener("pointerover", (event) => this.at(event, (nth) => point(this.nodes[nth].data)));
    host.addEventListener("pointerleave", () => point(this.top()));
    host.addEventListener("focusin", (event) => this.at(event, (nth) => this.moveTo(nth, false)));
    host.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => {
      if (host.clientWidth !== this.width && host.clientWidth > 0) this.draw();
    }).observe(host);
  }

  at(event, act) {
    const nth = this.elements ? this.elements.indexOf(event.target) : -1;
    if (nth >= 0) act(nth);
  }

  // Sets the weight of each stack, and its change in a diff.
  weigh(weights, changes) {
    this.weights = weights;
    this.changes = changes;
    this.sorted();
  }

  invert(inverted) {
    this.inverted = inverted;
    this.zoomed = [];
    this.sorted();
  }

  showLines(byLine) {
    this.byLine = byLine;
    this.zoomed = [];
    this.sorted();
  }

  sorted() {
    const { starts, count } = this.stacks;
    this.order = new Uint32Array(count);
    for (let n = 0; n < count; n++) this.order[n] = n;
    // Stacks come sorted by their frames, outermost first.
    if (this.inverted || !this.byLine) {
      this.order.sort((a, b) => {
        const [length, other] = [starts[a + 1] - starts[a], starts[b + 1] - starts[b]];
        for (let depth = 0; depth < length && depth < other; depth++) {
          const difference = this.frameAt(a, depth) - this.frameAt(b, depth);
          if (difference !== 0) return difference;
        }
        return length - other;
      });
    }
    this.sums = this.summed(this.weights);
    this.changed = this.changes ? this.summed(this.changes) : null;
  }

  summed(numbers) {
    const sums = new Float64Array(this.order.length + 1);
    for (let i = 0; i < this.order.length; i++) sums[i + 1] = sums[i] + numbers[this.order[i]];
    return sums;
  }

  // The change of a node.
  changeOf(node) {
    if (node.group) return node.group.reduce((sum, member) => sum + this.changeOf(member), 0);
    return this.changed[node.to] - this.changed[node.from];
  }

  get total() {
    return this.sums[this.order.length];
  }

  root() {
    return { from: 0, to: this.order.length, depth: 0, frame: null, value: this.total };
  }

  // The frame that is zoomed, else all stacks.
  top() {
    return this.nodes[this.above]?.data || this.root();
  }

  // The callees of a node, largest first.
  callees(node) {
    const { starts } = this.stacks;
    const callees = [];
    const { depth } = node;
    let from = node.from;
    while (from < node.to) {
      const stack = this.order[from];
      if (starts[stack + 1] - starts[stack] <= depth) {
        from++;
        continue;
      }
      const frame = this.frameAt(stack, depth);
      let to = from + 1;
      while (to < node.to && this.frameAt(this.order[to], depth) === frame) to++;
      const value = this.sums[to] - this.sums[from];
      if (value > 0) callees.push({ from, to, depth: depth + 1, frame, value, parent: node });
      from = to;
    }
    return callees.sort((a, b) => b.value - a.value || a.frame - b.frame);
  }

  frameAt(stack, depth) {
    const { starts, frames } = this.stacks;
    return this.shown(this.inverted ? frames[starts[stack + 1] - 1 - depth] : frames[starts[stack] + depth]);
  }

  // The frame that stands for this one.
  shown(frame) {
    return this.byLine ? frame : this.frames.functions[frame];
  }

  // File and line of a frame, or the file alone if it stands for several lines.
  placeOf(frame, place) {
    return this.byLine || !this.frames.hasLines(frame) ? place : place.replace(/:\d+$/, "");
  }

  // The callees of a node, or the members of a group, with narrow ones grouped.
  joined(node, narrowest) {
    const members = node.group || this.callees(node);
    const wide = members.filter((member) => member.value >= narrowest);
    let group = [];
    let value = 0;
    for (const member of members.slice(wide.length)) {
      group.push(member);
      value += member.value;
      if (value >= narrowest) {
        wide.push(this.grouped(group, node));
        group = [];
        value = 0;
      }
    }
    if (group.length > 0) wide.push(this.grouped(group, node));
    return wide;
  }

  depthOf(node) {
    return node.group ? node.group[0].depth : node.depth;
  }

  grouped(group, parent) {
    if (group.length === 1) return group[0];
    return { group, frame: null, value: group.reduce((sum, member) => sum + member.value, 0), parent };
  }

  // The path to a node: frames, and for groups the list of their frames.
  pathOf(node) {
    const path = [];
    for (let at = node; at.parent; at = at.parent) path.unshift(at.group ? at.group.map((member) => member.frame) : at.frame);
    return path;
  }

  follow(node, step) {
    const members = node.group || this.callees(node);
    if (!Array.isArray(step)) return members.find((member) => member.frame === step);
    const wanted = new Set(step);
    const group = members.filter((member) => wanted.has(member.frame));
    return group.length > 0 ? this.grouped(group, node) : undefined;
  }

  draw() {
    this.width = this.host.clientWidth;
    if (!this.width) return;
    // The path from the root to the zoomed frame, drawn at full width.
    const way = [this.root()];
    for (const step of this.zoomed) {
      const next = this.follow(way[way.length - 1], step);
      if (!next) break;
      // A member keeps its group as parent if the path goes through the group.
      next.parent = way[way.length - 1];
      way.push(next);
    }
    this.zoomed = this.zoomed.slice(0, way.length - 1);
    const top = way[way.length - 1];
    const narrowest = (top.value * NARROWEST) / this.width;
    const steps = new Map(way.map((node, nth) => [node, nth]));
    const below = (node) => {
      const next = way[steps.get(node) + 1];
      if (next) return [next];
      if (node.depth - this.depthOf(top) >= DEEPEST) return [];
      // A group opens when it is zoomed.
      if (node.group && node !== top) return [];
      const members = this.joined(node, narrowest);
      for (const member of members) member.parent = node;
      return members;
    };
    const tree = d3.hierarchy(way[0], below);
    tree.each((node) => {
      node.value = steps.has(node.data) ? top.value : node.data.value;
    });
    d3.partition().size([100, (tree.height + 1) * ROW_HEIGHT])(tree);
    this.nodes = top.value > 0 ? tree.descendants() : [];
    this.above = way.length - 1;
    this.host.style.height = (tree.height + 1) * ROW_HEIGHT + "px";
    this.host.setAttribute("aria-label", this.inverted ? "Stacks from the allocation outwards" : "Stacks from the outermost caller inwards");
    this.put();
    this.moveTo(Math.min(this.above, this.nodes.length - 1), false);
  }

  put() {
    const wide = (node) => ((node.x1 - node.x0) / 100) * this.width;
    const found = this.found && new Set(Array.from(this.found.keys()).filter((frame) => this.found[frame]).map((frame) => this.shown(frame)));
    const isFound = ({ data }) => found && (data.group || [data]).some((member) => member.frame !== null && found.has(member.frame));
    const classes = (node, nth) =>
      ["frame", this.colour(node.data, this), wide(node) < 24 ? "thin" : "", nth < this.above ? "above" : "", isFound(node) ? "found" : ""].join(" ");
    const boxes = d3
      .select(this.host)
      .classed("searching", this.found !== null)
      .selectAll("div")
      .data(this.nodes)
      .join("div")
      .attr("class", classes)
      .attr("role", "treeitem")
      .attr("tabindex", -1)
      .attr("aria-level", (node) => node.depth + 1)
      .attr("aria-label", (node) => this.describe(node.data))
      .style("left", (node) => node.x0 + "%")
      .style("top", (node) => node.y0 + "px")
      .style("width", (node) => node.x1 - node.x0 + "%")
      .text((node) => (wide(node) < 24 ? "" : this.label(node.data)));
    this.elements = boxes.nodes();
  }

  label(data) {
    if (data.group) return formatCount(data.group.length) + " frames";
    if (data.frame === null) return "all";
    const place = this.placeOf(data.frame, this.frames.place(data.frame));
    return this.frames.name(data.frame) + (place ? "  " + place : "");
  }

  zoomTo(node) {
    this.zoomed = this.pathOf(node.data);
    const hadFocus = this.host.contains(document.activeElement);
    this.draw();
    this.zoomChanged?.();
    if (hadFocus) this.moveTo(this.current, true);
  }

  // Zooms to a whole stack.
  zoomToStack(stack) {
    const { starts, frames } = this.stacks;
    const path = Array.from(frames.subarray(starts[stack], starts[stack + 1]), (frame) => this.shown(frame));
    this.zoomed = this.inverted ? path.reverse() : path;
    this.draw();
    this.zoomChanged?.();
  }

  zoomOut(all) {
    this.zoomed = all ? [] : this.zoomed.slice(0, -1);
    const hadFocus = this.host.contains(document.activeElement);
    this.draw();
    this.zoomChanged?.();
    if (hadFocus) this.moveTo(this.current, true);
  }

  search(found) {
    this.found = found;
    this.put();
    this.moveTo(this.current, false);
  }

  // Tab reaches one frame; the arrow keys move on from there.
  moveTo(nth, focus) {
    if (nth < 0 || nth >= this.nodes.length) return;
    this.elements[this.current]?.setAttribute("tabindex", -1);
    this.current = nth;
    this.elements[nth].setAttribute("tabindex", 0);
    if (focus) this.elements[nth].focus();
    if (focus || document.activeElement === this.elements[nth]) this.point(this.nodes[nth].data);
  }

  key(event) {
    const node = this.nodes[this.current];
    if (!node || event.ctrlKey || event.metaKey || event.altKey) return;
    const beside = (step) => {
      const row = this.nodes.filter((other) => other.depth === node.depth);
      return row[row.indexOf(node) + step];
    };
    const moves = {
      ArrowDown: () => node.children?.[0],
      ArrowUp: () => node.parent,
      ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1),
      Home: () => this.nodes[0],
    };
    if (event.key in moves) {
      const next = moves[event.key]();
      if (next) this.moveTo(this.nodes.indexOf(next), true);
    } else if (event.key === "Enter" || event.key === " ") {
      this.zoomTo(node);
    } else if (event.key === "Escape" && this.zoomed.length > 0) {
      this.zoomOut(false);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}
