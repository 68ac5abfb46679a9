const data = JSON.parse(document.getElementById("data").textContent);
const { settings, cells, means, samples } = data;
const find = (query) => document.querySelector(query);
const cellAt = new Map(cells.map((cell) => [`${cell.task}\n${cell.setting}`, cell]));
const meanAt = new Map(means.map((mean) => [`${mean.scope}\n${mean.setting}`, mean]));
const tasks = [...new Set(cells.map((cell) => cell.task))];
const scopes = [...new Set(means.map((mean) => mean.scope))];
const baseOf = (setting) => settings.findIndex((one) => one.method === "base" && one.checkpoint === settings[setting].checkpoint);

function row(cellsOfRow, kind = "td") {
  return node("tr", {}, ...cellsOfRow.map((cell, index) => {
    if (cell instanceof Node) return cell;
    return index === 0 ? node("th", { scope: kind === "th" ? "col" : "row", text: cell }) : node(kind, { text: cell, ...(kind === "th" ? { scope: "col" } : {}) });
  }));
}

function table(headings, rows) {
  return node("table", {}, node("thead", {}, row(headings, "th")), node("tbody", {}, ...rows.map((cellsOfRow) => row(cellsOfRow))));
}

function ofScope(scope, setting) {
  const mean = meanAt.get(`${scope}\n${setting}`);
  if (mean) return mean;
  const cell = cellAt.get(`${scope}\n${setting}`);
  return cell && { ...cell, llm_prefill_ms: cell.stages_ms.llm_prefill, prefill_ms: cell.stages_ms.prefill };
}

const widest = scopes.includes("overall") ? "overall" : tasks[0];

function overview() {
  const rows = settings.map((setting, index) => {
    const own = cells.filter((cell) => cell.setting === index);
    const mean = ofScope(widest, index) || {};
    const base = ofScope(widest, baseOf(index)) || {};
    const sum = (name) => own.reduce((total, cell) => total + (cell[name] || 0), 0);
    const speed = known(base.prefill_ms) && known(mean.prefill_ms) ? `${shown(base.prefill_ms / mean.prefill_ms, 2)}×` : "–";
    const between = known(mean.low) ? ` [${shown(mean.low)}, ${shown(mean.high)}]` : "";
    const cut = sum("truncated") ? ` (${sum("truncated")} truncated)` : "";
    return [setting.name, String(own.length), `${sum("n")}${cut}`, `${shown(mean.score)}${between}`, shown(mean.llm_prefill_ms, 0),
      shown(mean.prefill_ms, 0), speed, String(sum("unparsed")), String(sum("errors"))];
  });
  const headings = ["setting", "tasks", "samples", `score, ${widest} [95 %]`, "LLM prefill ms", "first token ms", "first token ×", "unparsed", "errors"];
  find("#overview .scroll").replaceChildren(table(headings, rows));
}

function heat() {
  const relative = find("#difference").checked;
  const body = [...tasks, ...scopes].map((scope) => [scope, ...settings.map((_, index) => {
    const own = ofScope(scope, index), base = ofScope(scope, baseOf(index));
    const value = own && (relative ? (base ? own.score - base.score : null) : own.score);
    const cell = node("td", { class: "cell", text: known(value) ? (relative ? `${value >= 0 ? "+" : ""}${shown(value)}` : shown(value)) : "–" });
    if (!known(value)) return cell;
    const strength = relative ? Math.min(1, Math.abs(value) / 0.3) : value;
    const hue = relative ? (value < 0 ? "164 38 44" : "10 107 61") : "11 87 164";
    cell.style.background = `rgb(${hue} / ${(0.08 + 0.42 * strength).toFixed(3)})`;
    if (!relative && known(own.low)) cell.append(node("small", { text: `${shown(own.low, 2)}–${shown(own.high, 2)}` }));
    return cell;
  })]);
  find("#heat .scroll").replaceChildren(table(["", ...settings.map((setting) => setting.name)], body));
}

function curves() {
  const scope = find("#scope").value;
  const pruned = [...new Set(settings.filter((one) => one.method !== "base").map((one) => one.line))];
  const lines = pruned.length ? pruned : settings.map((one) => one.line);
  // Base opens every line of its checkpoint: ratio 0 of any method is base.
  const members = (line) => {
    const { checkpoint } = settings.find((one) => one.line === line);
    return settings.map((setting, index) => ({ setting, own: ofScope(scope, index) }))
      .filter(({ setting, own }) => own && known(own.score) && (setting.line === line || (setting.method === "base" && setting.checkpoint === checkpoint)));
  };
  const series = (x, joined) => lines.map((line) => ({
    name: line, colour: ink(settings.find((one) => one.line === line)), joined,
    points: members(line).map(({ setting, own }) => ({ x: x(setting, own), y: own.score, low: own.low, high: own.high, label: setting.name }))
      .filter((point) => known(point.x)).sort((one, other) => one.x - other.x),
  })).filter((one) => one.points.length);
  const charts = [
    plot("Score against ratio", "fraction of audio removed", "score", series((setting) => setting.ratio, true), { fromZero: true }),
    plot("Score against LLM prefill", "LLM prefill, ms (median)", "score", series((_, own) => own.llm_prefill_ms, true), { front: true }),
    plot("Score against time to first token", "encoder + LLM prefill, ms (median)", "score", series((_, own) => own.prefill_ms, true), { front: true }),
  ];
  find("#curves .charts").replaceChildren(...charts.filter(Boolean));
}

