// Draws the rows of an item's runs, and the paper's values beside them, once a reader opens its chart: values under the
// pointer, zoom by wheel and drag, series on and off by a click on the legend.
const COLORS = {
  "#0072B2": "ATP, ATP-OPT, Cupcake, Espresso, Gemini, SDPipe, SEMI, Zen",
  "#000000": "AllReduce, All-Reduce+Pipe, ATP-1, Baseline, Dense, FP32, w/o",
  "#999999": "DDP, DDP's buckets",
  "#6E3B00": "ATP-16, FP16, ideal, torch, torchft, torchft DiLoCo",
  "#999933": "Upper bound, Upper Bound",
  "#D55E00": "AD-PSGD+Pipe, AGsparse, HighFreq, HiPress, Megatron-LM, MIG",
  "#009E73": "ATP-2, Blocking, efsignsgd, GRACE, HetPipe, HiTopKComm, SparCML, ZERO-Rd",
  "#E69F00": "ATP-4, BytePS-Compress, dgc, Evenly split, hivemind, Sparse PS, Strawman, ZERO-Pri",
  "#CC79A7": "ATP-8, Naive, OmniReduce, randomk, Single split, torchft LocalSGD, ZERO-PriDiffR",
  "#56B4E9": "2D/2.5D, async_save, Balanced Parallelism, Bucket fusion, onebit, Unpipelined, ZERO-PriDiffE",
};  // as in plots/style.py, which a test compares
const PALETTE = ["#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000", "#6E3B00", "#999933"];
const FIXED = ["quantity", "unit", "run", "value", "low", "high"], PAPER = "paper";
const SERIES = ["scheme", "method", "solution", "algorithm", "codec", "way", "series"];  // keys that name a series
const SHAPES = ["circle", "square", "triangle-up", "diamond", "triangle-down", "triangle-right", "triangle-left"];  // series of one colour differ
const LOG = 30;  // a range of values from which an axis is logarithmic

const unique = values => [...new Set(values)];
const known = Object.entries(COLORS).flatMap(([color, names]) => names.split(", ").map(name => [name, color]));

function colorsOf(names) {
  const used = [];
  return names.map(name => {
    const own = known.filter(([own]) => name === own || [" ", ",", "("].some(end => name.startsWith(own + end)));
    const free = [...PALETTE].sort((a, b) => used.filter(c => c === a).length - used.filter(c => c === b).length)[0];
    const color = own.length ? own.sort((a, b) => b[0].length - a[0].length)[0][1] : free;
    used.push(color);
    return color;
  });
}

function isNumeric(rows, key) { return rows.every(row => typeof row[key] === "number"); }

function isWide(values) {
  const known = values.filter(Number.isFinite);
  return known.length > 1 && Math.min(...known) > 0 && Math.max(...known) > LOG * Math.min(...known);
}

// Choose the keys of the horizontal axis, of the colour, and of the small charts side by side.
function choose(rows, keys) {
  const count = key => unique(rows.map(row => row[key])).length;
  const left = keys.filter(key => count(key) > 1 && rows.every(row => row[key] !== undefined || key === "run"));
  const most = among => [...among].sort((a, b) => count(b) - count(a))[0];
  const numeric = left.filter(key => isNumeric(rows, key) && count(key) > 2);
  const named = left.filter(key => !isNumeric(rows, key) && key !== "run");
  const color = SERIES.find(key => left.includes(key)) ?? most(named.filter(key => count(key) <= 12 && named.length + numeric.length > 1)) ?? "run";
  const x = most(numeric.filter(key => key !== color)) ?? most(left.filter(key => key !== color && key !== "run")) ?? color;
  const split = most(left.filter(key => ![x, color].includes(key) && count(key) <= 12)) ?? "";
  return {x, color, split};
}

