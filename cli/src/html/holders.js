// What holds memory: the holders of a call site, and a tree of what would be freed with what.
"use strict";

// Memory and what holds it, one per line.
function holderList(lines) {
  const items = lines.map((line) => element("li", { "data-bytes": line.bytes }, element("b", {}, formatBytes(line.bytes)), " in " + formatBlocks(line.count, 0) + "  ", line.text));
  return element("ul", { class: "holders code" }, items);
}

// A tree whose branches are made when they are opened: there may be thousands. Nodes are in the order of the tree.
function retainedTree(nodes) {
  const largest = nodes.reduce((most, node) => Math.max(most, node.bytes), 1);
  const end = (at) => {
    let next = at + 1;
    while (next < nodes.length && nodes[next].depth > nodes[at].depth) next++;
    return next;
  };
  const list = (from, to) => {
    const items = [];
    for (let at = from; at < to; at = end(at)) items.push(item(at));
    return element("ul", { class: "retained" }, items);
  };
  const item = (at) => {
    const node = nodes[at];
    const bar = element("span");
    bar.style.width = (100 * node.bytes) / largest + "%";
    const text = [element("span", { class: "fill" }, bar), element("b", {}, formatBytes(node.bytes)), element("span", { class: "quiet" }, " in " + formatBlocks(node.count, 0) + " "), element("span", { class: "code" }, shorten(node.name))];
    const last = end(at);
    if (last === at + 1) return element("li", { class: "leaf", "data-bytes": node.bytes, title: node.name }, text);
    const details = element("details", {}, element("summary", { title: node.name }, text));
    const fill = () => details.childElementCount === 1 && details.append(list(at + 1, last));
    details.addEventListener("toggle", () => details.open && fill());
    if (node.depth === 0 && nodes.length <= 100) {
      fill();
      details.open = true;
    }
    return element("li", { "data-bytes": node.bytes }, details);
  };
  return list(0, nodes.length);
}

function showRetained(nodes, host) {
  if (nodes.length === 0) return;
  section(host, "What would be freed", element("p", { class: "quiet" }, "Dropping a holder frees what is shown beside it, including what is below it."), retainedTree(nodes));
}
