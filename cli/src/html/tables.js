// Tables of documents: sorted by any column, filtered by a search; a row opens to show what is below it.
//
// The page shows the first rows, and more on demand; sorting and searching cover all of them.
"use strict";

const ROWS_AT_FIRST = 20;
const ROWS_AT_ONCE = 500;
// On paper.
const ROWS_PRINTED = 100;

let tables = 0;

class Table {
  constructor(table) {
    this.table = table;
    this.id = table.id = "table" + tables++;
    this.body = table.tBodies[0];
    const behind = (line) => (line.nextElementSibling?.classList.contains("below") ? line.nextElementSibling : null);
    this.rows = Array.from(this.body.querySelectorAll(":scope > tr[data-row]"), (line, nth) => ({ line, nth, below: behind(line) }));
    this.order = this.rows;
    // In culeak's order until the user sorts.
    this.sort = null;
    this.wanted = null;
    this.limit = ROWS_AT_FIRST;
    // Called with a row that opens for the first time.
    this.opening = null;
    this.heads = Array.from(table.tHead.rows[0].cells).map((head, column) => this.head(head, column));
    this.more = element("p", {});
    table.after(this.more);
    for (const row of this.rows) if (row.below) this.makeOpener(row);
    table.addEventListener("keydown", (event) => this.key(event));
    addEventListener("beforeprint", () => {
      this.limit = Math.max(this.limit, ROWS_PRINTED);
      this.show();
    });
    this.show();
  }

  head(head, column) {
    if (head.tagName !== "TH") return head;
    head.setAttribute("aria-sort", "none");
    head.replaceChildren(element("button", { type: "button", onclick: () => this.sortBy(column) }, head.textContent));
    return head;
  }

  // The number of the column with this heading; -1: none.
  column(heading) {
    return this.heads.findIndex((head) => head.textContent === heading);
  }

  cell(row, column) {
    return row.line.cells[column];
  }

  key_of(row, column) {
    const cell = this.cell(row, column);
    const { bytes, count, value } = cell.dataset;
    const number = bytes ?? count ?? value;
    if (number !== undefined) return Number(number);
    return cell.classList.contains("number") ? parseFloat(cell.textContent.replace(/[^\d.-]/g, "")) || 0 : cell.textContent;
  }

  sortBy(column) {
    const keys = this.order.map((row) => [this.key_of(row, column), row]);
    const down = this.sort?.column === column ? !this.sort.down : typeof keys[0]?.[0] === "number";
    this.sort = { column, down };
    const sign = down ? -1 : 1;
    keys.sort(([a, first], [b, second]) => {
      const order = typeof a === "string" ? a.localeCompare(b) : a - b;
      return order * sign || first.nth - second.nth;
    });
    this.order = keys.map(([, row]) => row);
    this.show();
  }

  // Shows only rows that satisfy the predicate; `null`: all.
  filter(wanted) {
    this.wanted = wanted;
    this.limit = ROWS_AT_FIRST;
    this.show();
  }

  // The text of a row and of what is below it, for a search.
  text(row) {
    row.text ??= (row.line.textContent + "\0" + (row.below?.textContent ?? "")).toLowerCase();
    return row.text;
  }

  show() {
    this.heads.forEach((head, column) => {
      if (head.tagName !== "TH") return;
      head.setAttribute("aria-sort", this.sort?.column !== column ? "none" : this.sort.down ? "descending" : "ascending");
    });
    const rows = this.wanted ? this.order.filter(this.wanted) : this.order;
    const shown = rows.slice(0, this.limit);
    this.body.replaceChildren(...shown.flatMap((row) => (row.opened ? [row.line, row.below] : [row.line])));
    const all = plural(this.rows.length, "row", "rows");
    const isCut = rows.length > shown.length;
    const matching = formatCount(rows.length) + " of " + all + (rows.length === 1 ? " matches" : " match");
    const cut = "the first " + formatCount(shown.length) + (this.wanted ? " are shown" : " of " + all);
    const text = [this.wanted ? matching : "", isCut ? cut : ""].filter((part) => part).join("; ") + " ";
    const more = () => {
      const next = this.limit;
      this.limit += ROWS_AT_ONCE;
      this.show();
      this.body.querySelectorAll(".open")[next]?.focus();
    };
    const rest = Math.min(rows.length - shown.length, ROWS_AT_ONCE);
    this.more.replaceChildren(text, rest > 0 ? element("button", { type: "button", onclick: more }, "Show " + formatCount(rest) + " more") : "");
  }