function specOf(rows, keys, {x, color, split, log}) {
  const series = unique(rows.map(row => String(row[color]))), along = isNumeric(rows, x) && x !== color;
  const scale = {type: log ? "log" : "linear", zero: !log && !along}, unit = rows[0].unit === "1" ? "" : rows[0].unit;
  const title = [rows[0].quantity.replaceAll("_", " "), unit].filter(Boolean).join(", "), words = x.replaceAll("_", " ");
  const range = isWide(rows.map(row => row[x])) ? "log" : "linear";
  const place = along ? {x: {field: x, type: "quantitative", title: words, scale: {type: range, zero: false}}}
    : {x: {field: x, type: "nominal", title: words, sort: null}, xOffset: {field: color, sort: null}};
  const looks = {field: color, type: "nominal", sort: null, scale: {domain: series, range: colorsOf(series)}, title: color.replaceAll("_", " ")};
  const shape = {...looks, scale: {domain: series, range: series.map((_, place) => SHAPES[place % SHAPES.length])}};
  const tooltip = ["run", ...keys.filter(key => key !== "run"), "value", "low", "high", "unit"].map(field => ({field, title: field.replaceAll("_", " ")}));
  const fade = {condition: {param: "on", value: 1}, value: 0.06};
  const ours = [{filter: `datum.run !== "${PAPER}"`}], detail = keys.filter(key => ![x, color, split].includes(key)).map(field => ({field}));
  const zoom = {name: "zoom", select: {type: "interval", encodings: along ? ["x", "y"] : ["y"]}, bind: "scales"};
  const points = {
    transform: ours, params: [zoom, {name: "on", select: {type: "point", fields: [color]}, bind: "legend"}],
    mark: {type: "point", filled: true, size: 50},
    encoding: {...place, y: {field: "value", type: "quantitative", title, scale}, color: looks, shape, opacity: fade, tooltip},
  };
  const spread = {
    transform: [...ours, {filter: "isValid(datum.low)"}], mark: {type: "rule"},
    encoding: {...place, y: {field: "low", type: "quantitative", title}, y2: {field: "high"}, color: looks, opacity: fade},
  };
  const line = {transform: ours, mark: "line", encoding: {...place, y: points.encoding.y, color: looks, detail, opacity: fade}};
  const paper = {
    transform: [{filter: `datum.run === "${PAPER}"`}], mark: {type: "point", shape: "cross", angle: 45, size: 90, strokeWidth: 1.5},
    encoding: {...place, y: points.encoding.y, color: looks, opacity: fade, tooltip},
  };
  const layer = [points, spread, ...(along ? [line] : []), ...(rows.some(row => row.run === PAPER) ? [paper] : [])];
  const size = split ? {width: 250, height: 190} : {width: 620, height: 300};
  const config = {font: "system-ui, sans-serif", axis: {grid: true, labelLimit: 120}, legend: {symbolOpacity: 1, labelLimit: 220}};
  const shared = {data: {values: rows}, config, background: "white"};
  return split ? {...shared, facet: {field: split, title: split.replaceAll("_", " "), sort: null}, columns: 3, spec: {layer, ...size}} : {...shared, layer, ...size};
}

function csvOf(columns, rows) {
  const quote = value => value === null || value === undefined ? "" : /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value;
  return [columns, ...rows].map(row => row.map(quote).join(",")).join("\n") + "\n";
}

function open(details) {
  const {columns, rows} = JSON.parse(details.querySelector("script").textContent), id = details.dataset.item;
  const all = rows.map(row => Object.fromEntries(columns.map((name, place) => [name, row[place] ?? undefined])));
  const controls = details.querySelector(".controls"), chart = details.querySelector(".drawn"), chosen = {};
  const control = (name, values, current, change) => {
    const select = Object.assign(document.createElement("select"), {onchange: () => change(select.value)});
    for (const value of values) select.add(new Option(value.replaceAll("_", " ") || "—", value, false, value === current));
    const label = document.createElement("label");
    label.append(`${name} `, select);
    controls.append(label);
  };
  const draw = () => {
    const shown = all.filter(row => row.quantity === chosen.quantity);
    vegaEmbed(chart, specOf(shown, chosen.keys, chosen), {ast: true, logLevel: 1, renderer: "svg", downloadFileName: id, actions: {export: true, source: false, compiled: false, editor: false}});
  };
  const show = quantity => {
    const shown = all.filter(row => row.quantity === quantity), keys = ["run", ...columns.filter(name => !FIXED.includes(name) && shown.some(row => row[name] !== undefined))];
    Object.assign(chosen, {quantity, keys}, choose(shown, keys), {log: isWide(shown.map(row => row.value))});
    controls.replaceChildren();
    control("Quantity", unique(all.map(row => row.quantity)), quantity, show);
    for (const [name, part] of [["Across", "x"], ["Colour", "color"], ["Side by side", "split"]]) {
      control(name, part === "split" ? ["", ...keys] : keys, chosen[part], value => { chosen[part] = value; draw(); });
    }
    control("Scale", ["linear", "log"], chosen.log ? "log" : "linear", value => { chosen.log = value === "log"; draw(); });
    const text = new Blob([csvOf(columns, rows)], {type: "text/csv"});
    controls.append(Object.assign(document.createElement("a"), {href: URL.createObjectURL(text), download: `${id}.csv`, textContent: "CSV"}));
    draw();
  };
  const most = (a, b) => all.filter(row => row.quantity === b).length - all.filter(row => row.quantity === a).length;
  show(all.find(row => row.run === PAPER)?.quantity ?? unique(all.map(row => row.quantity)).sort(most)[0]);
}

for (const details of document.querySelectorAll("details.chart")) {
  details.hidden = false;
  details.addEventListener("toggle", () => open(details), {once: true});
}
