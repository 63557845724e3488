// Draws a Grafana dashboard from its JSON (`board`) and what Prometheus answered
// (`data`, by panel and refId): lines, stacked areas, numbers, heat maps, tables.
// `size` says how large a grid unit is. Only what our dashboards use.

const COLORS = ["#3274d9", "#e0752d", "#56a64b", "#a352cc", "#e02f44", "#0a9fa4",
  "#c9a100", "#7d5bd6", "#b8578b", "#5b7f00", "#1f60c4", "#c4162a", "#37872d",
  "#8f3bb8", "#b5651d", "#2c7a7b"];
const NAMED = { green: "#37872d", yellow: "#c99700", red: "#c4162a",
  blue: "#1f60c4" };
const INK = "#24292e", FAINT = "#6a737d", GRID = "#e4e7ea";
const SVG = "http://www.w3.org/2000/svg";
const LEGEND_LINE = 17, MOST_LEGENDS = 5;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  Object.assign(made.style, attributes);
  for (const child of children) made.append(child);
  return made;
}

function svg(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, value);
  }
  if (text !== undefined) made.textContent = text;
  return made;
}

// Numbers -------------------------------------------------------------------

function significant(value, decimals) {
  if (decimals !== undefined) return value.toFixed(decimals);
  if (value === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  const text = value.toFixed(Math.min(digits, 6));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function scaled(value, base, units, decimals) {
  let index = 0;
  while (Math.abs(value) >= base && index < units.length - 1) {
    value /= base;
    index += 1;
  }
  return `${significant(value, decimals)}${units[index]}`;
}

function format(value, unit, decimals) {
  if (value === null || !Number.isFinite(value)) return "–";
  switch (unit) {
    case "percentunit": return `${significant(value * 100, decimals)}%`;
    case "s":
      if (value === 0) return "0 s";
      if (Math.abs(value) < 1e-3) return `${significant(value * 1e6)} µs`;
      if (Math.abs(value) < 1) return `${significant(value * 1e3)} ms`;
      return `${significant(value)} s`;
    case "reqps": return `${significant(value, decimals)} req/s`;
    case "ops": return `${significant(value, decimals)} ops/s`;
    case "bytes":
      return scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);
    case "Bps":
      return scaled(value, 1000, [" B/s", " kB/s", " MB/s", " GB/s", " TB/s"]);
    default: return scaled(value, 1000, ["", " K", " Mil", " Bil"], decimals);
  }
}

// Ticks at round numbers, of bytes at powers of 2.
function ticks(low, high, most, unit) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = unit === "bytes" ? 2 ** Math.ceil(Math.log2(rough)) :
    [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6;
    at += step) {
    found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  }
  return found;
}

// Series --------------------------------------------------------------------

function legendOf(target, labels) {
  if (target.legendFormat === "__auto") {
    const names = Object.entries(labels).filter(([name]) => name !== "__name__");
    return names.map(([name, value]) => `${name}=${value}`).join(" ") || "value";
  }
  return target.legendFormat.replace(/\{\{(\w+)\}\}/g,
    (_, name) => labels[name] ?? "");
}

function seriesOf(panel) {
  const found = [];
  for (const target of panel.targets) {
    for (const one of data.panels[panel.id][target.refId]) {
      const points = one.values.map(([time, value]) => [time, Number(value)])
        .filter(([, value]) => Number.isFinite(value));
      found.push({ name: legendOf(target, one.metric), labels: one.metric,
        points });
    }
  }
  return found.sort((a, b) => a.name.localeCompare(b.name, "en",
    { numeric: true })).filter((one) => one.points.length > 0);
}

function stepOf(series) {
  let least = Infinity;
  for (const { points } of series) {
    for (let i = 1; i < points.length; ++i) {
      least = Math.min(least, points[i][0] - points[i - 1][0]);
    }
  }
  return least;
}

// Panels --------------------------------------------------------------------

function timeAxis(plot, box) {
  for (const at of ticks(0, data.end - data.start, 4)) {
    const x = box.left + at / (data.end - data.start) * box.width;
    plot.append(svg("line", { x1: x, x2: x, y1: box.top,
      y2: box.top + box.height, stroke: GRID }));
    const clock = new Date((data.start + at) * 1000).toISOString().slice(11, 19);
    if (x > box.left + box.width - 20) continue;
    plot.append(svg("text", { x, y: box.top + box.height + 14,
      "text-anchor": "middle", fill: FAINT, "font-size": 11 }, clock));
  }
}

function valueAxis(plot, box, low, high, defaults) {
  for (const at of ticks(low, high, 4, defaults.unit)) {
    const y = box.top + box.height * (1 - (at - low) / (high - low));
    plot.append(svg("line", { x1: box.left, x2: box.left + box.width, y1: y,
      y2: y, stroke: GRID }));
    plot.append(svg("text", { x: box.left - 6, y: y + 4, "text-anchor": "end",
      fill: FAINT, "font-size": 11 }, format(at, defaults.unit)));
  }
}

