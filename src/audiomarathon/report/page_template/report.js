const data = JSON.parse(document.getElementById("data").textContent);
const { settings, cells, samples } = data;
const find = (query) => document.querySelector(query);
const place = (scope, setting) => `${scope}\n${setting}`;
const cellAt = new Map(cells.map((cell) => [place(cell.task, cell.setting), cell]));
const meanAt = new Map(data.means.map((mean) => [place(mean.scope, mean.setting), mean]));
const besideAt = new Map(data.beside_base.map((one) => [place(one.scope, one.setting), one]));
const tasks = [...new Set(cells.map((cell) => cell.task))];
const scopes = Object.keys(data.scopes);
const membersOf = (scope) => data.scopes[scope] || [scope];
const isBase = (setting) => setting.base !== null && settings[setting.base] === setting;

function row(cellsOfRow, kind = "td") {
  return node("tr", {}, ...cellsOfRow.map((cell, index) => {
    if (cell instanceof Node) return cell;
    return index === 0 ? node("th", { scope: kind === "th" ? "col" : "row", text: cell }) : node(kind, { text: cell, ...(kind === "th" ? { scope: "col" } : {}) });
  }));
}

function table(headings, rows) {
  return node("table", {}, node("thead", {}, row(headings, "th")), node("tbody", {}, ...rows.map((cellsOfRow) => row(cellsOfRow))));
}

// Of a task or of a mean: the score with its interval, and the mean over its tasks of whatever a cell holds.
function ofScope(scope, setting) {
  const found = meanAt.get(place(scope, setting)) || cellAt.get(place(scope, setting));
  return found && known(found.score) ? found : null;
}
function meanOf(scope, setting, of) {
  const values = membersOf(scope).map((task) => cellAt.get(place(task, setting))).map((cell) => (cell ? of(cell) : null));
  return values.every(known) ? values.reduce((a, b) => a + b) / values.length : null;
}

// Control runs hear other audio than the others: they are in no picture with them.
const charted = settings.some((one) => !one.control) ? settings.filter((one) => !one.control) : settings;
const chartedIn = (scope) => charted.map((setting) => ({ setting, index: settings.indexOf(setting) })).filter(({ index }) => ofScope(scope, index));
const has = (scope) => chartedIn(scope).length;
// Overall, or over the tasks in common, whichever most settings have; where that is not half of them, the task that most have.
const widest = ["overall", "in common"].filter((scope) => 2 * has(scope) >= charted.length).sort((one, other) => has(other) - has(one))[0]
  || [...tasks].sort((one, other) => has(other) - has(one))[0];

function described(scope) {
  if (!scope) return "no task.";
  const members = membersOf(scope);
  const lacking = charted.filter((one) => !ofScope(scope, settings.indexOf(one))).map((one) => one.name);
  const what = data.scopes[scope] ? `${scope}: the mean over ${members.join(", ")}, with the same weight each` : scope;
  return `${what}.${lacking.length ? ` Without a score of ${members.length > 1 ? "all of them" : "it"}, and so not here: ${lacking.join(", ")}.` : ""}`;
}

function because(reasons) {
  const settingsOf = new Map();
  for (const [name, reason] of reasons) settingsOf.set(reason, [...(settingsOf.get(reason) || []), name]);
  return [...settingsOf].map(([reason, names]) => node("p", { class: "note", text: `${names.join(", ")}: ${reason}.` }));
}

