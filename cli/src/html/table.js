// A table of rows: sorted by any column, filtered by a search; each row opens to show its details.
//
// The page shows the first rows, and more on demand; sorting and searching cover all of them.
"use strict";

const ROWS_AT_ONCE = 100;

let tables = 0;

class Table {
  // Columns have `title`, `key` (what to sort by), `cell` (row to text or element), and `classes`.
  constructor(host, { label, columns, count, detail, sorted, opener }) {
    this.id = "table" + tables++;
    this.columns = columns;
    this.detail = detail;
    this.opener = opener;
    this.count = count;
    this.order = Array.from({ length: count }, (_, row) => row);
    // In culeak's order until the user sorts.
    this.sort = sorted ? { column: sorted, down: true } : null;
    this.wanted = null;
    this.limit = ROWS_AT_ONCE;
    this.opened = new Set();
    this.heads = columns.map((column) => this.head(column));
    this.body = element("tbody");
    this.more = element("p", {});
    const table = element("table", { class: "rows", id: this.id, "aria-label": label }, element("thead", {}, element("tr", {}, this.heads)), this.body);
    table.addEventListener("keydown", (event) => this.key(event));
    host.append(table, this.more);
    this.show();
  }

  head(column) {
    const button = element("button", { type: "button", onclick: () => this.sortBy(column) }, column.title);
    return element("th", { scope: "col", class: column.classes, "aria-sort": "none" }, button);
  }

  sortBy(column) {
    const down = this.sort?.column === column ? !this.sort.down : !column.textual;
    this.sort = { column, down };
    const keys = this.order.map((row) => [column.key(row), row]);
    const sign = down ? -1 : 1;
    keys.sort(([a, first], [b, second]) => {
      const order = typeof a === "string" ? a.localeCompare(b) : a - b;
      return order * sign || first - second;
    });
    this.order = keys.map(([, row]) => row);
    this.show();
  }

  // Shows only rows that satisfy the predicate; `null`: all.
  filter(wanted) {
    this.wanted = wanted;
    this.limit = ROWS_AT_ONCE;
    this.show();
  }

  show() {
    this.columns.forEach((column, nth) => {
      const direction = this.sort?.column !== column ? "none" : this.sort.down ? "descending" : "ascending";
      this.heads[nth].setAttribute("aria-sort", direction);
    });
    const rows = this.wanted ? this.order.filter(this.wanted) : this.order;
    const shown = rows.slice(0, this.limit);
    this.body.replaceChildren(...shown.flatMap((row) => this.row(row)));
    const all = plural(this.count, "row", "rows");
    const isPart = rows.length > shown.length;
    const matching = formatCount(rows.length) + " of " + all + (rows.length === 1 ? " matches" : " match");
    const ofAll = isPart ? "the first " + formatCount(shown.length) + " of " + all + " " : "";
    const text = this.wanted ? matching + (isPart ? ", the first " + formatCount(shown.length) + " are shown " : " ") : ofAll;
    const more = () => {
      const next = this.limit;
      this.limit += ROWS_AT_ONCE * 5;
      this.show();
      this.body.querySelectorAll(".open")[next]?.focus();
    };
    const rest = Math.min(rows.length - shown.length, ROWS_AT_ONCE * 5);
    this.more.replaceChildren(text, rest > 0 ? element("button", { type: "button", onclick: more }, "Show " + formatCount(rest) + " more") : "");
  }

  row(row) {
    const id = this.id + "-" + row;
    const line = element("tr", { "data-row": row });
    const opened = this.opened.has(row);
    for (const column of this.columns) {
      let content = column.cell(row);
      if (column === this.opener) {
        const toggle = () => this.toggle(row, line, button);
        const button = element("button", { type: "button", class: "open", "aria-expanded": String(opened), "aria-controls": id, onclick: toggle }, content.name);
        content = [button, content.rest].flat();
      }
      line.append(element("td", { class: column.classes }, content));
    }
    return opened ? [line, this.opening(row)] : [line];
  }

  opening(row) {
    const cell = element("td", { class: "detail", colspan: this.columns.length }, this.detail(row));
    return element("tr", { id: this.id + "-" + row }, cell);
  }

  toggle(row, line, button) {
    const open = !this.opened.has(row);
    if (open) {
      this.opened.add(row);
      line.after(this.opening(row));
    } else {
      this.opened.delete(row);
      document.getElementById(this.id + "-" + row)?.remove();
    }
    button.setAttribute("aria-expanded", String(open));
  }

  // Arrow keys move between rows, and escape closes the row that has the focus.
  key(event) {
    const buttons = Array.from(this.body.querySelectorAll(".open"));
    const at = buttons.indexOf(event.target);
    if (event.key === "Escape") {
      const open = event.target.closest("tr")?.id.startsWith(this.id) ? event.target.closest("tr").previousElementSibling : event.target.closest("tr");
      const button = open?.querySelector('.open[aria-expanded="true"]');
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
