// The page of a diff: growth in red and shrinkage in blue, by stack and by row.
"use strict";

pages.diff = (context) => {
  const { page } = context;
  const stacks = readStacks(context.columns, "0.stacks");
  main.append(element("p", { class: "headline" }, page.headline), ...page.warnings.map((warning) => element("p", { class: "warning" }, warning)));
  const rows = rowsOf(context, "0.rows");
  const finder = element("div", { class: "tools finder" });
  const host = element("div");
  const found = element("div");
  main.append(found);
  section(found, page.by === "site" ? "Call sites" : "Stacks", finder, host);
  const view = new View(context, stacks, "0.samples", found, { places: [], title: "What changed, by stack", finder });
  const change = (row) => rows.number("after", row) - rows.number("before", row);
  const counted = (row) => rows.number("after_count", row) - rows.number("before_count", row);
  const estimated = (row) => rows.number("estimated", row);
  const side = (name, row) => numberCell(formatAbout(formatBytes(rows.number(name, row)), estimated(row)), "bytes-" + name, rows.number(name, row));
  const tone = (value) => (value > 0 ? "grown" : value < 0 ? "shrunk" : "quiet");
  const site = { title: "Call site", classes: "site code", textual: true, key: rows.label, cell: (row) => ({ name: shorten(rows.label(row)), rest: [rows.number("pool", row) ? element("span", { class: "mark" }, "[pool]") : null, narrowPlace(rows, row)] }) };
  const columns = [
    { title: "Change", classes: "number", key: change, cell: (row) => element("span", { class: tone(change(row)), "data-bytes": change(row), title: exact(change(row)) }, formatEstimate(withSign(change(row), formatBytes), estimated(row))) },
    { title: "Blocks", classes: "number", key: counted, cell: (row) => element("span", { class: tone(counted(row)), "data-count": counted(row) }, formatAbout(withSign(counted(row), formatCount), estimated(row))) },
    { title: "State", textual: true, key: rows.state, cell: rows.state },
    site,
    { title: "Place", classes: "site code wide", textual: true, key: rows.place, cell: (row) => shorten(rows.place(row)) },
    { title: "After", classes: "number wide", key: (row) => rows.number("after", row), cell: (row) => side("after", row) },
    { title: "Before", classes: "number wide", key: (row) => rows.number("before", row), cell: (row) => side("before", row) },
    { title: "Kind", classes: "wide", textual: true, key: rows.kinds, cell: rows.kinds },
  ];
  const memory = (name, row) => formatAbout(exact(rows.number(name, row)), estimated(row)) + " in " + formatAbout(formatBlocks(rows.number(name + "_count", row), 0), estimated(row));
  const detail = (row) => {
    const list = [
      ["name", rows.label(row)],
      ["before", memory("before", row)],
      ["after", memory("after", row)],
      ["kind", rows.kinds(row)],
    ];
    const heading = (part) => element("h3", {}, element("button", { type: "button", onclick: () => view.reveal(part.stack) }, "show in graph"));
    return [facts(list), stackLists(context, stacks, rows.stacksOf(row), heading)];
  };
  const table = new Table(host, { label: "Changes", columns, count: rows.count, detail, opener: site });
  table.rows = rows;
  view.tables.push(table);
  if (rows.count === 0) host.prepend(element("p", { class: "quiet" }, "nothing changed"));
  if (page.hidden_rows > 0) host.append(element("p", { class: "quiet" }, plural(page.hidden_rows, "more row", "more rows") + " left out by --top or --min-bytes"));
  if (page.objects.length > 0) section(main, "Objects without an address", element("ul", {}, page.objects.map((line) => element("li", {}, line))));
  section(main, "Totals", facts(page.totals, "sums"));
  section(main, "Not recorded");
  for (const [nth, side] of ["before", "after"].entries()) main.append(element("h3", {}, side), ...losses(...page.losses[nth]));
  view.start();
};