function overview() {
  const reasons = data.unfinished.map((one) => [settings[one.setting].name, `no figures of ${one.task}, which is not finished (${one.answered} of ${one.expected} samples; audiomarathon score sums up what is there)`]);
  const rows = settings.map((setting, index) => {
    const own = cells.filter((cell) => cell.setting === index);
    const mean = ofScope(widest, index) || {}, beside = besideAt.get(place(widest, index));
    const sum = (name) => own.reduce((total, cell) => total + (cell[name] || 0), 0);
    const ms = (stage) => shown(meanOf(widest, index, (cell) => cell.stages_ms[stage]), 0);
    const between = known(mean.low) ? ` [${shown(mean.low)}, ${shown(mean.high)}]` : "";
    const sooner = node("td", { text: isBase(setting) ? "base" : beside && known(beside.sooner) ? `${shown(beside.sooner, 2)}×` : "–" });
    if (beside && known(beside.sooner)) sooner.title = `median over ${beside.timed} samples that both answered${beside.across ? ", in different sessions on the same machine" : " in one session"}`;
    else if (!isBase(setting) && widest) {
      sooner.title = beside ? beside.untimed : `has not all of ${membersOf(widest).join(", ")}`;
      reasons.push([setting.name, `no “first token ×”: ${sooner.title}`]);
    }
    for (const cell of own.filter((one) => one.n + one.errors < one.expected)) reasons.push([setting.name, `figures of ${cell.task} are of ${cell.n} samples of ${cell.expected}, for it is not finished`]);
    if (sum("truncated")) reasons.push([setting.name, `the audio of ${sum("truncated")} samples was cut short for the model`]);
    return [setting.name, String(own.length), String(sum("n")), `${shown(mean.score)}${between}`, ms("llm_prefill"), ms("prefill"), sooner, String(sum("unparsed")), String(sum("cut")), String(sum("errors"))];
  });
  const headings = ["setting", "tasks", "samples", `score, ${widest || "none"} [95 %]`, "LLM prefill, ms", "first token, ms", "first token, ×", "unparsed", "cut", "failed"];
  find("#overview .scroll").replaceChildren(table(headings, rows));
  const controls = settings.filter((one) => one.control).length;
  const noted = new Map();
  for (const cell of cells) {
    const name = settings[cell.setting].name;
    for (const note of [...cell.notes, ...(cell.busy ? ["the machine was busy while times were taken"] : [])]) noted.set(`${name} ${note}`, [name, note]);
  }
  find("#overview .notes").replaceChildren(
    node("p", { class: "note", text: `Score and times: ${described(widest)} Times are medians; × is how many times as soon as base the first token comes, in the median over samples that both answered in one session, or in several on one quiet machine.` }),
    ...(controls ? [node("p", { class: "note", text: `${controls} settings in [brackets] are control runs (audiomarathon data controls): their clips were cut, silenced or replaced, so they are set beside their own base only, and are in none of the curves below.` })] : []),
    ...because([...reasons, ...noted.values()]));
}

function heat() {
  const relative = find("#difference").checked;
  const columns = [...tasks, ...scopes];
  const reasons = [];
  const body = settings.map((setting, index) => [setting.name, ...columns.map((scope) => {
    const own = ofScope(scope, index), beside = besideAt.get(place(scope, index));
    const value = !own ? null : !relative ? own.score : isBase(setting) ? 0 : beside ? beside.difference : null;
    const cell = node("td", { class: "cell", text: known(value) ? (relative ? `${value >= 0 ? "+" : ""}${shown(value)}` : shown(value)) : "–" });
    if (relative && own && beside) {
      cell.title = known(value) ? `on ${beside.shared} samples that both answered` : beside.why;
      if (!known(value) && tasks.includes(scope)) reasons.push([setting.name, `no difference: ${beside.why}`]);
    }
    if (!known(value)) return cell;
    const strength = relative ? Math.min(1, Math.abs(value) / 0.3) : value;
    const hue = relative ? (value < 0 ? "164 38 44" : "10 107 61") : "11 87 164";
    cell.style.background = `rgb(${hue} / ${(strength && 0.06 + 0.4 * strength).toFixed(3)})`;
    if (!relative && known(own.low)) cell.append(node("small", { text: `${shown(own.low, 2)}–${shown(own.high, 2)}` }));
    return cell;
  })]);
  find("#heat .scroll").replaceChildren(table(["setting", ...columns], body));
  find("#heat .notes").replaceChildren(node("p", { class: "note", text: relative ? "Differences are of the samples that both answered." : "Below each score its 95 % interval over clusters." }), ...because(reasons));
}

const look = (setting) => ({ colour: ink(setting), marker: isBase(setting) ? "o" : `${setting.method.includes("+") ? "+" : ""}${setting.marker}` });
const dashes = ["none", "6 3", "2 3", "8 3 2 3", "1 4"];

