"use strict";
// Small SVG charts. Every text is set as text, never as markup.

function node(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") element.textContent = value;
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function shape(name, attributes = {}, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
const shown = (value, digits = 3) => (known(value) ? value.toFixed(digits) : "–");
// Dark paper wants lighter inks: the style sheet says how much of the text's own is mixed in.
const ink = (setting) => (setting.method === "base" ? "currentColor" : mixed(setting.colour));
const mixed = (colour) => `color-mix(in srgb, var(--ink) var(--mix), ${colour})`;

function ticks(low, high, count = 5) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough) || rough;
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-6; tick += step) found.push(Number(tick.toPrecision(10)));
  return found;
}

// A mark of the method's own, beside its colour: o s ^ D v P X, as in the printed figures; hollow after a plus (joined methods).
function mark(name, x, y, colour) {
  const kind = name.replace("+", ""), r = 4, d = 0.7 * r;
  const paths = {
    none: "M0,0",
    s: `M${-d},${-d}h${2 * d}v${2 * d}h${-2 * d}z`, "^": `M0,${-r}L${r},${d}H${-r}z`, v: `M0,${r}L${r},${-d}H${-r}z`, D: `M0,${-r}L${r},0L0,${r}L${-r},0z`,
    P: `M${-r},0H${r}M0,${-r}V${r}`, X: `M${-d},${-d}L${d},${d}M${-d},${d}L${d},${-d}`,
  };
  const inside = kind === name ? colour : "var(--panel)";
  const paint = "PX".includes(kind) ? { stroke: colour, "stroke-width": kind === name ? 2.4 : 1.2 } : { fill: inside, stroke: colour, "stroke-width": 1.4 };
  return paths[kind] ? shape("path", { d: paths[kind], transform: `translate(${x} ${y})`, ...paint }) : shape("circle", { cx: x, cy: y, r, ...paint });
}

function figure(caption, svg, legend = []) {
  const box = node("figure", {}, node("figcaption", { text: caption }), svg);
  if (legend.length) {
    const list = node("div", { class: "legend" });
    for (const { name, colour, marker, dash } of legend) {
      const swatch = shape("svg", { width: 26, height: 12, "aria-hidden": "true" });
      if (marker) {
        swatch.append(shape("line", { x1: 1, x2: 25, y1: 6, y2: 6, stroke: colour, "stroke-width": 2, "stroke-dasharray": dash || "none" }), mark(marker, 13, 6, colour));
      } else swatch.append(shape("rect", { x: 7, width: 12, height: 12, fill: colour }));
      list.append(node("span", {}, swatch, name));
    }
    box.append(list);
  }
  return box;
}

