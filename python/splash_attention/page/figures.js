"use strict";
// What the sections show: each function fills one box from the data that the page carries.

const data = JSON.parse(document.getElementById("data").textContent);

// A column as Python wrote it (tables.py) as an array.
function decoded(column, rows) {
  if (Array.isArray(column)) return column.some((value) => typeof value === "string") ? column.map((v) => (v === null ? null : Number(v))) : column;
  if (column.words) return column.codes.map((code) => column.words[code]);
  return Array(rows).fill(column.same);
}

// values(table, name): a column of an experiment, decoded once; undefined where it has none.
const held = new Map();
function values(table, name) {
  const key = `${table}/${name}`;
  if (!held.has(key)) {
    const { columns, rows, problem } = data.results[table];
    const column = name === "problem" ? problem : columns.find((each) => each.name === name)?.data;
    held.set(key, column === undefined ? undefined : decoded(column, rows));
  }
  return held.get(key);
}
const at = (table, name, row) => values(table, name)?.[row] ?? null;

const TOLD = 5;  // points above a roof that are named below it

const seconds = (value) => withPrefix(value, "s");
const range = (low, high, say) => (low === null || high === null ? "" : ` [${say(low)} – ${say(high)}]`);
const groupOf = (name) => (name.startsWith("torch-") ? "torch" : name.split("/")[0]);

function timeRows(table, row) {
  const low = at(table, "time_low", row), high = at(table, "time_high", row);
  return [["time", seconds(at(table, "time_median", row)) + range(low, high, seconds)]];
}

function legend(entries) {
  return node("div", { class: "legend" }, ...entries.map(({ words, shape, look, line }) => {
    const item = node("span", {}), picture = draw(item, "svg", { viewBox: "0 0 16 14", "aria-hidden": "true" });
    if (line) draw(picture, "path", { class: line, d: "M0,7H16" });
    else draw(picture, "path", { class: `marks ${look}`, d: SHAPES[shape % SHAPES.length](8, 7, 4.5) });
    item.append(words);
    return item;
  }));
}

function chooser(words, names, act) {
  const select = node("select", {}, ...names.map((name, value) => node("option", { value }, name)));
  select.addEventListener("change", () => act(Number(select.value)));
  return node("label", {}, words, select);
}

function figure(parent, title, words) {
  const plot = node("div");
  parent.append(node("figure", {}, node("figcaption", {}, node("strong", {}, title), words), plot));
  return plot;
}

const DRAW = {
  rooflines(box) {
    const names = [...new Set(data.rooflines.flatMap((panel) => panel.table.map((table, i) => groupOf(at(table, "implementation", panel.row[i])))))].sort();
    const key = legend([...names.map((words, i) => ({ words, shape: i, look: `c${i % 8}` })),
      { words: "measured", line: "roof" }, { words: "data sheet", line: "datasheet" }]);
    const panels = node("div", { class: "panels" });
    box.append(key, panels);
    for (const panel of data.rooflines) roofline(panels, panel, names);
  },

  ladders(box) {
    const experiments = [...new Set(data.ladders.map((ladder) => ladder.table))];
    const panels = node("div", { class: "panels" });
    const problems = node("span");
    const peers = legend([{ words: "ours", shape: 0, look: "c0" }, { words: "a peer, in PyTorch", shape: 3, look: "c1" }]);
    const show = (ladder) => {
      panels.replaceChildren();
      drawLadder(panels, ladder);
      peers.hidden = !ladder.rows.some((row) => at(ladder.table, ladder.subject, row).startsWith("torch-"));
    };
    const choose = (i) => {
      const held = data.ladders.filter((ladder) => ladder.table === experiments[i]);
      problems.replaceChildren(chooser("Problem", held.map((ladder) => ladder.problem || "the only one"), (j) => show(held[j])));
      show(held[0]);
    };
    box.append(node("div", { class: "tools" }, chooser("Experiment", experiments.map((table) => data.results[table].experiment), choose), problems), peers, panels);
    choose(0);
  },

  tradeoffs(box) {
    const inside = node("div");
    const show = (i) => (inside.replaceChildren(), tradeoff(inside, data.tradeoffs[i]));
    box.append(node("div", { class: "tools" }, chooser("Experiment", data.tradeoffs.map(({ table }) => data.results[table].experiment), show)), inside);
    show(0);
  },

  results(box) {
    const inside = node("div"), tools = node("div", { class: "tools" }), same = node("p", { class: "words" });
    let table;
    const show = (i) => {
      const { experiment, rows, columns } = data.results[i];
      const constant = columns.filter(({ data: column }) => rows > 1 && !Array.isArray(column) && "same" in column);
      same.textContent = constant.length ? `The same in all: ${constant.map(({ name, data: column }) => `${name} ${plainNumber(column.same)}`).join(", ")}.` : "";
      const varying = columns.filter((column) => !constant.includes(column)).map((column) => ({ ...column, values: values(i, column.name) }));
      table = new VirtualTable(inside, `Results of ${experiment}`, varying, rows);
      tools.replaceChildren(...(data.results.length > 1 ? [choice] : []),
        filterInput("words, or column>value", (text) => table.filter(text)), table.count,
        csvButton(`${data.name}-${experiment}-shown.csv`, "CSV of these rows", () => table.csv()),
        csvButton(`${data.name}-results.csv`, "CSV of all results", allResults));
    };
    const choice = chooser("Experiment", data.results.map(({ experiment, rows }) => `${experiment} (${rows})`), show);
    box.append(tools, same, inside);
    show(0);
  },
};