// One series a line (a method at one layer, of one checkpoint) by rising ratio, from base on where nothing in it is unlike; base is one of its own, drawn last.
function seriesOf(scope, x, unlike = "why") {
  const point = (index) => {
    const own = ofScope(scope, index);
    const at = own && x(settings[index], index);
    return own && known(at) ? { x: at, y: own.score, low: own.low, high: own.high, label: settings[index].name } : null;
  };
  const lines = new Map();
  for (const { setting, index } of chartedIn(scope)) lines.set(setting.line, [...(lines.get(setting.line) || []), index]);
  const strokes = new Map();
  const found = [...lines].map(([name, indices]) => {
    const first = settings[indices[0]], beside = besideAt.get(place(scope, indices[0]));
    const comparable = !isBase(first) && first.base !== null && beside && !beside[unlike];
    const points = indices.sort((one, other) => settings[one].ratio - settings[other].ratio).map(point).filter(Boolean);
    const kin = ink(first), nth = strokes.get(kin) || 0;
    if (points.length) strokes.set(kin, nth + 1);
    return { name, ...look(first), dash: dashes[nth % dashes.length], start: comparable ? point(first.base) : null, points, last: isBase(first) };
  }).filter((one) => one.points.length);
  return found.sort((one, other) => one.last - other.last);
}

function orNone(charts, text) {
  const drawn = charts.filter(Boolean);
  return drawn.length ? drawn : [node("p", { class: "note", text })];
}

function curves(scope) {
  // Times that cannot be set beside base's are in no picture with them.
  const untimed = (setting, index) => !isBase(setting) && setting.base !== null && (besideAt.get(place(scope, index)) || { untimed: true }).untimed;
  const timed = (stage) => (setting, index) => (untimed(setting, index) ? null : meanOf(scope, index, (cell) => cell.stages_ms[stage]));
  const measured = chartedIn(scope).filter(({ setting, index }) => known(timed("prefill")(setting, index)));
  const devices = new Set(measured.map(({ setting }) => setting.device));
  const most = Math.max(0.1, ...charted.map((one) => one.ratio));
  const front = devices.size < 2;
  const withheld = chartedIn(scope).filter(({ setting, index }) => untimed(setting, index) && known(meanOf(scope, index, (cell) => cell.stages_ms.prefill)))
    .map(({ setting, index }) => [setting.name, `in no picture of times: ${besideAt.get(place(scope, index))?.untimed || "not set beside base"}`]);
  const besides = measured.map(({ index }) => besideAt.get(place(scope, index))).filter(Boolean);
  const apart = besides.some((one) => one.across), busy = besides.some((one) => one.busy);
  find("#curves .charts").replaceChildren(...orNone([
    plot("Score against ratio", "fraction of audio removed", "score", seriesOf(scope, (setting) => setting.ratio), { span: [0, most], aside: 3 }),
    plot("Score against LLM prefill", "LLM prefill, ms (median)", "score", seriesOf(scope, timed("llm_prefill"), "untimed"), { front }),
    plot("Score against time to first token", "encoder + LLM prefill, ms (median)", "score", seriesOf(scope, timed("prefill"), "untimed"), { front }),
  ], "No score yet."));
  find("#curves .notes").replaceChildren(node("p", { class: "note", text: `${described(scope)} Bars are 95 % intervals over clusters. ${devices.size > 1
    ? `Times are of different devices (${[...devices].join(", ")}) and do not compare, so there is no Pareto front.`
    : devices.size ? `The dotted line is the Pareto front; on the ringed settings no other is both better and faster.${apart ? " Some times are of different sessions on the same machine, quiet in both." : ""}${busy ? " The machine was busy while some times were taken." : ""}` : "Nothing was timed."}` }), ...because(withheld));
}

function costs(scope) {
  const colours = { load: "#999933", preprocess: "#44AA99", encoder: "#CC79A7", llm_prefill: "#0072B2", decode: "#E69F00" };
  const here = chartedIn(scope);
  const stages = here.map(({ setting, index }) => ({ name: setting.name, parts: Object.entries(colours).map(([stage, colour]) => ({ name: stage.replace("llm_prefill", "LLM prefill"), colour: mixed(colour), value: meanOf(scope, index, (cell) => cell.stages_ms[stage]) })) }));
  const one = (of) => here.map(({ setting, index }) => ({ name: setting.name, parts: [{ name: setting.name, colour: ink(setting), value: meanOf(scope, index, of) }] }));
  find("#costs .charts").replaceChildren(...orNone([bars("Time by stage, medians", "ms", stages), bars("KV cache after prefill", "MB", one((cell) => cell.kv_mb)), bars("Peak memory of the GPU", "GB", one((cell) => cell.peak_gb))], "Nothing was measured: no times, no cache, no memory."));
  find("#costs .notes").replaceChildren(node("p", { class: "note", text: described(scope) }));
}