function stack(series) {
  const below = new Map();
  for (const one of series) {
    one.base = one.points.map(([time]) => below.get(time) ?? 0);
    one.tops = one.points.map(([time, value], i) => [time, value + one.base[i]]);
    for (const [time, top] of one.tops) below.set(time, top);
  }
}

function range(series, defaults) {
  const values = series.flatMap((one) => one.tops.map(([, value]) => value));
  let low = Math.min(...values), high = Math.max(...values);
  if (defaults.min !== undefined) low = Math.min(low, defaults.min);
  if (defaults.max !== undefined) high = Math.max(high, defaults.max);
  if (!(high > low)) high = low + (defaults.unit === "percentunit" ? 0.1 : 1);
  return [low, high + (high - low) * (defaults.max === undefined ? 0.06 : 0)];
}

// Pieces between which a value is missing.
function pieces(points, step) {
  const found = [];
  points.forEach((point, i) => {
    if (i === 0 || point[0] - points[i - 1][0] > step * 1.5) found.push([]);
    found.at(-1).push(i);
  });
  return found;
}

function legend(series, defaults, width) {
  const lines = series.slice(0, MOST_LEGENDS).map((one, i) => {
    const values = one.points.map(([, value]) => value);
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    const cell = (text, extra) => element("span", { flex: "0 0 84px",
      textAlign: "right", color: FAINT, ...extra }, text);
    return element("div", { display: "flex", height: `${LEGEND_LINE}px` },
      element("span", { flex: "0 0 14px", height: "4px", marginTop: "7px",
        marginRight: "6px", background: COLORS[i % COLORS.length] }),
      element("span", { flex: "1 1 auto", overflow: "hidden",
        whiteSpace: "nowrap", textOverflow: "ellipsis" }, one.name),
      cell(format(mean, defaults.unit)),
      cell(format(values.at(-1), defaults.unit), { color: INK }));
  });
  if (series.length > MOST_LEGENDS) {
    lines.push(element("div", { color: FAINT, height: `${LEGEND_LINE}px` },
      `and ${series.length - MOST_LEGENDS} more`));
  }
  const header = element("div", { display: "flex", color: FAINT,
    height: `${LEGEND_LINE}px` },
  element("span", { flex: "1 1 auto" }),
  element("span", { flex: "0 0 84px", textAlign: "right" }, "mean"),
  element("span", { flex: "0 0 84px", textAlign: "right" }, "last"));
  return element("div", { fontSize: "11px", lineHeight: `${LEGEND_LINE}px`,
    padding: "0 10px", width: `${width - 20}px` }, header, ...lines);
}

function drawLines(panel, width, height) {
  const series = seriesOf(panel);
  if (series.length === 0) return nothing(height);
  const { defaults } = panel.fieldConfig;
  const stacked = defaults.custom.stacking.mode === "normal";
  if (stacked) stack(series);
  for (const one of series) one.tops ??= one.points;
  const legends = Math.min(series.length, MOST_LEGENDS) + 1 +
    (series.length > MOST_LEGENDS ? 1 : 0);
  const tall = height - legends * LEGEND_LINE - 4;
  const plot = svg("svg", { width, height: tall });
  const box = { left: 66, top: 6, width: width - 80, height: tall - 28 };
  const [low, high] = range(series, defaults);
  valueAxis(plot, box, low, high, defaults);
  timeAxis(plot, box);
  const step = stepOf(series);
  const x = (time) => box.left +
    (time - data.start) / (data.end - data.start) * box.width;
  const y = (value) => box.top + box.height * (1 - (value - low) / (high - low));
  series.forEach((one, index) => {
    const color = COLORS[index % COLORS.length];
    for (const piece of pieces(one.tops, step)) {
      const top = piece.map((i) =>
        `${x(one.tops[i][0]).toFixed(1)},${y(one.tops[i][1]).toFixed(1)}`);
      if (stacked) {
        const base = piece.toReversed().map((i) =>
          `${x(one.tops[i][0]).toFixed(1)},${y(one.base[i]).toFixed(1)}`);
        plot.append(svg("polygon", { points: [...top, ...base].join(" "),
          fill: color, "fill-opacity": 0.6 }));
      }
      plot.append(svg("polyline", { points: top.join(" "), fill: "none",
        stroke: color, "stroke-width": 1.4 }));
    }
  });
  return element("div", {}, plot, legend(series, defaults, width));
}

function thresholdColor(value, defaults) {
  const passed = defaults.thresholds.steps.filter(
    (step) => step.value === null || value >= step.value);
  return NAMED[passed.at(-1).color] ?? INK;
}

