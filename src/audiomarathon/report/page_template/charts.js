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
const ink = (setting) => (setting.method === "base" ? "currentColor" : setting.colour);

function ticks(low, high, count = 5) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough) || rough;
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-6; tick += step) found.push(Number(tick.toPrecision(10)));
  return found;
}

function figure(caption, svg, legend = []) {
  const box = node("figure", {}, node("figcaption", { text: caption }), svg);
  if (legend.length) {
    const list = node("div", { class: "legend" });
    for (const [name, colour] of legend) {
      const swatch = node("i");
      swatch.style.background = colour;
      list.append(node("span", {}, swatch, name));
    }
    box.append(list);
  }
  return box;
}

// series: [{name, colour, points: [{x, y, low, high, label}], joined}]
function plot(caption, xLabel, yLabel, series, { front = false, fromZero = false } = {}) {
  const points = series.flatMap((one) => one.points);
  if (!points.length) return null;
  const width = 560, height = 300, left = 48, right = 14, top = 8, bottom = 38;
  const xs = points.map((p) => p.x), ys = points.flatMap((p) => [p.y, p.low, p.high]).filter(known);
  let [x0, x1] = [fromZero ? 0 : Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  const xPad = (x1 - x0 || 1) * 0.04, yPad = (y1 - y0 || 0.1) * 0.06;
  [x0, x1, y0, y1] = [fromZero ? 0 : x0 - xPad, x1 + xPad, y0 - yPad, y1 + yPad];
  const sx = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
  const sy = (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  svg.append(shape("title", {}, `${caption}: ${points.map((p) => `${p.label} ${shown(p.y)}`).join(", ")}`));
  for (const tick of ticks(x0, x1)) {
    svg.append(shape("line", { class: "axis", x1: sx(tick), x2: sx(tick), y1: top, y2: height - bottom }));
    svg.append(shape("text", { x: sx(tick), y: height - bottom + 15, "text-anchor": "middle" }, tick));
  }
  for (const tick of ticks(y0, y1)) {
    svg.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: sy(tick), y2: sy(tick) }));
    svg.append(shape("text", { x: left - 6, y: sy(tick) + 4, "text-anchor": "end" }, tick));
  }
  svg.append(shape("text", { x: (left + width) / 2, y: height - 5, "text-anchor": "middle" }, xLabel));
  svg.append(shape("text", { x: 12, y: top + 4, transform: `rotate(-90 12 ${height / 2})`, "text-anchor": "middle" }, ""));
  if (front) svg.append(paretoFront(points, sx, sy));
  for (const one of series) {
    if (one.joined && one.points.length > 1) {
      const path = one.points.map((p) => `${sx(p.x)},${sy(p.y)}`).join(" ");
      svg.append(shape("polyline", { points: path, fill: "none", stroke: one.colour, "stroke-width": 2 }));
    }
    for (const p of one.points) {
      if (known(p.low) && known(p.high)) {
        svg.append(shape("line", { x1: sx(p.x), x2: sx(p.x), y1: sy(p.low), y2: sy(p.high), stroke: one.colour, "stroke-opacity": 0.6 }));
      }
      const dot = shape("circle", { cx: sx(p.x), cy: sy(p.y), r: 4, fill: one.colour });
      dot.append(shape("title", {}, `${p.label}: ${yLabel} ${shown(p.y)} [${shown(p.low)}, ${shown(p.high)}], ${xLabel} ${shown(p.x, 2)}`));
      svg.append(dot);
    }
  }
  return figure(`${caption} (${yLabel})`, svg, series.map((one) => [one.name, one.colour]));
}

function paretoFront(points, sx, sy) {
  let best = -Infinity;
  const front = [];
  for (const p of [...points].sort((a, b) => a.x - b.x || b.y - a.y)) {
    if (p.y > best) { front.push(p); best = p.y; }
  }
  return shape("polyline", { class: "front", points: front.map((p) => `${sx(p.x)},${sy(p.y)}`).join(" ") });
}

// rows: [{name, parts: [{name, value, colour}]}]
function bars(caption, unit, rows) {
  rows = rows.filter((row) => row.parts.some((part) => known(part.value)));
  if (!rows.length) return null;
  const width = 560, line = 20, left = 190, right = 60;
  const total = (row) => row.parts.reduce((sum, part) => sum + (known(part.value) ? part.value : 0), 0);
  const most = Math.max(...rows.map(total)) || 1;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${rows.length * line + 6}`, width, height: rows.length * line + 6, role: "img" });
  svg.append(shape("title", {}, `${caption}: ${rows.map((row) => `${row.name} ${shown(total(row), 1)} ${unit}`).join(", ")}`));
  rows.forEach((row, index) => {
    let x = left;
    const y = index * line + 4;
    const name = row.name.length > 30 ? `${row.name.slice(0, 29)}…` : row.name;
    svg.append(shape("text", { x: left - 6, y: y + 11, "text-anchor": "end" }, name));
    for (const part of row.parts.filter((one) => known(one.value))) {
      const length = (part.value / most) * (width - left - right);
      const bar = shape("rect", { x, y, width: Math.max(length, 0.5), height: line - 6, fill: part.colour });
      bar.append(shape("title", {}, `${row.name}, ${part.name}: ${shown(part.value, 1)} ${unit}`));
      svg.append(bar);
      x += length;
    }
    svg.append(shape("text", { x: x + 5, y: y + 11 }, `${shown(total(row), total(row) < 10 ? 2 : 0)}`));
  });
  const parts = rows[0].parts.length > 1 ? rows[0].parts.map((part) => [part.name, part.colour]) : [];
  return figure(`${caption} (${unit})`, svg, parts);
}
