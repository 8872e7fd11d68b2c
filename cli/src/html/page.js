// Starts the page: gives its tables their functions, reads the data of its graphs and shows them.
"use strict";

const statusLine = document.getElementById("status");

document.getElementById("theme").onchange = (event) => {
  document.documentElement.dataset.theme = event.target.value;
};

// "/" focuses the search field.
document.addEventListener("keydown", (event) => {
  const writing = event.target.closest?.("input, select, textarea");
  const search = main.querySelector('section:not(.hidden) input[type="search"]');
  if (event.key === "/" && !writing && search && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    search.focus();
  }
});

start().catch((error) => {
  statusLine.textContent =
    "The graphs of this page could not be read (" + error.message + "). They need a browser with DecompressionStream: Chrome 80, Firefox 113, Safari 16.4 or newer.";
});

async function start() {
  const sections = Array.from(main.querySelectorAll("section.process"));
  for (const each of sections) each.tables = tablesIn(each);
  const source = document.getElementById("data");
  let context = null;
  if (source.textContent) {
    statusLine.textContent = "Reading …";
    const { header, columns } = await readData(source.textContent);
    context = { header, columns, page: header.page, strings: header.strings, frames: new Frames(columns, header.strings) };
  } else {
    for (const each of sections) if (each.tables.length > 0) searchOf(each.tables);
  }
  source.remove();
  const show = (number) => {
    sections.forEach((each, nth) => each.classList.toggle("hidden", nth !== number));
    if (context && !sections[number].shown) showGraphs(context, number, sections[number]);
    sections[number].shown = true;
  };
  if (sections.length > 1) {
    const options = sections.map((each, number) => element("option", { value: number }, each.dataset.name));
    const id = "choose-process";
    main.prepend(element("p", {}, element("label", { for: id }, "Process"), " ", element("select", { id, onchange: (event) => show(Number(event.target.value)) }, options)));
  }
  show(0);
  statusLine.textContent = "";
  statusLine.classList.add("hidden");
  document.documentElement.dataset.ready = "";
}

// The graph of a process, whose search filters the tables too, and its memory over time.
function showGraphs(context, number, host) {
  const process = context.page.processes[number];
  const stacks = readStacks(context.columns, number + ".stacks");
  const place = host.querySelector(".graphs");
  const finder = element("div", { class: "tools finder" });
  (host.tables[0]?.table ?? place).before(finder);
  const title = context.page.is_diff ? "What changed, by stack" : "Live memory, by stack";
  const view = new View(context, stacks, number + ".samples", place, { places: process.places, title, finder });
  view.filters(host.tables);
  if (process.over_time) showOverTime(context, stacks, number + ".time", process.over_time, place);
  view.start();
}