function drawStat(panel, width, height) {
  const [one] = seriesOf(panel);
  const { defaults } = panel.fieldConfig;
  if (one === undefined) return nothing(height);
  const values = one.points.map(([, value]) => value);
  const color = thresholdColor(values.at(-1), defaults);
  const low = Math.min(...values), high = Math.max(...values);
  const plot = svg("svg", { width, height });
  const x = (time) => (time - data.start) / (data.end - data.start) * width;
  const y = (value) => height - 4 -
    (high > low ? (value - low) / (high - low) : 0) * height * 0.4;
  const line = one.points.map(([time, value]) =>
    `${x(time).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  plot.append(svg("polygon", { fill: color, "fill-opacity": 0.15,
    points: `${x(one.points[0][0])},${height} ${line} ` +
      `${x(one.points.at(-1)[0])},${height}` }));
  plot.append(svg("polyline", { points: line, fill: "none", stroke: color,
    "stroke-opacity": 0.5 }));
  const text = format(values.at(-1), defaults.unit, defaults.decimals);
  plot.append(svg("text", { x: width / 2, y: height / 2 + 4, fill: color,
    "text-anchor": "middle", "font-weight": 600,
    "font-size": Math.min(28, 1.5 * width / text.length) }, text));
  return element("div", {}, plot);
}

// 0 to 1 as white to dark orange.
function heat(share) {
  const stops = [[255, 245, 235], [253, 174, 107], [230, 85, 13], [127, 39, 4]];
  const at = Math.min(share, 0.9999) * (stops.length - 1);
  const from = stops[Math.floor(at)], to = stops[Math.floor(at) + 1];
  return `rgb(${from.map((c, i) => Math.round(c + (to[i] - c) * (at % 1)))})`;
}

// Counts by bucket from counts up to a bucket's edge; empty outer ones left out.
function bucketsOf(series) {
  const edge = (one) => (one.labels.le === "+Inf" ? Infinity :
    Number(one.labels.le));
  const sorted = series.sort((a, b) => edge(a) - edge(b));
  let below = new Map();
  const buckets = sorted.map((one) => {
    const up = new Map(one.points);
    const counts = one.points.map(([time, count]) =>
      [time, Math.max(0, count - (below.get(time) ?? 0))]);
    below = up;
    return { edge: edge(one), counts };
  });
  const used = buckets.map(({ counts }) => counts.some(([, n]) => n > 1e-9));
  return buckets.slice(Math.max(0, used.indexOf(true) - 1),
    used.lastIndexOf(true) + 2);
}

function drawHeatmap(panel, width, height) {
  const series = seriesOf(panel);
  const buckets = bucketsOf(series);
  if (buckets.length === 0) return nothing(height);
  const unit = panel.options.yAxis.unit;
  const plot = svg("svg", { width, height });
  const box = { left: 66, top: 6, width: width - 80, height: height - 56 };
  const most = Math.max(...buckets.flatMap(({ counts }) =>
    counts.map(([, count]) => count)));
  const step = stepOf(series);
  const tall = box.height / buckets.length;
  const wide = step / (data.end - data.start) * box.width;
  const columns = Math.max(1, Math.ceil(3 / wide));
  timeAxis(plot, box);
  buckets.forEach(({ edge, counts }, index) => {
    const y = box.top + box.height - (index + 1) * tall;
    if (Number.isFinite(edge) && index % Math.ceil(buckets.length / 9) === 0) {
      plot.append(svg("text", { x: box.left - 6, y: y + 4, "text-anchor": "end",
        fill: FAINT, "font-size": 11 }, format(edge, unit)));
    }
    for (let i = 0; i < counts.length; i += columns) {
      const [time, count] = counts[i];
      if (count <= 1e-9) continue;
      const x = box.left + (time - data.start) / (data.end - data.start) *
        box.width;
      plot.append(svg("rect", { x: x.toFixed(1), y: y.toFixed(1),
        width: Math.max(0.5, Math.min(wide * columns, box.left + box.width - x) -
          0.6).toFixed(1), height: Math.max(0.5, tall - 1).toFixed(1),
        fill: heat(Math.sqrt(count / most)) }));
    }
  });
  for (let i = 0; i < 60; ++i) {
    plot.append(svg("rect", { x: box.left + i * 3, y: height - 20, width: 3,
      height: 8, fill: heat(Math.sqrt(i / 59)) }));
  }
  plot.append(svg("text", { x: box.left + 186, y: height - 12, fill: FAINT,
    "font-size": 11 }, `0 to ${format(most, "short")}`));
  return element("div", {}, plot);
}

function grid(header, lines) {
  const cell = (name, value) => element(name, { padding: "3px 10px",
    textAlign: value.left ? "left" : "right", background: value.color ?? "",
    border: `1px solid ${GRID}`, fontWeight: name === "th" ? 600 : 400,
    color: INK, whiteSpace: "nowrap" }, value.text);
  const table = element("table", { borderCollapse: "collapse", width: "100%",
    fontSize: "12px" });
  table.append(element("tr", {}, ...header.map((one) => cell("th", one))),
    ...lines.map((line) =>
      element("tr", {}, ...line.map((one) => cell("td", one)))));
  return element("div", { padding: "4px 10px" }, table);
}

function drawMatrix(panel, { columnField, rowField }) {
  const { defaults } = panel.fieldConfig;
  const cells = data.panels[panel.id].A.map((one) => ({
    row: one.metric[rowField], column: one.metric[columnField],
    value: Number(one.value[1]) }));
  const sorted = (name) => [...new Set(cells.map((one) => one[name]))].sort();
  const values = cells.map((one) => one.value);
  const low = Math.min(...values), high = Math.max(...values);
  const upward = defaults.color.mode === "continuous-RdYlGr";
  const color = (value) => {
    const share = high > low ? (value - low) / (high - low) : 0.5;
    return `hsl(${Math.round(120 * (upward ? share : 1 - share))} 60% 72%)`;
  };
  const columns = sorted("column");
  return grid(
    [{ text: `${rowField}\\${columnField}`, left: true },
      ...columns.map((text) => ({ text }))],
    sorted("row").map((row) => [{ text: row, left: true },
      ...columns.map((column) => {
        const found = cells.find((one) => one.row === row &&
          one.column === column);
        return found === undefined ? { text: "" } :
          { text: format(found.value, defaults.unit),
            color: color(found.value) };
      })]));
}

function drawTable(panel) {
  for (const { id, options } of panel.transformations) {
    if (id === "groupingToMatrix") return drawMatrix(panel, options);
  }
  const { options } = panel.transformations.find(({ id }) => id === "organize");
  const order = Object.keys(options.indexByName).sort((a, b) =>
    options.indexByName[a] - options.indexByName[b]);
  const lines = new Map();
  for (const [ref, results] of Object.entries(data.panels[panel.id])) {
    for (const { metric, value } of results) {
      const key = JSON.stringify(Object.entries(metric).sort());
      if (!lines.has(key)) lines.set(key, { ...metric });
      lines.get(key)[`Value #${ref}`] = Number(value[1]);
    }
  }
  const unitOf = (title) => panel.fieldConfig.overrides.find(
    ({ matcher }) => matcher.options === title)?.properties[0].value ?? "short";
  const header = order.map((field) => ({
    text: options.renameByName[field] ?? field,
    left: !field.startsWith("Value") }));
  const by = panel.options.sortBy[0].displayName;
  const sorted = [...lines.values()].sort((a, b) => a[by].localeCompare(b[by],
    "en", { numeric: true }));
  return grid(header, sorted.map((line) => order.map((field) => {
    if (!field.startsWith("Value")) return { text: line[field] ?? "", left: true };
    return { text: format(line[field] ?? null,
      unitOf(options.renameByName[field])) };
  })));
}

