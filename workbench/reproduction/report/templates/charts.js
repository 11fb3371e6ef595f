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

// A canvas that writes the operators of a PDF page: Vega draws on it as on any other. Text is Helvetica.
function pdfCanvas(height) {
  const ruler = document.createElement("canvas").getContext("2d"), out = [], states = [], alphas = [];
  const put = (...words) => out.push(words.map(word => typeof word === "number" ? +word.toFixed(3) : word).join(" "));
  let path = [], at = [0, 0];
  const times = ([a, b, c, d, e, f], [g, h, i, j, k, l]) => [a * g + c * h, b * g + d * h, a * i + c * j, b * i + d * j, a * k + c * l + e, b * k + d * l + f];
  const onPage = (x, y) => times(canvas.matrix, [1, 0, 0, 1, x, y]).slice(4);  // where a point lies as it is named, as on any canvas
  const step = (operator, ...numbers) => {
    path.push([...numbers.flatMap((x, place) => place % 2 ? [] : onPage(x, numbers[place + 1])), operator]);
    at = numbers.slice(-2);
  };
  const draw = operator => { for (const part of path) put(...part); put(operator); };
  const colour = (style, operator) => {  // the browser reads any name of a colour
    ruler.fillStyle = style;
    const [red, green, blue, own = 1] = ruler.fillStyle.startsWith("#") ? ruler.fillStyle.match(/\w\w/g).map(part => parseInt(part, 16)) : ruler.fillStyle.match(/[\d.]+/g).map(Number);
    const alpha = own * canvas.globalAlpha;
    if (!alphas.includes(alpha)) alphas.push(alpha);
    put(`/A${alphas.indexOf(alpha)} gs`, red / 255, green / 255, blue / 255, operator);
  };
  const pen = () => {
    colour(canvas.strokeStyle, "RG");
    put(canvas.lineWidth, "w", ["butt", "round", "square"].indexOf(canvas.lineCap), "J", `[${canvas.dash.join(" ")}] 0 d`);
  };
  const spelled = text => text.replace(/[\u2212\u2013]/g, "-").replace(/[^\x20-\xff]/g, "?").replace(/[()\\]/g, "\\$&");
  const canvas = {
    fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, lineCap: "butt", globalAlpha: 1, font: "10px sans-serif", textAlign: "left", dash: [], matrix: [1, 0, 0, -1, 0, height],
    save() { states.push({...canvas}); put("q"); },
    restore() { Object.assign(canvas, states.pop()); put("Q"); },
    transform(...matrix) { canvas.matrix = times(canvas.matrix, matrix); },
    translate(x, y) { canvas.transform(1, 0, 0, 1, x, y); },
    scale(x, y) { canvas.transform(x, 0, 0, y, 0, 0); },
    rotate(angle) { const [c, s] = [Math.cos(angle), Math.sin(angle)]; canvas.transform(c, s, -s, c, 0, 0); },
    setLineDash(lengths) { canvas.dash = lengths; },
    beginPath() { path = []; },
    moveTo(x, y) { step("m", x, y); },
    lineTo(x, y) { step(path.length ? "l" : "m", x, y); },
    bezierCurveTo(...points) { step("c", ...points); },
    quadraticCurveTo(x, y, endX, endY) { step("c", ...[at[0], at[1], endX, endY].map((end, place) => end + 2 / 3 * ((place % 2 ? y : x) - end)), endX, endY); },
    arc(x, y, radius, from, to) {
      const parts = Math.max(1, Math.ceil(Math.abs(to - from) / 1.6)), turn = (to - from) / parts, pull = 4 / 3 * Math.tan(turn / 4) * radius;
      const on = (angle, ahead) => [x + radius * Math.cos(angle) - ahead * Math.sin(angle), y + radius * Math.sin(angle) + ahead * Math.cos(angle)];
      canvas.lineTo(...on(from, 0));
      for (let part = 0; part < parts; part += 1) step("c", ...on(from + part * turn, pull), ...on(from + (part + 1) * turn, -pull), ...on(from + (part + 1) * turn, 0));
    },
    rect(x, y, width, height) { step("m", x, y); step("l", x + width, y); step("l", x + width, y + height); step("l", x, y + height); canvas.closePath(); },
    closePath() { path.push(["h"]); },
    clip() { draw("W n"); },
    fill() { colour(canvas.fillStyle, "rg"); draw("f"); },
    stroke() { pen(); draw("S"); },
    clearRect() {},
    fillRect(...box) { path = []; canvas.rect(...box); canvas.fill(); },
    strokeRect(...box) { path = []; canvas.rect(...box); canvas.stroke(); },
    measureText(text) { ruler.font = canvas.font; return ruler.measureText(text); },
    fillText(text, x, y) {
      const size = parseFloat(canvas.font.match(/([\d.]+)px/)[1]), bold = canvas.font.includes("bold");
      ruler.font = `${bold ? "bold " : ""}${size}px Helvetica, Arial, sans-serif`;
      const left = x - ruler.measureText(text).width * ({center: 0.5, right: 1, end: 1}[canvas.textAlign] ?? 0);
      colour(canvas.fillStyle, "rg");
      put(`BT /F${+bold}`, size, "Tf", ...times(canvas.matrix, [1, 0, 0, -1, left, y]), `Tm (${spelled(String(text))}) Tj ET`);
    },
  };
  return {canvas, out, alphas};
}

