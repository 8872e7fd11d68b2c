// The page of `culeak why`: holders as a table, the tree of retained memory, and the sums.
"use strict";

pages.why = (context) => {
  const { page } = context;
  const { holders } = page;
  main.append(element("p", { class: "headline" }, page.headline));
  const host = element("div");
  section(main, "Held by", host);
  const holder = { title: "Holder", classes: "site code", textual: true, key: (row) => holders[row].text, cell: (row) => ({ name: holders[row].text, rest: null }) };
  const columns = [
    { title: "Size", classes: "number", key: (row) => holders[row].bytes, cell: (row) => numberCell(formatBytes(holders[row].bytes), "bytes", holders[row].bytes) },
    { title: "Blocks", classes: "number", key: (row) => holders[row].count, cell: (row) => numberCell(formatBlocks(holders[row].count, 0), "count", holders[row].count) },
    holder,
    { title: "Class", classes: "wide", textual: true, key: (row) => holders[row].class, cell: (row) => holders[row].class },
  ];
  const detail = (row) => {
    const rows = holders[row].rows.map((part) => ({ ...part, text: [part.label, part.place, part.path, part.also].filter((text) => text).join("  ") }));
    const hidden = holders[row].hidden_rows;
    return [holderList(rows), hidden > 0 ? element("p", { class: "quiet" }, "and " + plural(hidden, "more row", "more rows")) : null];
  };
  const search = element("input", { type: "search", placeholder: "holder, call site or path", "aria-label": "Search" });
  host.append(element("p", { class: "tools" }, search));
  const table = new Table(host, { label: "Holders", columns, count: holders.length, detail, opener: holder });
  const texts = holders.map((each) => [each.text, ...each.rows.flatMap((row) => [row.label, row.place, row.path, row.also])].join("\0").toLowerCase());
  search.oninput = () => {
    const wanted = search.value.toLowerCase();
    table.filter(wanted ? (row) => texts[row].includes(wanted) : null);
  };
  if (holders.length === 0) host.append(element("p", { class: "quiet" }, "nothing to list"));
  if (page.hidden) host.append(element("p", { class: "quiet" }, page.hidden));
  showRetained(page.retainers, main);
  section(main, "Totals", facts(page.totals, "sums"));
  main.append(element("p", {}, element("span", { class: "quiet" }, "next: "), element("code", {}, page.next)));
};