function nothing(height) {
  return element("div", { color: FAINT, textAlign: "center",
    lineHeight: `${height}px` }, "No data");
}

const KINDS = { timeseries: drawLines, stat: drawStat, heatmap: drawHeatmap,
  table: drawTable };

function place(panel) {
  const { x, y, w, h } = panel.gridPos;
  const column = (size.width - 2 * size.gap) / 24;
  const width = Math.floor(w * column - size.gap);
  const height = h * (size.unit + size.gap) - size.gap;
  const frame = element("div", { position: "absolute", boxSizing: "border-box",
    left: `${Math.round(size.gap * 1.5 + x * column)}px`, width: `${width}px`,
    top: `${size.header + y * (size.unit + size.gap)}px`,
    height: `${height}px`, overflow: "hidden" });
  if (panel.type === "row") {
    frame.append(element("div", { fontSize: "15px", fontWeight: 600,
      lineHeight: `${height}px` }, panel.title));
    return frame;
  }
  Object.assign(frame.style, { background: "#fff", border: `1px solid ${GRID}`,
    borderRadius: "3px" });
  frame.append(element("div", { fontSize: "13px", fontWeight: 600,
    padding: "5px 10px", height: "17px", lineHeight: "17px" }, panel.title));
  frame.append(KINDS[panel.type](panel, width - 2, height - 30));
  return frame;
}

Object.assign(document.body.style, { margin: 0, background: "#f4f5f5",
  color: INK, font: "13px/1.3 'DejaVu Sans', Arial, sans-serif" });
document.body.append(element("div", { fontSize: "18px", fontWeight: 600,
  position: "absolute", left: `${size.gap * 1.5}px`, top: "14px" }, board.title));
for (const panel of board.panels) document.body.append(place(panel));