async function pdfOf(view, width, height) {
  const {canvas, out, alphas} = pdfCanvas(height);
  await view.toCanvas(1, {externalContext: canvas});
  const content = out.join("\n"), font = name => `<< /Type /Font /Subtype /Type1 /BaseFont /${name} /Encoding /WinAnsiEncoding >>`;
  const looks = alphas.map((alpha, place) => `/A${place} << /ca ${alpha} /CA ${alpha} >>`).join(" ");
  const objects = [
    "<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 ${width} ${height}] /Contents 4 0 R /Resources << /Font << /F0 5 0 R /F1 6 0 R >> /ExtGState << ${looks} >> >> >>`,
    `<< /Length ${content.length} >>\nstream\n${content}\nendstream`, font("Helvetica"), font("Helvetica-Bold"),
  ];
  let text = "%PDF-1.4\n";
  const places = objects.map((object, place) => { const start = text.length; text += `${place + 1} 0 obj\n${object}\nendobj\n`; return start; });
  const table = places.map(place => `${String(place).padStart(10, "0")} 00000 n \n`).join("");
  text += `xref\n0 ${places.length + 1}\n0000000000 65535 f \n${table}trailer << /Size ${places.length + 1} /Root 1 0 R >>\nstartxref\n${text.length}\n%%EOF\n`;
  return new Blob([Uint8Array.from(text, letter => letter.charCodeAt(0))], {type: "application/pdf"});
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
    chosen.drawn = vegaEmbed(chart, specOf(shown, chosen.keys, chosen), {ast: true, logLevel: 1, renderer: "svg", downloadFileName: id, actions: {export: true, source: false, compiled: false, editor: false}});
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
    const save = (form, made) => {
      const onclick = async () => Object.assign(document.createElement("a"), {href: URL.createObjectURL(await made()), download: `${id}.${form}`}).click();
      controls.append(Object.assign(document.createElement("button"), {type: "button", textContent: form.toUpperCase(), onclick}));
    };
    const view = async () => (await chosen.drawn).view;
    save("csv", () => new Blob([csvOf(columns, rows)], {type: "text/csv"}));
    save("svg", async () => new Blob([await (await view()).toSVG()], {type: "image/svg+xml"}));
    save("pdf", async () => { const {width, height} = chart.querySelector("svg.marks").viewBox.baseVal; return pdfOf(await view(), width, height); });
    draw();
  };
  const most = (a, b) => all.filter(row => row.quantity === b).length - all.filter(row => row.quantity === a).length;
  show(all.find(row => row.run === PAPER)?.quantity ?? unique(all.map(row => row.quantity)).sort(most)[0]);
}

for (const details of document.querySelectorAll("details.chart")) {
  details.hidden = false;
  details.addEventListener("toggle", () => open(details), {once: true});
}