  // The name in a row becomes a button.
  makeOpener(row) {
    const cell = row.line.querySelector("td.site") ?? row.line.querySelector("td.text") ?? row.line.cells[0];
    const named = cell.querySelector(".name") ?? cell;
    row.below.id = this.id + "-" + row.nth;
    const button = element("button", { type: "button", class: "open", "aria-expanded": "false", "aria-controls": row.below.id, onclick: () => this.toggle(row, button) }, ...named.childNodes);
    named.append(button);
  }

  toggle(row, button) {
    row.opened = !row.opened;
    if (row.opened) {
      if (!row.wasOpened) this.opening?.(row);
      row.wasOpened = true;
      row.line.after(row.below);
    } else {
      row.below.remove();
    }
    button.setAttribute("aria-expanded", String(row.opened));
  }

  // Arrow keys move between rows, and escape closes the row that has the focus.
  key(event) {
    const buttons = Array.from(this.body.querySelectorAll(".open"));
    const at = buttons.indexOf(event.target);
    if (event.key === "Escape") {
      const line = event.target.closest("tr.below")?.previousElementSibling ?? event.target.closest("tr");
      const button = line?.querySelector('.open[aria-expanded="true"]');
      if (!button) return;
      button.click();
      button.focus();
    } else if (event.key === "ArrowDown" && at >= 0) {
      buttons[at + 1]?.focus();
    } else if (event.key === "ArrowUp" && at >= 0) {
      buttons[at - 1]?.focus();
    } else {
      return;
    }
    event.preventDefault();
  }
}

// The parts of a whole as a bar, with the colour of each beside its line.
function showParts(table) {
  const rows = Array.from(table.tBodies[0].querySelectorAll(":scope > tr[data-row]"));
  const sizes = rows.map((row) => (row.classList.contains("apart") ? 0 : Math.max(0, Number(row.cells[0].dataset.bytes))));
  const sum = sizes.reduce((sum, size) => sum + size, 0);
  let nth = 0;
  const parts = rows.flatMap((row, at) => {
    const swatch = element("span", { class: "swatch" });
    row.cells[0].prepend(swatch);
    if (sizes[at] === 0) {
      swatch.classList.add("none");
      return [];
    }
    const colour = "c" + (nth++ % 10);
    swatch.classList.add(colour);
    const part = element("span", { class: colour, "data-bytes": sizes[at], title: Array.from(row.cells, (cell) => cell.textContent).join("  ") });
    part.style.width = (100 * sizes[at]) / sum + "%";
    return [part];
  });
  const spoken = parts.map((part) => part.title).join("; ");
  if (sum > 0) table.before(element("div", { class: "bar", role: "img", "aria-label": spoken }, parts));
}

// The tables of a part of the page that can be sorted and searched.
function tablesIn(host) {
  const all = Array.from(host.querySelectorAll("table.rows")).filter((table) => !table.parentElement.closest("table"));
  all.filter((table) => table.classList.contains("adds-up")).forEach(showParts);
  return all.filter((table) => !table.classList.contains("adds-up")).map((table) => new Table(table));
}

// A search that filters tables, for pages without a graph.
function searchOf(tables) {
  const search = element("input", { type: "search", placeholder: "Search ( / )", "aria-label": "Search" });
  search.oninput = () => {
    const wanted = search.value.trim().toLowerCase();
    for (const table of tables) table.filter(wanted ? (row) => table.text(row).includes(wanted) : null);
  };
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !search.value) return;
    search.value = "";
    search.oninput();
    event.preventDefault();
  });
  tables[0].table.before(element("div", { class: "tools finder" }, search));
}