// A picture a line, base in each, all on the same axes: thirty curves in one would be read by nobody.
function durations(scope) {
  const curve = (index) => {
    const bins = new Map();
    for (const bin of membersOf(scope).flatMap((task) => cellAt.get(place(task, index)).durations)) {
      const old = bins.get(bin.from) || { n: 0, sum: 0 };
      bins.set(bin.from, { n: old.n + bin.n, sum: old.sum + bin.n * bin.score });
    }
    return [...bins].sort((a, b) => a[0] - b[0]).map(([from, { n, sum }]) => ({ x: from + 15, y: sum / n, from, label: settings[index].name, where: `${from}–${from + 30} s, n = ${n}` }));
  };
  const drawn = chartedIn(scope).map(({ setting, index }) => ({ setting, name: setting.name, ...look(setting), points: curve(index) })).filter((one) => one.points.length);
  const froms = drawn.flatMap((one) => one.points.map((p) => p.from)), ys = drawn.flatMap((one) => one.points.map((p) => p.y));
  const span = [Math.min(...froms), Math.max(...froms) + 30];
  const marks = [];
  for (let edge = span[0]; edge <= span[1]; edge += 30 * Math.ceil((span[1] - span[0]) / 360)) marks.push(edge);
  const lines = [...new Set(drawn.filter((one) => !isBase(one.setting)).map((one) => one.setting.line))];
  const charts = (lines.length ? lines : [null]).map((line) => {
    const own = drawn.filter((one) => one.setting.line === line);
    const bases = drawn.filter((one) => isBase(one.setting) && (line === null || own.some((other) => settings[other.setting.base] === one.setting)));
    const series = [...own.map((one, nth) => ({ ...one, dash: dashes[nth % dashes.length] })), ...bases];
    return plot(line === null ? "base" : line, "duration of the clip, s", "mean of own scores", series, { span, marks, range: [Math.min(...ys), Math.max(...ys)], aside: 5 });
  });
  find("#durations .charts").replaceChildren(...orNone(charts, "No score by duration yet."));
  find("#durations .notes").replaceChildren(node("p", { class: "note", text: `${described(scope).replace(/: the mean over (.*), with the same weight each/, ": all samples of $1 together")} The mean of the samples' own scores (right or wrong; 1 − WER), in bins of half a minute; without intervals: a point tells how many samples it stands for.` }));
}

function machine() {
  const groups = new Map();
  for (const one of settings) {
    const facts = [one.model || "–", one.checkpoint, one.device || "untimed", one.dtype || "–", one.attention || "–", one.certified ? "yes" : "no",
      Object.entries(one.versions).map(([name, version]) => `${name} ${version}`).join(", ")];
    const key = JSON.stringify(facts);
    groups.set(key, { facts, names: [...(groups.get(key)?.names || []), one.name] });
  }
  const long = (text) => node("td", { class: "long", text });
  const rows = [...groups.values()].map(({ facts, names }) => [long(names.length === settings.length ? "all" : names.join(", ")), ...facts.slice(0, -1), long(facts[facts.length - 1])]);
  find("#machine .scroll").replaceChildren(table(["settings", "model", "checkpoint", "device", "dtype", "attention", "certified", "environment"], rows));
}

function rescope(scope) {
  for (const select of document.querySelectorAll("select.scope")) select.value = scope;
  curves(scope); costs(scope); durations(scope);
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
  else if (inList && (event.key === "Home" || event.key === "End")) { if (visible.length) select(event.key === "Home" ? 0 : visible.length - 1); }
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
for (const select of document.querySelectorAll("select.scope")) {
  choices(select, [...scopes].reverse().concat(tasks).map((scope) => [scope, scope]));
  select.addEventListener("change", () => rescope(select.value));
}
choices(find("#filters").task, [...new Set(samples.map(taskOf))].map((task) => [task, task]), "all");
choices(find("#filters").setting, settings.map((setting, index) => [index, setting.name]), "all");
find("#subtitle").textContent = `${settings.length} setting${settings.length === 1 ? "" : "s"}, ${tasks.length} task${tasks.length === 1 ? "" : "s"}, ${data.total} sample${data.total === 1 ? "" : "s"}`;
overview(); heat(); rescope(widest); machine(); list();