function allResults() {
  const names = [...new Set(data.results.flatMap(({ columns }) => columns.map(({ name }) => name)))];
  const rows = data.results.flatMap(({ rows: count }, table) => {
    const columns = names.map((name) => values(table, name));
    return Array.from({ length: count }, (_, row) => columns.map((column) => column?.[row] ?? null));
  });
  return csv(names, rows);
}

function roofline(parent, panel, names) {
  const { level, unit, bandwidth, rate, table, row, intensity, share, above } = panel;
  const rates = table.map((t, i) => at(t, "executed_flops", row[i]) / at(t, "time_median", row[i]));
  const [lows, highs] = ["time_high", "time_low"].map((name) =>
    table.map((t, i) => (at(t, name, row[i]) === null ? null : at(t, "executed_flops", row[i]) / at(t, name, row[i]))));
  const ladder = table.map((t, i) => names.indexOf(groupOf(at(t, "implementation", row[i]))));
  const ceiling = ({ name, measured, datasheet }, units) =>
    `${name} ${withPrefix(measured, units)}${datasheet === null ? "" : ` (data sheet ${withPrefix(datasheet, units)})`}`;
  const plot = figure(parent, `${level}, ${unit}`, `${ceiling(bandwidth, "B/s")}; ${ceiling(rate, "FLOP/s")}`);
  const flagged = new Map(Object.entries(above).map(([i, check]) => [Number(i), check]));
  const roof = (slope, top, [from, to]) => [[from, from * slope], [top / slope, top], [Math.max(to, top / slope), top]];
  new Plot(plot, {
    label: `Roofline at ${level} in ${unit}`,
    x: { label: `executed FLOP a byte asked of ${level} (counted)`, log: true, format: (v) => plainNumber(v), include: [0.4, 3].map((share) => (share * rate.measured) / bandwidth.measured) },
    y: { label: "executed FLOP/s", log: true, format: (v) => withPrefix(v, "FLOP/s"), include: [1.3 * (rate.datasheet ?? rate.measured)] },
    points: { x: intensity, y: rates, yLow: lows, yHigh: highs },
    looks: (i) => ({ shape: ladder[i], colour: `c${ladder[i] % 8}` }),
    flagged: new Set(flagged.keys()),
    lines: (x) => [
      { kind: "roof", points: roof(bandwidth.measured, rate.measured, x) },
      ...(rate.datasheet === null ? [] : [{ kind: "datasheet", points: bandwidth.datasheet === null
        ? [[rate.datasheet / bandwidth.measured, rate.datasheet], [x[1], rate.datasheet]] : roof(bandwidth.datasheet, rate.datasheet, x) }]),
    ],
    describe: (i) => {
      const check = flagged.get(i), flops = (v) => withPrefix(v, "FLOP/s");
      return {
        title: at(table[i], "implementation", row[i]),
        rows: [["problem", at(table[i], "problem", row[i])], ["rate", flops(rates[i]) + range(lows[i], highs[i], flops)], ...timeRows(table[i], row[i]),
          ["intensity", `${plainNumber(intensity[i])} FLOP a byte`], ["share of this roof", percent(share[i])]],
        note: check ? `Above the roof: ${aboveWords(check)}` : at(table[i], "finding", row[i]),
      };
    },
  });
  if (!flagged.size) return;
  const told = [...flagged].slice(0, TOLD).map(([i, check]) =>
    `${at(table[i], "implementation", row[i])} (${at(table[i], "problem", row[i])}) lies above the roof: ${aboveWords(check)}`);
  if (flagged.size > TOLD) told.push(`So do ${flagged.size - TOLD} more, in rings: each says why when it is pointed at.`);
  plot.parentElement.append(node("ul", { class: "above" }, ...told.map((words) => node("li", {}, words))));
}

const aboveWords = ({ check, explains, why }) => (explains ? `${check} explains it, ${why}.` : `not explained; ${check === "none" ? "" : `${check}: `}${why}.`);