function costs() {
  const colours = { load: "#999933", preprocess: "#44AA99", encoder: "#CC79A7", llm_prefill: "#0072B2", decode: "#E69F00" };
  const mean = (index, of) => {
    const values = cells.filter((cell) => cell.setting === index).map(of).filter(known);
    return values.length ? values.reduce((a, b) => a + b) / values.length : null;
  };
  const stages = settings.map((setting, index) => ({ name: setting.name, parts: Object.entries(colours).map(([stage, colour]) => ({ name: stage, colour, value: mean(index, (cell) => cell.stages_ms[stage]) })) }));
  const one = (of) => settings.map((setting, index) => ({ name: setting.name, parts: [{ name: setting.name, colour: ink(setting), value: mean(index, of) }] }));
  const charts = [bars("Time by stage, mean over tasks of medians", "ms", stages), bars("KV cache after prefill", "MB", one((cell) => cell.kv_mb)), bars("Peak memory of the GPU", "GB", one((cell) => cell.peak_gb))];
  find("#costs .charts").replaceChildren(...charts.filter(Boolean));
}

function durations() {
  const series = settings.map((setting, index) => {
    const bins = new Map();
    for (const bin of cells.filter((cell) => cell.setting === index).flatMap((cell) => cell.durations)) {
      const old = bins.get(bin.from) || { n: 0, sum: 0 };
      bins.set(bin.from, { n: old.n + bin.n, sum: old.sum + bin.n * bin.score });
    }
    const points = [...bins].sort((a, b) => a[0] - b[0]).map(([from, { n, sum }]) => ({ x: from + 15, y: sum / n, label: `${setting.name}, ${from}–${from + 30} s, n = ${n}` }));
    return { name: setting.name, colour: ink(setting), joined: true, points };
  });
  const chart = plot("Score against duration", "duration of the clip, s", "mean of own scores", series);
  if (chart) find("#durations .charts").replaceChildren(chart);
}

function machine() {
  const rows = settings.map((one) => [one.name, one.model || "–", one.checkpoint, one.device || "untimed", one.dtype || "–", one.attention || "–", one.certified ? "yes" : "no",
    Object.entries(one.versions).map(([name, version]) => `${name} ${version}`).join(", ")]);
  find("#machine .scroll").replaceChildren(table(["setting", "model", "checkpoint", "device", "dtype", "attention", "certified", "environment"], rows));
}

// ---- the browser of samples ----
let visible = [], selected = 0;
const flipped = (sample) => sample.replies.some((reply) => {
  const base = sample.replies.find((other) => other.setting === baseOf(reply.setting));
  return base && base !== reply && base.right !== reply.right;
});

function filtered() {
  const form = find("#filters"), text = form.text.value.toLowerCase();
  const setting = form.setting.value === "" ? null : Number(form.setting.value);
  return samples.filter((sample) => {
    const replies = sample.replies.filter((reply) => setting === null || reply.setting === setting);
    const kinds = { all: true, wrong: replies.some((r) => !r.right), unparsed: replies.some((r) => r.unparsed), flipped: flipped({ replies: setting === null ? sample.replies : sample.replies.filter((r) => r.setting === setting || r.setting === baseOf(setting)) }) };
    if ((form.task.value && sample.task !== form.task.value) || !replies.length || !kinds[form.show.value]) return false;
    return !text || [sample.id, sample.prompt || "", ...replies.map((r) => r.reply)].some((part) => part.toLowerCase().includes(text));
  });
}

function list() {
  visible = filtered();
  selected = 0;
  find("#count").textContent = `${visible.length} of ${samples.length} samples${data.total > samples.length ? ` (${data.total} in the runs)` : ""}`;
  find("#list").replaceChildren(...visible.map((sample, index) => {
    const right = sample.replies.filter((reply) => reply.right).length;
    const item = node("li", { role: "option", id: `sample-${index}`, "aria-selected": "false" }, node("span", { text: sample.id }),
      node("span", { class: "marks", text: `${sample.task} · ${right} of ${sample.replies.length} right${flipped(sample) ? " · flipped" : ""}` }));
    item.addEventListener("click", () => select(index));
    return item;
  }));
  if (visible.length) select(0, false); else find("#detail").replaceChildren(node("p", { class: "note", text: "No sample matches." }));
}

