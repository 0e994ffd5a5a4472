"use strict";
// Tables that sort and filter: those that stand in the page, and one of any length that holds only the rows in sight.

const ROW = 28;  // pixels, as in page.css

// Missing last, whatever the direction.
function byValue(values, descending) {
  const missing = (v) => v === null || v === undefined || v === "";
  return (a, b) => {
    const x = values[a], y = values[b];
    if (missing(x) || missing(y)) return missing(x) - missing(y) || a - b;
    const numbers = typeof x === "number" && typeof y === "number";
    const order = numbers ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return (descending ? -order : order) || a - b;
  };
}

// "wmma d>=64 dtype=float16": words that a row's text holds, and comparisons with a column. Returns row -> boolean.
function filterOf(query, columns, text) {
  const tests = query.trim().split(/\s+/).filter(Boolean).map((word) => {
    const [, name, operator, wanted] = word.match(/^(\w+)(>=|<=|!=|=|>|<)(.+)$/) ?? [];
    const column = name && columns.find((each) => each.name.toLowerCase() === name.toLowerCase());
    if (!column) return (row) => text(row).includes(word.toLowerCase());
    const number = Number(wanted);
    return (row) => {
      const held = column.values[row];
      if (held === null || held === undefined) return false;
      const numbers = typeof held === "number" && !Number.isNaN(number);
      const order = numbers ? held - number : String(held).localeCompare(wanted);
      if (order === 0) return [">=", "<=", "="].includes(operator);
      return operator === "!=" || operator.startsWith(order > 0 ? ">" : "<");
    };
  });
  return (row) => tests.every((test) => test(row));
}

// Text as spreadsheets take it for text, and not for a formula; control characters as their pictures. Numbers stay.
function plainCell(value) {
  if (typeof value !== "string" || /^[+-]?Infinity$/.test(value)) return value;
  const shown = value.replace(/[\u0000-\u001f]/g, (letter) => String.fromCharCode(0x2400 + letter.charCodeAt(0)));
  return (/^[=+\-@\t\r]/.test(value) ? "'" : "") + shown.replace(/[\u007f-\u009f]/g, "\ufffd");
}