function drawLadder(parent, { table, subject, problem, rows, over, gain, gain_low, gain_high }) {
  const names = rows.map((row) => at(table, subject, row));
  const short = names.map((name) => name.split("/").at(-1));
  const peer = (i) => Number(names[i].startsWith("torch-"));
  const look = (i) => ({ shape: 3 * peer(i), colour: `c${peer(i)}` });
  const column = (name) => rows.map((row) => at(table, name, row));
  const promisedLow = column("predicted_low"), promisedHigh = column("predicted_high");
  const describe = (i) => ({
    title: names[i],
    rows: [...timeRows(table, rows[i]), ["idea", at(table, "idea", rows[i])],
      ["gain", gain[i] === null ? "" : `${plainNumber(gain[i])}×${range(gain_low[i], gain_high[i], (v) => `${plainNumber(v)}×`)} over ${over[i]}`],
      ["promised", promisedLow[i] === null ? "" : promisedLow[i] === promisedHigh[i] ? `${promisedLow[i]}×` : `${promisedLow[i]} – ${promisedHigh[i]}×`],
      ["rate", at(table, "dense_equivalent_rate", rows[i]) === null ? "" : `${withPrefix(at(table, "dense_equivalent_rate", rows[i]), "FLOP/s")} dense-equivalent`],
      ["share of the roof", percent(at(table, "roof_share", rows[i]))], ["nmse", plainNumber(at(table, "nmse", rows[i]))]],
    note: at(table, "finding", rows[i]) ?? "",
  });
  const words = [data.results[table].experiment, problem].filter(Boolean).join(": ");
  new Plot(figure(parent, "Time", words), {
    label: `Time of ${words}`,
    x: { label: "time of one call", log: true, format: seconds },
    y: { names: short },
    points: { x: column("time_median"), y: rows.map((_, i) => i), xLow: column("time_low"), xHigh: column("time_high") },
    looks: look,
    describe,
  });
  const compared = rows.map((_, i) => i).filter((i) => gain[i] !== null);
  if (!compared.length) return;
  const pick = (all) => compared.map((i) => all[i]);
  const least = 1.01;  // a promise of one number is a bar so broad
  new Plot(figure(parent, "Gain over the rung it names, else the one before", "Marks: measured. Broad bars: what the source promised."), {
    label: `Gain of ${words}`,
    x: { label: "times as fast", log: true, format: (v) => `${plainNumber(v)}×`, include: [1, ...pick(promisedLow), ...pick(promisedHigh)] },
    y: { names: short },
    points: { x: pick(gain), y: compared, xLow: pick(gain_low), xHigh: pick(gain_high) },
    looks: (i) => look(compared[i]),
    lines: (_, y) => [
      { kind: "axis", points: [[1, y[0]], [1, y[1]]] },
      ...compared.filter((i) => promisedLow[i] !== null).map((i) => ({ kind: "promised",
        points: [[promisedLow[i] / least, i], [promisedHigh[i] * least, i]] })),
    ],
    describe: (i) => describe(compared[i]),
  });
}

// 0 … 99.9 % and more on a scale of the share that is left: each ninth of the rest weighs the same.
function sparsityPaint(share) {
  const place = (4 / 3) * Math.min(3, -Math.log10(Math.max(1e-9, 1 - share))), step = Math.min(3, Math.floor(place));
  return `color-mix(in oklab, var(--s${step}) ${Math.round(4 * (1 - place + step)) * 25}%, var(--s${step + 1}))`;
}

function tradeoff(parent, { table, error, speed, rows, across, sparsity, group, floor }) {
  const groups = decoded(group, rows.length), names = [...new Set(groups)];
  const errors = rows.map((row) => at(table, error, row));
  const isRate = speed?.endsWith("rate");
  const sayX = speed === null ? percent : isRate ? (v) => withPrefix(v, "FLOP/s") : seconds;
  const about = (name) => data.results[table].columns.find((column) => column.name === name)?.about.split(":")[0] ?? name;
  const known = sparsity.some((share) => share !== null);
  if (names.length > 1) parent.append(legend(names.map((words, shape) => ({ words: words || "others", shape, look: "unknown" }))));
  if (known) {
    parent.append(node("div", { class: "legend" }, node("span", {}, "pairs that take no part: 0 %", node("span", { class: "ramp", "aria-hidden": "true" }), "99.9 %"),
      ...(sparsity.includes(null) ? [node("span", {}, "grey: not recorded")] : [])));
  }
  const small = errors.filter((value) => value <= floor).length;
  const words = `${about(error)}, over ${speed === null ? "the share of pairs kept" : about(speed)}${small ? `. Errors of at most ${floor} are drawn there` : ""}`;
  new Plot(figure(parent, data.results[table].experiment, words), {
    label: `Error beside speed of ${data.results[table].experiment}`,
    x: { label: speed === null ? "share of pairs kept" : isRate ? "dense-equivalent FLOP/s (right is faster)" : "time (left is faster)", log: true, format: sayX },
    y: { label: `${error} (low is exact)`, log: true, format: (v) => plainNumber(v) },
    points: { x: across, y: errors.map((value) => Math.max(value, floor)) },
    looks: (i) => ({ shape: names.indexOf(groups[i]), ...(sparsity[i] === null ? { colour: "unknown" } : { paint: sparsityPaint(sparsity[i]) }) }),
    describe: (i) => ({
      title: at(table, "implementation", rows[i]) ?? at(table, "solver", rows[i]) ?? (groups[i] || data.results[table].experiment),
      rows: [["problem", at(table, "problem", rows[i])], [error, plainNumber(errors[i])], [speed === null ? "pairs kept" : isRate ? "rate" : "time", sayX(across[i])],
        ...(isRate ? timeRows(table, rows[i]) : []), ["sparsity", percent(sparsity[i])]],
    }),
  });
}