function select(index, scroll = true) {
  selected = Math.max(0, Math.min(visible.length - 1, index));
  find("#list [aria-selected=true]")?.setAttribute("aria-selected", "false");
  const item = find(`#sample-${selected}`);
  item.setAttribute("aria-selected", "true");
  find("#list").setAttribute("aria-activedescendant", item.id);
  if (scroll) item.scrollIntoView({ block: "nearest" });
  detail(visible[selected]);
}

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

function spectrogram(sample) {
  const packed = bytes(sample.picture), width = data.columns, height = data.bands;
  const canvas = node("canvas", { width, height, role: "img", "aria-label": `spectrogram of ${sample.id}` });
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) {
    const place = (height - 1 - y) * width + x;
    const level = (place % 2 ? packed[place >> 1] & 15 : packed[place >> 1] >> 4) / 15;
    image.data.set([255 * Math.min(1, 1.6 * level), 255 * level ** 1.6, 90 + 100 * level * (1 - level), 255], 4 * (y * width + x));
  }
  context.putImageData(image, 0, 0);
  if (sample.event && sample.seconds) {
    context.strokeStyle = "#fff";
    const start = (sample.event[0] / sample.seconds) * width, length = Math.max(1, (sample.event[1] / sample.seconds) * width);
    context.strokeRect(start, 0.5, length, height - 1);
  }
  return canvas;
}

function stripOf(reply) {
  const canvas = node("canvas", { width: data.columns, height: 1, role: "img", "aria-label": `moments that ${settings[reply.setting].name} kept` });
  const context = canvas.getContext("2d"), shares = bytes(reply.kept);
  context.fillStyle = settings[reply.setting].colour;
  shares.forEach((share, x) => { context.globalAlpha = share / 255; context.fillRect(x, 0, 1, 1); });
  return node("div", { class: "strip" }, node("span", { text: settings[reply.setting].name }), canvas);
}

function detail(sample) {
  const parts = [node("h3", { text: `${sample.task}: ${sample.id}` }),
    node("p", { class: "note", text: `${shown(sample.seconds, 1)} s · cluster ${sample.cluster ?? "–"} · right answer ${sample.answer ?? "–"}${sample.event ? ` · deciding event at ${shown(sample.event[0], 1)} s` : ""}` })];
  for (const address of sample.audio) parts.push(node("audio", { controls: "", preload: "none", src: address }));
  // In one column with the strips, so that a moment stands at the same place in all of them.
  if (sample.picture) parts.push(node("div", { class: "strip" }, node("span", { text: "spectrogram" }), spectrogram(sample)));
  parts.push(...sample.replies.filter((reply) => reply.kept).map(stripOf));
  if (sample.prompt) parts.push(node("pre", { text: sample.prompt }));
  const rows = sample.replies.map((reply) => {
    const verdict = reply.unparsed ? ["odd", "unparsed"] : reply.right ? ["right", "right"] : ["wrong", known(reply.wer) ? `WER ${shown(reply.wer, 2)}` : "wrong"];
    return [settings[reply.setting].name, node("td", { text: reply.reply }), node("td", { class: verdict[0], text: verdict[1] }), `${reply.parsed ?? "–"}`, `${reply.rule ?? "–"}`, `${reply.finish ?? "–"}`];
  });
  parts.push(node("div", { class: "scroll" }, table(["setting", "reply", "verdict", "read as", "rule", "finish"], rows)));
  find("#detail").replaceChildren(...parts);
}

function choices(select, values, all) {
  select.replaceChildren(...(all ? [node("option", { value: "", text: all })] : []), ...values.map(([value, text]) => node("option", { value, text })));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape" && typing) { event.target.blur(); return; }
  if (typing) return;
  const inList = event.target.id === "list";
  if (event.key === "j" || (inList && event.key === "ArrowDown")) { if (visible.length) select(selected + 1); }
  else if (event.key === "k" || (inList && event.key === "ArrowUp")) { if (visible.length) select(selected - 1); }
  else if (event.key === "p") { const player = find("#detail audio"); if (player) (player.paused ? player.play().catch(() => {}) : player.pause()); }
  else if (event.key === "/") find("#filters").text.focus();
  else return;
  event.preventDefault();
});
find("#theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
find("#difference").addEventListener("change", heat);
for (const event of ["input", "change"]) find("#filters").addEventListener(event, list);
find("#filters").addEventListener("submit", (event) => event.preventDefault());
choices(find("#scope"), [...scopes].reverse().concat(tasks).map((scope) => [scope, scope]));
find("#scope").addEventListener("change", curves);
choices(find("#filters").task, [...new Set(samples.map((sample) => sample.task))].map((task) => [task, task]), "all");
choices(find("#filters").setting, settings.map((setting, index) => [index, setting.name]), "all");
find("#subtitle").textContent = `${settings.length} settings, ${tasks.length} tasks, ${data.total} samples`;
overview(); heat(); curves(); costs(); durations(); machine(); list();
