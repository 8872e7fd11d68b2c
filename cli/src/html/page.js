// Starts the page: reads the data and shows it.
"use strict";

const statusLine = document.getElementById("status");

document.getElementById("theme").onchange = (event) => {
  document.documentElement.dataset.theme = event.target.value;
};

// "/" focuses the first search field.
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
    "This page could not be read (" + error.message + "). It needs a browser with DecompressionStream: Chrome 80, Firefox 113, Safari 16.4 or newer. For the same report in a terminal, use culeak report.";
});

async function start() {
  statusLine.textContent = "Reading …";
  const source = document.getElementById("data");
  const { header, columns } = await readData(source.textContent);
  source.remove();
  const { page } = header;
  const context = { header, columns, page, strings: header.strings, frames: new Frames(columns, header.strings) };
  document.getElementById("made-by").textContent = "made by " + header.made_by;
  pages[page.what](context);
  statusLine.textContent = "";
  statusLine.classList.add("hidden");
  document.documentElement.dataset.ready = "";
}
