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
  (x, y, r) => SHAPES[1](x, y, r / 3) + [[-1, 0], [1, 0], [0, -1], [0, 1]]
    .map(([a, b]) => SHAPES[1](x + (2 / 3) * a * r, y + (2 / 3) * b * r, r / 3)).join(""),
  (x, y, r) => `M${x - 0.5 * r},${y - r}h${r}l${0.5 * r},${r}l${-0.5 * r},${r}h${-r}l${-0.5 * r},${-r}z`,
  (x, y, r) => `M${x - r},${y - r}h${2 * r}l${-2 * r},${2 * r}h${2 * r}z`,
];

const PREFIXES = [..."PTGMk mµn"].map((letter, at) => [10 ** (15 - 3 * at), letter.trim()]);

// 6.33e14, "FLOP/s" -> 633 TFLOP/s
function withPrefix(value, units) {
  if (value === null || value === undefined) return "";
  if (value === 0) return `0 ${units}`;
  const [size, letter] = PREFIXES.find(([least]) => Math.abs(value) >= least * 0.9995) ?? PREFIXES.at(-1);
  return `${Number((value / size).toPrecision(3))} ${letter}${units}`;
}

const raised = (whole) => String(whole).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);

// 0.0123 stays, 8.31e-5 is 8.31·10⁻⁵
function plainNumber(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number" || !Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  if (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e7) return String(Number(value.toPrecision(4)));
  const [mantissa, exponent] = value.toExponential(2).split("e");
  const power = `10${raised(Number(exponent))}`;
  return Number(mantissa) === 1 ? power : `${Number(mantissa)}·${power}`;
}

function percent(share) {
  if (share === null || share === undefined) return "";
  return `${Number((100 * share).toPrecision(share > 0.9 && share < 1 ? 4 : 3))} %`;
}

