"use strict";
// What the sections show: each function fills one box from the data that the page carries.

const data = JSON.parse(document.getElementById("data").textContent);

// A column as Python wrote it (tables.py) as an array.
function decoded(column, rows) {
  if (Array.isArray(column)) return column.map((value) => (typeof value === "string" ? Number(value) : value));
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
const flops = (value) => withPrefix(value, "FLOP/s");
const times = (value) => `${plainNumber(value)}×`;
const range = (low, high, say) => (low === null || high === null ? "" : ` [${say(low)} – ${say(high)}]`);
const ladderOf = (table, row) => at(table, "implementation", row).split("/")[0];

function timeRows(table, row) {
  const low = at(table, "time_low", row), high = at(table, "time_high", row);
  return [["time", seconds(at(table, "time_median", row)) + range(low, high, seconds)]];
}

// entries: {words, shape, look} of a mark, or {words, line}
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

const experimentOf = ({ table }) => data.results[table].experiment;

// The rooflines of one report: a legend, and a figure a panel.
function rooflines(box, drawn) {
  const kernels = drawn.flatMap(({ table, row }) => table.map((each, i) => ladderOf(each, row[i])));
  const names = [...new Set(kernels)].sort();
  const marks = names.map((words, i) => ({ words, shape: i, look: `c${i % 8}` }));
  const panels = node("div", { class: "panels" });
  const measured = drawn.some(({ bandwidth, rate }) => !bandwidth.unmeasured && !rate.unmeasured);
  const lines = [...(measured ? [{ words: "measured", line: "roof" }] : []), { words: "data sheet", line: "datasheet" }];
  box.append(legend([...marks, ...lines]), panels);
  for (const panel of drawn) roofline(panels, panel, names);
}

const DRAW = {
  rooflines(box) {
    rooflines(box, data.rooflines);
  },

  recorded(box) {
    const inside = node("div");
    const show = (i) => {
      inside.replaceChildren();
      rooflines(inside, data.recorded[i].panels);
    };
    const names = data.recorded.map(({ title, machine }) => `${title} (${machine})`);
    box.append(node("div", { class: "tools" }, chooser("Report", names, show)), inside);
    show(0);
  },

  predicted(box) {
    const { table, row, half, most } = data.predicted;
    const column = (name) => table.map((each, i) => at(each, name, row[i]));
    const ladder = table.map((each, i) => ladderOf(each, row[i])), names = [...new Set(ladder)].sort();
    const marks = names.map((words, i) => ({ words, shape: i, look: `c${i % 8}` }));
    const lines = [{ words: "as measured", line: "roof" }, { words: "25 % off", line: "datasheet" }];
    box.append(legend([...marks, ...lines]));
    const words = `${table.length} cases; half are within ${percent(half)}, eight in ten within ${percent(most)}`;
    const measured = column("time_median"), predicted = column("time_predicted");
    const low = column("time_predicted_low"), high = column("time_predicted_high");
    const over = (values) => values.map((value, i) => (value === null ? null : value / measured[i]));
    const level = (kind, ratio, [from, to]) => ({ kind, points: [[from, ratio], [to, ratio]] });
    new Plot(figure(box, "Time of a call", words), {
      label: "Predicted against measured time",
      x: { label: "measured time", log: true, format: seconds },
      y: { label: "predicted / measured", log: true, format: times, include: [0.5, 2] },
      points: { x: measured, y: over(predicted), yLow: over(low), yHigh: over(high) },
      looks: (i) => ({ shape: names.indexOf(ladder[i]), colour: `c${names.indexOf(ladder[i]) % 8}` }),
      lines: (x) => [level("roof", 1, x), level("datasheet", 1.25, x), level("datasheet", 0.75, x)],
      describe: (i) => ({
        title: at(table[i], "implementation", row[i]),
        rows: [
          ["problem", at(table[i], "problem", row[i])],
          ...timeRows(table[i], row[i]),
          ["predicted", seconds(predicted[i]) + range(low[i], high[i], seconds)],
          ["verdict", at(table[i], "verdict", row[i])],
        ],
        note: at(table[i], "diagnosis", row[i]) ?? "",
      }),
    });
  },

  beside(box) {
    const { case: cases, change, before, after, ratio, note } = data.beside;
    const names = [...new Set(change)].sort();
    const colour = { SLOWER: "c1", FASTER: "c2", SAME: "c0" };
    const looks = names.map((words, i) => ({ words, shape: i, look: colour[words] ?? "c3" }));
    box.append(legend(looks));
    new Plot(figure(box, "Time of a case in both runs", `${cases.length} cases`), {
      label: "Time of this run over that of the other",
      x: { label: "time in that run", log: true, format: seconds },
      y: { label: "this run / that run", log: true, format: times, include: [0.9, 1.1] },
      points: { x: before, y: ratio },
      looks: (i) => ({ shape: names.indexOf(change[i]), colour: colour[change[i]] ?? "c3" }),
      lines: ([from, to]) => [{ kind: "roof", points: [[from, 1], [to, 1]] }],
      describe: (i) => ({
        title: cases[i],
        rows: [["that run", seconds(before[i])], ["this run", seconds(after[i])], ["this / that", times(ratio[i])], ["change", change[i]]],
        note: note[i],
      }),
    });
  },

  ladders(box) {
    const experiments = [...new Set(data.ladders.map(experimentOf))];
    const panels = node("div", { class: "panels" }), problems = node("span");
    const theirs = { words: "a peer, in PyTorch", shape: 3, look: "c1" };
    const peers = legend([{ words: "ours", shape: 0, look: "c0" }, theirs]);
    const show = (ladder) => {
      panels.replaceChildren();
      drawLadder(panels, ladder);
      peers.hidden = !ladder.rows.some((row) => at(ladder.table, ladder.subject, row).startsWith("torch-"));
    };
    const choose = (i) => {
      const held = data.ladders.filter((ladder) => experimentOf(ladder) === experiments[i]);
      const names = held.map((ladder) => ladder.problem || "the only one");
      problems.replaceChildren(chooser("Problem", names, (j) => show(held[j])));
      show(held[0]);
    };
    box.append(node("div", { class: "tools" }, chooser("Experiment", experiments, choose), problems), peers, panels);
    choose(0);
  },

  tradeoffs(box) {
    const inside = node("div");
    const show = (i) => {
      inside.replaceChildren();
      tradeoff(inside, data.tradeoffs[i]);
    };
    const choice = chooser("Experiment", data.tradeoffs.map(experimentOf), show);
    box.append(node("div", { class: "tools" }, choice), inside);
    show(0);
  },

  results(box) {
    const inside = node("div"), tools = node("div", { class: "tools" }), same = node("p", { class: "words" });
    let table;
    const show = (i) => {
      const { experiment, rows, columns } = data.results[i];
      const constant = columns.filter(({ data: column }) => rows > 1 && Object.hasOwn(column, "same"));
      const words = constant.map(({ name, data: column }) => `${name} ${plainNumber(column.same)}`).join(", ");
      same.textContent = words && `The same in all: ${words}.`;
      const asked = data.columns.flatMap((name) => columns.filter((column) => column.name === name));
      const varying = asked.length ? asked : columns.filter((column) => !constant.includes(column));
      const filled = varying.map((column) => ({ ...column, values: values(i, column.name) }));
      table = new VirtualTable(inside, `Results of ${experiment}`, filled, rows);
      tools.replaceChildren(...(own.length > 1 ? [choice] : []),
        filterInput("words, or column>value", (text) => table.filter(text)), table.count,
        csvButton(`${data.name}-${experiment}-shown.csv`, "CSV of these rows", () => table.csv()),
        csvButton(`${data.name}-results.csv`, "CSV of all results", allResults));
    };
    const own = ownResults();
    const choice = chooser("Experiment", own.map(({ experiment, rows }) => `${experiment} (${rows})`), show);
    box.append(tools, same, inside);
    show(0);
  },
};

// The long name of a column.
function aboutOf(table, name) {
  return data.results[table].columns.find((column) => column.name === name)?.about.split(":")[0] || name;
}

// Without the tables of recorded reports, which stand behind.
function ownResults() {
  return data.results.filter(({ recorded }) => !recorded);
}

function allResults() {
  const own = ownResults();
  const names = [...new Set(own.flatMap(({ columns }) => columns.map(({ name }) => name)))];
  const rows = own.flatMap(({ rows: count }, table) => {
    const columns = names.map((name) => values(table, name));
    return Array.from({ length: count }, (_, row) => columns.map((column) => column?.[row] ?? null));
  });
  return csv(names, rows);
}

function roofline(parent, panel, names) {
  const { level, unit, axis, bandwidth, rate, table, row, intensity, share, above } = panel;
  const of = (name, i) => at(table[i], name, row[i]);
  const rateAt = (name) => table.map((_, i) => (of(name, i) === null ? null : of("executed_flops", i) / of(name, i)));
  const rates = rateAt("time_median"), lows = rateAt("time_high"), highs = rateAt("time_low");
  const ladder = table.map((each, i) => names.indexOf(ladderOf(each, row[i])));
  const flagged = new Map(Object.entries(above).map(([i, check]) => [Number(i), check]));
  const words = ({ name, measured, datasheet, unmeasured }, units) => {
    if (unmeasured) return `${name} ${withPrefix(measured, units)} (data sheet, not measured)`;
    const beside = datasheet === null ? "" : ` (data sheet ${withPrefix(datasheet, units)})`;
    return `${name} ${withPrefix(measured, units)}${beside}`;
  };
  const plot = figure(parent, `${level}, ${unit}`, `${words(bandwidth, axis.units)}; ${words(rate, "FLOP/s")}`);
  const ridges = [0.4, 3].map((part) => (part * rate.measured) / bandwidth.measured);
  new Plot(plot, {
    label: `Roofline at ${level} in ${unit}`,
    x: { label: axis.words, log: true, format: plainNumber, include: ridges },
    y: { label: "executed FLOP/s", log: true, format: flops, include: [1.3 * (rate.datasheet ?? rate.measured)] },
    points: { x: intensity, y: rates, yLow: lows, yHigh: highs },
    looks: (i) => ({ shape: ladder[i], colour: `c${ladder[i] % 8}` }),
    flagged,
    lines: ([from, to]) => roofs(bandwidth, rate, from, to),
    describe: (i) => ({
      title: of("implementation", i),
      rows: [
        ["problem", of("problem", i)],
        ["rate", flops(rates[i]) + range(lows[i], highs[i], flops)],
        ...timeRows(table[i], row[i]),
        [axis.words, plainNumber(intensity[i])],
        ["share of this roof", percent(share[i])],
        ["verdict", of("verdict", i)],
      ],
      note: flagged.has(i) ? `Above the roof: ${aboveWords(flagged.get(i))}` : of("diagnosis", i) || of("finding", i),
    }),
  });
  if (!flagged.size) return;
  const told = [...flagged].slice(0, TOLD).map(([i, check]) =>
    `${of("implementation", i)} (${of("problem", i)}) lies above the roof: ${aboveWords(check)}`);
  if (flagged.size > TOLD) told.push(`So do ${flagged.size - TOLD} more, in rings: each says why when it is pointed at.`);
  plot.parentElement.append(node("ul", { class: "above" }, ...told.map((each) => node("li", {}, each))));
}

// The measured roof, and the data sheet's; where that names no bandwidth, only its rate. A roof of which a part was not
// measured is the data sheet's.
function roofs(bandwidth, rate, from, to) {
  const roof = (slope, top) => [[from, from * slope], [top / slope, top], [Math.max(to, top / slope), top]];
  if (bandwidth.unmeasured || rate.unmeasured) return [{ kind: "datasheet", points: roof(bandwidth.measured, rate.measured) }];
  const drawn = [{ kind: "roof", points: roof(bandwidth.measured, rate.measured) }];
  if (rate.datasheet === null) return drawn;
  const whole = roof(bandwidth.datasheet ?? bandwidth.measured, rate.datasheet);
  return [...drawn, { kind: "datasheet", points: bandwidth.datasheet === null ? whole.slice(1) : whole }];
}

function aboveWords({ check, explains, why }) {
  return explains ? `${check} explains it, ${why}.` : `not explained; ${check === "none" ? "" : `${check}: `}${why}.`;
}

function drawLadder(parent, ladder) {
  const { table, subject, problem, rows, over, gain, gain_low: gainLow, gain_high: gainHigh } = ladder;
  const column = (name) => rows.map((row) => at(table, name, row));
  const names = column(subject), short = names.map((name) => name.split("/").at(-1));
  const peer = (i) => Number(names[i].startsWith("torch-"));
  const look = (i) => ({ shape: 3 * peer(i), colour: `c${peer(i)}` });
  const low = column("predicted_low"), high = column("predicted_high"), dense = column("dense_equivalent_rate");
  const describe = (i) => ({
    title: names[i],
    rows: [
      ...timeRows(table, rows[i]),
      ["idea", at(table, "idea", rows[i])],
      ["gain", gain[i] !== null && `${times(gain[i])}${range(gainLow[i], gainHigh[i], times)} over ${over[i]}`],
      ["promised", low[i] !== null && (low[i] === high[i] ? times(low[i]) : `${times(low[i])} – ${times(high[i])}`)],
      ["rate", dense[i] !== null && `${flops(dense[i])} dense-equivalent`],
      ["share of the roof", percent(at(table, "roof_share", rows[i]))],
      ["nmse", plainNumber(at(table, "nmse", rows[i]))],
      ["verdict", at(table, "verdict", rows[i])],
      ["because", at(table, "diagnosis", rows[i])],
    ],
    note: at(table, "finding", rows[i]) ?? "",
  });
  const words = [experimentOf(ladder), problem].filter(Boolean).join(": ");
  new Plot(figure(parent, "Time", words), {
    label: `Time of ${words}`,
    x: { label: aboutOf(table, "time_median"), log: true, format: seconds },
    y: { names: short },
    points: { x: column("time_median"), y: rows.map((_, i) => i), xLow: column("time_low"), xHigh: column("time_high") },
    looks: look,
    describe,
  });
  const compared = rows.map((_, i) => i).filter((i) => gain[i] !== null);
  if (!compared.length) return;
  const pick = (all) => compared.map((i) => all[i]);
  const least = 1.01;  // a promise of one number is a bar so broad
  const promises = compared.filter((i) => low[i] !== null)
    .map((i) => ({ kind: "promised", points: [[low[i] / least, i], [high[i] * least, i]] }));
  const plot = figure(parent, "Gain over the rung it names, else the one before",
    promises.length ? "Marks: measured. Broad bars: what the source promised." : "Measured.");
  new Plot(plot, {
    label: `Gain of ${words}`,
    x: { label: "times as fast", log: true, format: times, include: [1, ...pick(low), ...pick(high)] },
    y: { names: short },
    points: { x: pick(gain), y: compared, xLow: pick(gainLow), xHigh: pick(gainHigh) },
    looks: (i) => look(compared[i]),
    lines: (_, [top, bottom]) => [{ kind: "axis", points: [[1, top], [1, bottom]] }, ...promises],
    describe: (i) => describe(compared[i]),
  });
}

// 0 … 99.9 % and more on a scale of the share that is left: each factor of ten weighs the same.
function sparsityPaint(share) {
  const place = (4 / 3) * Math.min(3, -Math.log10(Math.max(1e-9, 1 - share))), step = Math.min(3, Math.floor(place));
  const weight = Math.round(4 * (1 - place + step)) * 25;  // in quarters, so that few marks differ
  return `color-mix(in oklab, var(--s${step}) ${weight}%, var(--s${step + 1}))`;
}

function tradeoff(parent, entry) {
  const { table, error, speed, rows, across, sparsity, group, floor } = entry;
  const groups = decoded(group, rows.length), names = [...new Set(groups)];
  const errors = rows.map((row) => at(table, error, row));
  const about = (name) => aboutOf(table, name);
  // What stands on the x axis: a rate, a time, or where nothing was timed the share of pairs kept.
  const [axis, name, say] = speed === null ? ["share of pairs kept", "pairs kept", percent]
    : speed.endsWith("rate") ? ["dense-equivalent FLOP/s (right is faster)", "rate", flops]
    : ["time (left is faster)", "time", seconds];
  if (names.length > 1) {
    parent.append(legend(names.map((words, shape) => ({ words: words || "others", shape, look: "unknown" }))));
  }
  if (sparsity.some((share) => share !== null)) {
    const ramp = node("span", { class: "ramp", "aria-hidden": "true" });
    const scale = node("span", {}, "pairs that take no part: 0 %", ramp, "99.9 %");
    parent.append(node("div", { class: "legend" }, scale, sparsity.includes(null) ? "grey: not recorded" : ""));
  }
  const small = errors.some((value) => value <= floor) ? `. Errors of at most ${plainNumber(floor)} are drawn there` : "";
  const words = `${about(error)}, over ${speed === null ? axis : about(speed)}${small}`;
  new Plot(figure(parent, experimentOf(entry), words), {
    label: `Error beside speed of ${experimentOf(entry)}`,
    x: { label: axis, log: true, format: say },
    y: { label: `${error} (low is exact)`, log: true, format: plainNumber },
    points: { x: across, y: errors.map((value) => Math.max(value, floor)) },
    looks: (i) => ({
      shape: names.indexOf(groups[i]),
      ...(sparsity[i] === null ? { colour: "unknown" } : { paint: sparsityPaint(sparsity[i]) }),
    }),
    describe: (i) => ({
      title: at(table, "implementation", rows[i]) ?? at(table, "solver", rows[i]) ?? (groups[i] || experimentOf(entry)),
      rows: [
        ["problem", at(table, "problem", rows[i])],
        [error, plainNumber(errors[i])],
        [name, say(across[i])],
        ...(name === "rate" ? timeRows(table, rows[i]) : []),
        ["sparsity", percent(sparsity[i])],
      ],
    }),
  });
}