function csv(header, rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(plainCell(value));
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [header, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function download(name, text) {
  const link = node("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function csvButton(name, words, text) {
  const button = node("button", { type: "button" }, words);
  button.addEventListener("click", () => download(name, text()));
  return button;
}

function filterInput(placeholder, act) {
  const size = Math.min(30, placeholder.length);
  const input = node("input", { type: "search", placeholder, "aria-label": "Filter rows", size });
  input.addEventListener("input", () => act(input.value));
  return input;
}

// Turns headings into buttons; `act(column, descending)` sorts.
function sortableHeads(heads, act) {
  heads.forEach((head, at) => {
    const button = node("button", { type: "button" }, ...head.childNodes);
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      act(at, descending);
    });
  });
}

// A table of the page's own HTML. Cells may carry data-value: the number behind the words.
function liveTable(box, name, file) {
  const table = box.querySelector("table"), rows = [...table.tBodies[0].rows], heads = [...table.tHead.rows[0].cells];
  const names = heads.map((head) => head.textContent);
  const value = (cell) => (cell.dataset.value ? Number(cell.dataset.value) : cell.textContent.trim());
  const columns = names.map((each, at) => ({ name: each, values: rows.map((row) => value(row.cells[at])) }));
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const count = node("span", { class: "count", "aria-live": "polite" });
  let query = "", verdicts = new Set();
  const update = () => {
    const passes = filterOf(query, columns, (row) => texts[row]);
    let shown = 0;
    rows.forEach((row, at) => {
      row.hidden = !(passes(at) && (!verdicts.size || verdicts.has(row.dataset.verdict)));
      shown += !row.hidden;
    });
    count.textContent = shown === rows.length ? `${rows.length} rows` : `${shown} of ${rows.length} rows`;
  };
  const kinds = [...new Set(rows.map((row) => row.dataset.verdict).filter(Boolean))].map((verdict) => {
    const button = node("button", { type: "button", "aria-pressed": "false" }, verdict);
    button.addEventListener("click", () => {
      verdicts.has(verdict) ? verdicts.delete(verdict) : verdicts.add(verdict);
      button.setAttribute("aria-pressed", verdicts.has(verdict));
      update();
    });
    return button;
  });
  sortableHeads(heads, (at, descending) => {
    const order = rows.map((_, row) => row).sort(byValue(columns[at].values, descending));
    table.tBodies[0].append(...order.map((row) => rows[row]));
  });
  const inFull = () => csv(names, rows.map((_, row) => columns.map((column) => column.values[row])));
  const save = csvButton(`${file}-${name}.csv`, "CSV", inFull);
  const filter = rows.length > 12 ? [filterInput("Filter", (text) => ((query = text), update()))] : [];
  box.prepend(node("div", { class: "tools" }, ...kinds, ...filter, count, save));
  update();
}

// columns: [{name, units, about, values}]. Rows lie at a fixed height; only those in sight are in the document.
class VirtualTable {
  constructor(box, label, columns, rows) {
    Object.assign(this, { columns, rows, query: "", texts: [], sorted: Array.from({ length: rows }, (_, i) => i) });
    this.count = node("span", { class: "count", "aria-live": "polite" });
    this.body = node("tbody");
    const heads = columns.map((column) => {
      const head = node("th", { scope: "col", title: column.about }, this.heading(column));
      if (this.numeric(column)) head.className = "number";
      return head;
    });
    const widths = columns.map((column) => node("col", {}));
    columns.forEach((column, at) => (widths[at].style.width = `${this.width(column)}ch`));
    const head = node("thead", {}, node("tr", { "aria-rowindex": 1 }, ...heads));
    this.table = node("table", {}, node("colgroup", {}, ...widths), head, this.body);
    this.table.style.minWidth = `${columns.reduce((sum, column) => sum + this.width(column), 0)}ch`;
    this.scroll = node("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, this.table);
    sortableHeads(heads, (at, descending) => {
      this.sorted = Array.from({ length: rows }, (_, i) => i).sort(byValue(columns[at].values, descending));
      this.filter(this.query);
    });
    this.scroll.addEventListener("scroll", () => this.render(), { passive: true });
    new ResizeObserver(() => this.render()).observe(this.scroll);
    box.classList.add("virtual");
    box.replaceChildren(this.scroll);
    this.filter("");
  }

  numeric(column) {
    const { values } = column;
    return values.some((value) => typeof value === "number") && values.every((value) => typeof value !== "string");
  }

  heading(column) {
    return column.units ? `${column.name} (${column.units})` : column.name;
  }

  width(column) {
    const sample = column.values.slice(0, 300).map((value) => plainNumber(value).length);
    return Math.min(44, Math.max(this.heading(column).length + 3, ...sample)) + 3;
  }

  text(row) {
    const cells = () => this.columns.map((column) => plainNumber(column.values[row]));
    return (this.texts[row] ??= cells().join("\t").toLowerCase());
  }

  filter(query) {
    this.query = query;
    const passes = filterOf(query, this.columns, (row) => this.text(row));
    this.order = query.trim() ? this.sorted.filter(passes) : this.sorted;
    const shown = this.order.length;
    this.count.textContent = shown === this.rows ? `${this.rows} cases` : `${shown} of ${this.rows} cases`;
    this.table.setAttribute("aria-rowcount", this.order.length + 1);
    this.scroll.scrollTop = 0;
    this.render(true);
  }

  render(anew = false) {
    const from = Math.max(0, Math.floor(this.scroll.scrollTop / ROW) - 8);
    // On paper the box is as high as its rows: a height beyond any window's is none.
    const to = Math.min(this.order.length, from + Math.ceil(Math.min(this.scroll.clientHeight || 500, 4000) / ROW) + 16);
    if (!anew && from === this.from && to === this.to) return;
    this.fill(from, to);
  }

  fill(from, to) {
    Object.assign(this, { from, to });
    const made = document.createDocumentFragment();
    const space = (height) => {
      const cell = node("td", { colspan: this.columns.length });
      cell.style.height = `${height}px`;
      made.append(node("tr", { class: "space", "aria-hidden": "true" }, cell));
    };
    if (from) space(from * ROW);
    for (let at = from; at < to; at++) {
      const row = node("tr", { "aria-rowindex": at + 2 });
      for (const column of this.columns) {
        const value = column.values[this.order[at]], text = plainNumber(value);
        const cell = node("td", typeof value === "number" ? { class: "number" } : {}, text);
        if (text.length > 20) cell.title = text;  // it may be cut off
        row.append(cell);
      }
      made.append(row);
    }
    if (to < this.order.length) space((this.order.length - to) * ROW);
    this.body.replaceChildren(made);
  }

  csv() {
    const rows = this.order.map((row) => this.columns.map((column) => column.values[row]));
    return csv(this.columns.map((column) => column.name), rows);
  }
}