function ticksOf(low, high, log, room) {
  if (!log || high / low < 3) {
    const size = 10 ** Math.floor(Math.log10((high - low) / room));
    const step = size * ([1, 2, 5].find((part) => (high - low) / (part * size) <= room) ?? 10);
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
  }
  const from = Math.ceil(Math.log10(low) - 1e-9), to = Math.floor(Math.log10(high) + 1e-9);
  const every = Math.max(1, Math.ceil((to - from + 1) / room));
  const wholes = Array.from({ length: Math.max(0, to - from + 1) }, (_, i) => from + i).filter((e) => e % every === 0);
  if (wholes.length > 2) return wholes.map((exponent) => 10 ** exponent);
  for (const parts of [[1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 8], [1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3]]) {
    const ticks = [];
    for (let e = from - 1; e <= to; e++) for (const part of parts) ticks.push(Number(`${part}e${e}`));
    const inside = ticks.filter((value) => value >= low && value <= high);
    const least = 0.9 * Math.log(high / low) / room;  // between two, lest their labels touch
    if (inside.every((value, i) => i === 0 || Math.log(value / inside[i - 1]) >= least)) return inside;
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
    // A slider, to a screen reader: it passes the arrow keys on and reads what they come to.
    box.tabIndex = 0;
    Object.assign(box, { role: "slider", ariaLabel: `${spec.label}. Arrow keys go from point to point` });
    Object.assign(box, { ariaValueMin: 1, ariaValueMax: this.count, ariaValueNow: 1 });
    box.ariaValueText = `${this.count} points`;
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
    const top = spec.y.names ? 6 : 24, bottom = this.height - 44, right = this.width - 12;
    const frame = { left, right, top, bottom };
    const x = this.domain("x"), y = this.domain("y");
    const position = (low, high, log, from, to) => log
      ? (value) => from + ((to - from) * Math.log(value / low)) / Math.log(high / low)
      : (value) => from + ((to - from) * (value - low)) / (high - low);
    this.toX = position(...x, spec.x.log, left, right);
    this.toY = spec.y.names ? position(...y, false, top, bottom) : position(...y, spec.y.log, bottom, top);
    this.svg?.remove();
    const viewBox = `0 0 ${this.width} ${this.height}`;
    this.svg = draw(box, "svg", { viewBox, height: this.height, "aria-hidden": "true" });
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
    const room = (frame.bottom - frame.top) / 34;
    const rows = spec.y.names ? spec.y.names.map((_, i) => i) : ticksOf(...y, spec.y.log, room);
    for (const value of rows) {
      const at = this.toY(value);
      draw(svg, "path", { class: "grid", d: `M${frame.left},${at}H${frame.right}` });
      const letters = Math.floor((left - 12) / 6.4), name = spec.y.names?.[value] ?? spec.y.format(value);
      const text = name.length > letters ? `${name.slice(0, letters - 1)}…` : name;
      const kind = spec.y.names ? "row" : "tick";
      draw(svg, "text", { x: frame.left - 7, y: at + 4, "text-anchor": "end", class: kind }, text);
    }
    draw(svg, "path", { class: "axis", d: `M${frame.left},${frame.top}V${frame.bottom}H${frame.right}` });
    draw(svg, "text", { x: frame.right, y: this.height - 8, "text-anchor": "end" }, spec.x.label);
    if (!spec.y.names) draw(svg, "text", { x: 2, y: 12 }, spec.y.label);
  }

  lines(frame, x, y) {
    const clip = draw(this.svg, "clipPath", { id: `clip${(Plot.made += 1)}` });
    const width = Math.max(0, frame.right - frame.left), height = frame.bottom - frame.top;
    draw(clip, "rect", { x: frame.left, y: frame.top, width, height });
    for (const { kind, points } of this.spec.lines?.(x, y) ?? []) {
      const d = points.map(([a, b]) => `${this.toX(a).toFixed(1)},${this.toY(b).toFixed(1)}`).join("L");
      draw(this.svg, "path", { class: kind, d: `M${d}`, "clip-path": `url(#${clip.id})` });
    }
  }

  marks() {
    const { points, looks, flagged } = this.spec;
    const radius = this.count > 3000 ? 2.2 : this.count > 300 ? 3.2 : 4.2;
    const toX = (value) => Number(this.toX(value).toFixed(1)), toY = (value) => Number(this.toY(value).toFixed(1));
    const groups = new Map();
    let flags = "";
    for (let i = 0; i < this.count; i++) {
      const look = looks(i), key = `${look.shape}|${look.colour ?? look.paint}`;
      let group = groups.get(key);
      if (!group) groups.set(key, (group = { look, marks: [], whiskers: [] }));
      const x = toX(points.x[i]), y = toY(points.y[i]);
      group.marks.push(SHAPES[look.shape % SHAPES.length](x, y, radius));
      const known = (low, high) => (low?.[i] ?? null) !== null && (high?.[i] ?? null) !== null;
      if (known(points.xLow, points.xHigh)) group.whiskers.push(`M${toX(points.xLow[i])},${y}H${toX(points.xHigh[i])}`);
      if (known(points.yLow, points.yHigh)) group.whiskers.push(`M${x},${toY(points.yLow[i])}V${toY(points.yHigh[i])}`);
      if (flagged?.has(i)) flags += SHAPES[0](x, y, radius + 4);
    }
    for (const { look, marks, whiskers } of groups.values()) {
      for (const [name, parts] of [["whiskers", whiskers], ["marks", marks]]) {
        if (!parts.length) continue;
        const crowd = this.count > 1000 ? "crowd" : "";
        const path = draw(this.svg, "path", { class: `${look.colour ?? ""} ${name} ${crowd}`, d: parts.join("") });
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
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 };
    Object.assign(steps, { Home: -Infinity, End: Infinity });
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
    this.box.ariaValueNow = this.place + 1;
    this.box.ariaValueText = [title, ...shown.map((row) => row.join(" ")), note].filter(Boolean).join(", ");
    const terms = shown.flatMap(([name, value]) => [node("dt", {}, name), node("dd", {}, value)]);
    tooltip.replaceChildren(node("strong", {}, title), node("dl", {}, ...terms));
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
    const beside = (at, size, room) => (at + 14 + size > room - 8 ? at - size - 14 : at + 14);
    tooltip.style.left = `${Math.max(8, Math.min(beside(px, w, innerWidth), innerWidth - w - 8))}px`;
    tooltip.style.top = `${Math.max(8, beside(py, h, innerHeight))}px`;
  }

  leave() {
    this.place = -1;
    this.halo?.removeAttribute("d");
    if (Plot.active === this) Plot.active = null;
    tooltip.hidden = !Plot.active;
  }
}
