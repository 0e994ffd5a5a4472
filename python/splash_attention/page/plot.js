"use strict";
// A plot of points with intervals, on linear, logarithmic or named axes. All marks of one look are one SVG path, so that
// ten thousand points are a handful of elements. The pointer and the arrow keys go from point to point.

const SVG = document.getElementById("svg").namespaceURI;
const tooltip = document.getElementById("tooltip");

function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);  // texts stay texts: nothing of a report is read as HTML
  return made;
}

function draw(parent, name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  parent.append(made);
  return made;
}

// Outlines about (0, 0): as many as series that differ.
const SHAPES = [
  (x, y, r) => `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0z`,
  (x, y, r) => `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (x, y, r) => `M${x},${y - 1.2 * r}l${1.2 * r},${2.2 * r}h${-2.4 * r}z`,
  (x, y, r) => `M${x},${y - 1.3 * r}l${1.3 * r},${1.3 * r}l${-1.3 * r},${1.3 * r}l${-1.3 * r},${-1.3 * r}z`,
  (x, y, r) => `M${x},${y + 1.2 * r}l${1.2 * r},${-2.2 * r}h${-2.4 * r}z`,
  (x, y, r) => `M${x - r / 3},${y - r}h${(2 * r) / 3}v${2 * r}h${(-2 * r) / 3}zM${x - r},${y - r / 3}h${2 * r}v${(2 * r) / 3}h${-2 * r}z`,
  (x, y, r) => `M${x - 0.5 * r},${y - r}h${r}l${0.5 * r},${r}l${-0.5 * r},${r}h${-r}l${-0.5 * r},${-r}z`,
  (x, y, r) => `M${x - r},${y - r}h${2 * r}l${-2 * r},${2 * r}h${2 * r}z`,
];

const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];

// 6.33e14, "FLOP/s" -> 633 TFLOP/s
function withPrefix(value, units) {
  if (value === null || value === undefined) return "";
  if (value === 0) return `0 ${units}`;
  const [size, letter] = PREFIXES.find(([least]) => Math.abs(value) >= least * 0.9995) ?? PREFIXES.at(-1);
  return `${Number((value / size).toPrecision(3))} ${letter}${units}`;
}

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

// 0.0123 stays, 8.31e-5 is 8.31·10⁻⁵
function plainNumber(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number" || !Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  if (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e7) return String(Number(value.toPrecision(4)));
  const [mantissa, exponent] = value.toExponential(2).split("e");
  const power = `10${[...String(Number(exponent))].map((letter) => RAISED[letter]).join("")}`;
  return Number(mantissa) === 1 ? power : `${Number(mantissa)}·${power}`;
}

const percent = (share) => (share === null || share === undefined ? "" : `${Number((100 * share).toPrecision(share > 0.9 && share < 1 ? 4 : 3))} %`);

function ticksOf(low, high, log, room) {
  if (!log || high / low < 3) {
    const step = [1, 2, 5, 10].map((m) => m * 10 ** Math.floor(Math.log10((high - low) / room))).find((s) => (high - low) / s <= room);
    return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, i) => (Math.ceil(low / step) + i) * step);
  }
  const from = Math.ceil(Math.log10(low) - 1e-9), to = Math.floor(Math.log10(high) + 1e-9);
  const every = Math.max(1, Math.ceil((to - from + 1) / room));
  const wholes = Array.from({ length: Math.max(0, to - from + 1) }, (_, i) => from + i).filter((e) => e % every === 0);
  if (wholes.length > 2) return wholes.map((exponent) => 10 ** exponent);
  for (const parts of [[1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 8], [1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3]]) {
    const ticks = [];
    for (let e = from - 1; e <= to; e++) for (const part of parts) ticks.push(Number(`${part}e${e}`));
    const inside = ticks.filter((value) => value >= low && value <= high);
    if (inside.length <= room) return inside;
  }
  return wholes.map((exponent) => 10 ** exponent);
}

class Plot {
  static active = null;  // the one that the tooltip speaks of
  static made = 0;

  // spec: label; x, y: {label, log, format, include, names}; points: {x, y, xLow, xHigh, yLow, yHigh} of arrays;
  // looks: index -> {shape, colour (a class) or paint}; flagged: Set; lines(x, y domains) -> [{kind, points}];
  // describe: index -> {title, rows, note}
  constructor(box, spec) {
    this.box = box;
    this.spec = spec;
    this.count = spec.points.x.length;
    this.order = Array.from({ length: this.count }, (_, i) => i);
    const { x, y } = spec.points;
    this.order.sort(spec.y.names ? (a, b) => y[a] - y[b] : (a, b) => x[a] - x[b] || y[a] - y[b]);
    this.place = -1;
    box.classList.add("plot");
    for (const [key, value] of Object.entries({ tabindex: 0, role: "slider", "aria-label": `${spec.label}. Arrow keys go from point to point`,
      "aria-valuemin": 1, "aria-valuemax": this.count, "aria-valuenow": 1, "aria-valuetext": `${this.count} points` })) box.setAttribute(key, value);
    box.addEventListener("pointermove", (event) => this.point(event));
    box.addEventListener("pointerdown", (event) => this.point(event));
    box.addEventListener("pointerleave", () => this.leave());
    box.addEventListener("focus", () => box.matches(":focus-visible") && this.step(0));
    box.addEventListener("blur", () => this.leave());
    box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => box.clientWidth !== this.width && this.draw()).observe(box);
    this.draw();
  }

  domain(axis) {
    const { points } = this.spec, { log, include = [], names } = this.spec[axis];
    if (names) return [-0.6, names.length - 0.4];
    let low = Infinity, high = -Infinity;
    for (const values of [points[axis], points[`${axis}Low`] ?? [], points[`${axis}High`] ?? [], include]) {
      for (const value of values) {
        if (value === null || value === undefined || (log && value <= 0) || !Number.isFinite(value)) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
    if (low > high) return log ? [0.1, 10] : [0, 1];
    if (log) {
      const pad = Math.max((high / low) ** 0.06, 1.15);
      return [low / pad, high * pad];
    }
    const pad = 0.05 * (high - low) || 1;
    return [low - pad, high + pad];
  }

  draw() {
    const { spec, box } = this;
    this.width = box.clientWidth || 400;
    this.height = spec.y.names ? 24 * spec.y.names.length + 52 : Math.min(400, Math.max(260, 0.66 * this.width));
    const longest = Math.max(...(spec.y.names ?? []).map((name) => name.length));
    const left = spec.y.names ? Math.min(6.6 * longest + 14, 0.42 * this.width) : 84;
    const frame = { left, right: this.width - 12, top: spec.y.names ? 6 : 24, bottom: this.height - 44 };
    const x = this.domain("x"), y = this.domain("y");
    const position = (low, high, log, from, to) => log
      ? (value) => from + ((to - from) * Math.log(value / low)) / Math.log(high / low)
      : (value) => from + ((to - from) * (value - low)) / (high - low);
    this.toX = position(...x, spec.x.log, frame.left, frame.right);
    this.toY = spec.y.names ? position(...y, false, frame.top, frame.bottom) : position(...y, spec.y.log, frame.bottom, frame.top);
    this.svg?.remove();
    this.svg = draw(box, "svg", { viewBox: `0 0 ${this.width} ${this.height}`, height: this.height, "aria-hidden": "true" });
    this.axes(frame, x, y, left);
    this.lines(frame, x, y);
    this.marks();
    this.halo = draw(this.svg, "path", { class: "halo" });
    if (this.place >= 0) this.show(this.order[this.place]);
  }

  axes(frame, x, y, left) {
    const { spec, svg } = this;
    for (const value of ticksOf(...x, spec.x.log, (frame.right - frame.left) / 78)) {
      const at = this.toX(value);
      draw(svg, "path", { class: "grid", d: `M${at},${frame.top}V${frame.bottom}` });
      draw(svg, "text", { x: at, y: frame.bottom + 16, "text-anchor": "middle" }, spec.x.format(value));
    }
    const rows = spec.y.names ? spec.y.names.map((_, i) => i) : ticksOf(...y, spec.y.log, (frame.bottom - frame.top) / 34);
    for (const value of rows) {
      const at = this.toY(value);
      draw(svg, "path", { class: "grid", d: `M${frame.left},${at}H${frame.right}` });
      const room = Math.floor((left - 12) / 6.4), name = spec.y.names?.[value];
      const text = name === undefined ? spec.y.format(value) : name.length > room ? `${name.slice(0, room - 1)}…` : name;
      draw(svg, "text", { x: frame.left - 7, y: at + 4, "text-anchor": "end", class: name === undefined ? "" : "row" }, text);
    }
    draw(svg, "path", { class: "axis", d: `M${frame.left},${frame.top}V${frame.bottom}H${frame.right}` });
    draw(svg, "text", { x: frame.right, y: this.height - 8, "text-anchor": "end" }, spec.x.label);
    if (!spec.y.names) draw(svg, "text", { x: 2, y: 12 }, spec.y.label);
  }

  lines(frame, x, y) {
    const clip = draw(this.svg, "clipPath", { id: `clip${(Plot.made += 1)}` });
    draw(clip, "rect", { x: frame.left, y: frame.top, width: Math.max(0, frame.right - frame.left), height: frame.bottom - frame.top });
    for (const { kind, points } of this.spec.lines?.(x, y) ?? []) {
      const d = points.map(([a, b], i) => `${i ? "L" : "M"}${this.toX(a).toFixed(1)},${this.toY(b).toFixed(1)}`).join("");
      draw(this.svg, "path", { class: kind, d, "clip-path": `url(#${clip.id})` });
    }
  }

  marks() {
    const { points, looks, flagged } = this.spec, radius = this.count > 3000 ? 2.2 : this.count > 300 ? 3.2 : 4.2;
    const groups = new Map();
    let flags = "";
    for (let i = 0; i < this.count; i++) {
      const look = looks(i), key = `${look.shape}|${look.colour ?? look.paint}`;
      let group = groups.get(key);
      if (!group) groups.set(key, (group = { look, marks: [], whiskers: [] }));
      const x = Number(this.toX(points.x[i]).toFixed(1)), y = Number(this.toY(points.y[i]).toFixed(1));
      group.marks.push(SHAPES[look.shape % SHAPES.length](x, y, radius));
      if (points.xLow?.[i] != null) group.whiskers.push(`M${this.toX(points.xLow[i]).toFixed(1)},${y}H${this.toX(points.xHigh[i]).toFixed(1)}`);
      if (points.yLow?.[i] != null) group.whiskers.push(`M${x},${this.toY(points.yLow[i]).toFixed(1)}V${this.toY(points.yHigh[i]).toFixed(1)}`);
      if (flagged?.has(i)) flags += SHAPES[0](x, y, radius + 4);
    }
    for (const { look, marks, whiskers } of groups.values()) {
      for (const [name, parts] of [["whiskers", whiskers], ["marks", marks]]) {
        if (!parts.length) continue;
        const path = draw(this.svg, "path", { class: `${look.colour ?? ""} ${name}`, d: parts.join("") });
        if (look.paint) path.style[name === "marks" ? "fill" : "stroke"] = look.paint;
      }
    }
    if (flags) draw(this.svg, "path", { class: "flag", d: flags });
  }

  point(event) {
    const at = this.box.getBoundingClientRect(), px = event.clientX - at.left, py = event.clientY - at.top;
    const { x, y } = this.spec.points;
    let best = -1, least = 30 ** 2;
    for (let i = 0; i < this.count; i++) {
      const distance = (this.toX(x[i]) - px) ** 2 + (this.toY(y[i]) - py) ** 2;
      if (distance < least) [best, least] = [i, distance];
    }
    if (best < 0) return this.leave();
    this.place = this.order.indexOf(best);
    this.show(best);
  }

  key(event) {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") return this.leave();
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.step(steps[event.key]);
  }

  step(by) {
    if (!this.count) return;
    this.place = Math.min(this.count - 1, Math.max(0, Math.max(this.place, by > 0 && this.place < 0 ? -1 : 0) + by));
    this.show(this.order[this.place]);
  }

  show(index) {
    const { points, describe } = this.spec, x = this.toX(points.x[index]), y = this.toY(points.y[index]);
    this.halo.setAttribute("d", SHAPES[0](x, y, 8));
    const { title, rows, note } = describe(index), shown = rows.filter(([, value]) => value);
    this.box.setAttribute("aria-valuenow", this.place + 1);
    this.box.setAttribute("aria-valuetext", [title, ...shown.map((row) => row.join(" ")), note].filter(Boolean).join(", "));
    tooltip.replaceChildren(node("strong", {}, title), node("dl", {}, ...shown.flatMap(([k, v]) => [node("dt", {}, k), node("dd", {}, v)])));
    if (note) tooltip.append(node("p", {}, note));
    if (Plot.active !== this) Plot.active?.leave();
    Plot.active = this;
    tooltip.hidden = false;
    this.shown = [x, y];
    this.placeTooltip();
  }

  placeTooltip() {
    const box = this.box.getBoundingClientRect(), { offsetWidth: w, offsetHeight: h } = tooltip;
    const px = box.left + this.shown[0], py = box.top + this.shown[1];
    tooltip.style.left = `${Math.max(8, Math.min(px + 14 + w > innerWidth - 8 ? px - w - 14 : px + 14, innerWidth - w - 8))}px`;
    tooltip.style.top = `${Math.max(8, py + 14 + h > innerHeight - 8 ? py - h - 14 : py + 14)}px`;
  }

  leave() {
    this.place = -1;
    this.halo?.removeAttribute("d");
    if (Plot.active === this) Plot.active = null;
    tooltip.hidden = !Plot.active;
  }
}
