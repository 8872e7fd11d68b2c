// Rows of a report or a diff, and the stacks in their details.
"use strict";

// The most frames listed of one stack; a damaged file may have more.
const MOST_FRAMES = 1000;
// The fewest frames of one library that become one line; the same as in the text.
const FOLDED = 3;

// Access to the rows of a report by index.
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
    rows.hasKind = (row, kind) => rows.kinds(row).split(", ").includes(kind);
    rows.state = (row) => context.page.states[column("state")[row]];
    rows.text = (row) => label(row) + "\0" + rows.place(row) + "\0" + rows.kinds(row) + "\0" + rows.state(row);
    return rows;
  }
  rows.mark = string("mark");
  const tallyFirsts = firsts(column("tallies"));
  rows.tallies = (row, dimension) => {
    const wanted = context.page.dimensions.indexOf(dimension);
    const found = [];
    for (let at = tallyFirsts[row]; at < tallyFirsts[row + 1]; at++) {
      if (column("tally.dimension")[at] !== wanted) continue;
      found.push({ name: context.strings[column("tally.name")[at]], bytes: column("tally.bytes")[at], count: column("tally.count")[at] });
    }
    return found.sort((a, b) => b.bytes - a.bytes || b.count - a.count);
  };
  rows.names = (row, dimension) => rows.tallies(row, dimension).map((tally) => tally.name).join(", ");
  rows.hasKind = (row, kind) => rows.tallies(row, "kinds").some((tally) => tally.name === kind);
  rows.text = (row) => [label(row), rows.place(row), rows.mark(row), rows.names(row, "kinds"), rows.names(row, "devices")].join("\0");
  return rows;
}

// On a narrow page the place is below the name.
function narrowPlace(rows, row) {
  return element("div", { class: "narrow quiet" }, shorten(rows.place(row)));
}

// The stacks of a row, a few at first and the others on demand. `heading` makes the heading of a stack.
const STACKS_AT_FIRST = 5;
const STACKS_AT_ONCE = 100;

function stackLists(context, stacks, parts, heading) {
  const host = element("div");
  const show = (from, to) => {
    host.append(...parts.slice(from, to).flatMap((part) => [heading(part), stackList(context, stacks, part.stack)]));
    const left = parts.length - to;
    if (left <= 0) return;
    const next = Math.min(left, STACKS_AT_ONCE);
    const text = next < left ? "Show " + next + " more of " + formatCount(parts.length) + " stacks" : "Show all " + formatCount(parts.length) + " stacks";
    const more = element("button", { type: "button", class: "more", onclick: () => {
      more.remove();
      const shown = host.childElementCount;
      show(to, to + next);
      host.children[shown]?.querySelector("button")?.focus();
    } }, text);
    host.append(more);
  };
  show(0, STACKS_AT_FIRST);
  return host;
}

// A stack's frames, innermost first.
function stackList(context, stacks, stack) {
  const { frames } = context;
  const items = [];
  const first = stacks.starts[stack + 1] - 1;
  const last = Math.max(stacks.starts[stack], first - MOST_FRAMES);
  let hasUsers = false;
  for (let at = first; at >= last; at--) hasUsers ||= frames.isUsers(stacks.frames[at]);
  for (let at = first; at >= last; at--) {
    const frame = stacks.frames[at];
    const library = frames.library(frame);
    let run = 1;
    while (library && at - run >= last && frames.library(stacks.frames[at - run]) === library) run++;
    if (hasUsers && run >= FOLDED) {
      items.push(element("li", { class: "foreign" }, library + ": " + formatCount(run) + " frames"));
      at -= run - 1;
      continue;
    }
    const place = (frames.path(frame) || frames.module(frame)) + (frames.inlined(frame) ? " (inlined)" : "");
    items.push(element("li", { class: frames.isUsers(frame) ? null : "foreign", title: frames.full(frame) }, frames.name(frame), element("span", { class: "at" }, place)));
  }
  const left = last - stacks.starts[stack];
  if (left > 0) items.push(element("li", { class: "quiet" }, "… and " + formatCount(left) + " more"));
  if (items.length === 0) items.push(element("li", { class: "quiet" }, "(recorded without a stack)"));
  if (stacks.truncated[stack]) items.push(element("li", { class: "quiet" }, "… (the stack was cut here)"));
  return element("ol", { class: "stack code" }, items);
}