// series: [{name, colour, marker, dash, start, last, points: [{x, y, low, high, label}]}]: a line from `start` (base)
// through the points; `last` for base itself, which lies above the others.
// span: the x axis; marks: its ticks; range: the y axis; aside: pixels between series, where their points share an x.
function plot(caption, xLabel, yLabel, series, { front = false, span = null, marks = null, range = null, aside = 0 } = {}) {
  const points = series.flatMap((one) => one.points);
  if (!points.length) return null;
  const width = 560, height = 300, left = 56, right = 14, top = 10, bottom = 40;
  const xs = points.map((p) => p.x), ys = points.flatMap((p) => [p.y, p.low, p.high]).filter(known);
  let [x0, x1] = span || [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = range || [Math.min(...ys), Math.max(...ys)];
  y0 = Math.min(y0, Math.max(0, y1 - 0.2));  // a flat score is to look flat
  const xPad = (x1 - x0 || Math.abs(x1) || 1) * 0.04, yPad = (y1 - y0 || 0.2) * 0.06;
  [x0, x1, y0, y1] = [x0 - xPad, x1 + xPad, y0 - yPad, y1 + yPad];
  const sx = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
  const sy = (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  svg.append(shape("title", {}, `${caption}: ${points.map((p) => `${p.label} ${shown(p.y)}`).join(", ")}`));
  for (const tick of marks || ticks(x0, x1)) {
    svg.append(shape("line", { class: "axis", x1: sx(tick), x2: sx(tick), y1: top, y2: height - bottom }));
    svg.append(shape("text", { x: sx(tick), y: height - bottom + 15, "text-anchor": "middle" }, tick));
  }
  for (const tick of ticks(y0, y1)) {
    svg.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: sy(tick), y2: sy(tick) }));
    svg.append(shape("text", { x: left - 6, y: sy(tick) + 4, "text-anchor": "end" }, tick));
  }
  svg.append(shape("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xLabel));
  const middle = (top + height - bottom) / 2;
  svg.append(shape("text", { x: 13, y: middle, transform: `rotate(-90 13 ${middle})`, "text-anchor": "middle" }, yLabel));
  series.forEach((one, index) => {
    const shift = one.last ? 0 : (index - (series.length - 1) / 2) * Math.min(aside, 20 / series.length);
    const at = (p) => sx(p.x) + shift;
    const joined = [...(one.start ? [`${sx(one.start.x)},${sy(one.start.y)}`] : []), ...one.points.map((p) => `${at(p)},${sy(p.y)}`)];
    if (joined.length > 1) {
      svg.append(shape("polyline", { points: joined.join(" "), fill: "none", stroke: one.colour, "stroke-width": 1.8, "stroke-dasharray": one.dash || "none" }));
    }
    for (const p of one.points) {
      if (known(p.low) && known(p.high)) {
        svg.append(shape("line", { x1: at(p), x2: at(p), y1: sy(p.low), y2: sy(p.high), stroke: one.colour, "stroke-opacity": 0.55 }));
      }
      const dot = mark(one.marker, at(p), sy(p.y), one.colour);
      const between = known(p.low) ? ` [${shown(p.low)}, ${shown(p.high)}]` : "";
      dot.append(shape("title", {}, `${p.label}: ${yLabel} ${shown(p.y)}${between}, ${p.where || `${xLabel} ${shown(p.x, 2)}`}`));
      svg.append(dot);
    }
  });
  if (front) svg.append(paretoFront(points, sx, sy));
  return figure(caption, svg, front ? [...series, { name: "Pareto front", colour: "currentColor", marker: "none", dash: "1 4" }] : series);
}

function paretoFront(points, sx, sy) {
  let best = -Infinity;
  const front = [];
  for (const p of [...points].sort((a, b) => a.x - b.x || b.y - a.y)) {
    if (p.y > best) { front.push(p); best = p.y; }
  }
  const found = shape("g", { class: "front" });
  found.append(shape("polyline", { points: front.map((p) => `${sx(p.x)},${sy(p.y)}`).join(" ") }), ...front.map((p) => shape("circle", { cx: sx(p.x), cy: sy(p.y), r: 8 })));
  return found;
}

// rows: [{name, parts: [{name, value, colour}]}]
function bars(caption, unit, rows) {
  rows = rows.filter((row) => row.parts.some((part) => known(part.value)));
  if (!rows.length) return null;
  const width = 560, line = 20, left = 210, right = 60;
  const total = (row) => row.parts.reduce((sum, part) => sum + (known(part.value) ? part.value : 0), 0);
  const most = Math.max(...rows.map(total)) || 1;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${rows.length * line + 6}`, width, height: rows.length * line + 6, role: "img" });
  svg.append(shape("title", {}, `${caption}: ${rows.map((row) => `${row.name} ${shown(total(row), 1)} ${unit}`).join(", ")}`));
  rows.forEach((row, index) => {
    let x = left;
    const y = index * line + 4;
    // A long name loses its middle: its end says which ratio and layer.
    const name = row.name.length > 33 ? `${row.name.slice(0, 14)}…${row.name.slice(-18)}` : row.name;
    const label = shape("text", { x: left - 6, y: y + 11, "text-anchor": "end" }, name);
    label.append(shape("title", {}, row.name));
    svg.append(label);
    for (const part of row.parts.filter((one) => known(one.value))) {
      const length = (part.value / most) * (width - left - right);
      const bar = shape("rect", { x, y, width: Math.max(length, 0.5), height: line - 6, fill: part.colour });
      bar.append(shape("title", {}, `${row.name}, ${part.name}: ${shown(part.value, 1)} ${unit}`));
      svg.append(bar);
      x += length;
    }
    svg.append(shape("text", { x: x + 5, y: y + 11 }, `${shown(total(row), total(row) < 10 ? 2 : 0)}`));
  });
  const measured = (_, index) => rows.some((row) => known(row.parts[index].value));
  const parts = rows[0].parts.length > 1 ? rows[0].parts.filter(measured) : [];
  return figure(`${caption} (${unit})`, svg, parts);
}
