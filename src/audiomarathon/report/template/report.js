"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
// The page holds equal values once: rows are places in `values` by name, one place if all rows have the same value.
const rowsOf = ({ n, places }) => Array.from({ length: n }, (_, row) =>
  Object.fromEntries(Object.entries(places).map(([name, at]) => [name, data.values[at[row] ?? at]])));
const { settings } = data;
const samples = data.samples.map((sample) => ({ ...sample, replies: rowsOf(sample.replies).map(({ said, ...own }) => ({ ...own, ...said })) }));
const find = (query, within = document) => within.querySelector(query);
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
const shown = (value, digits = 3) => (known(value) ? value.toFixed(digits) : "–");

// Every text is set as text, never as markup.
function node(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") element.textContent = value;
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

// Let names wrap after - and _ only.
function breakable(within) {
  for (const cell of within.querySelectorAll("th")) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), found = [];
    while (texts.nextNode()) found.push(texts.currentNode);
    for (const text of found) text.replaceWith(...text.data.split(/(?<=[-_])/).flatMap((part, place) => (place ? [node("wbr"), part] : [part])));
  }
}
breakable(document);

// Make a picture as wide as its box allows, with room for its axis and for names at the ends of lines.
function fitted(spec, room) {
  const names = spec.datasets.labels || spec.datasets.bars || [];
  const longest = Math.max(0, ...names.map((one) => (one.text || one.name).length));
  const beside = 70 + 6.2 * longest;
  const most = spec.width || 300;
  return { ...spec, width: Math.max(130, Math.min(most, room - beside)) };
}

function draw(section) {
  const box = find(".charts", section), byScope = data.charts[section.id];
  if (!box || !byScope) return;
  const select = find("select.scope", section);
  const scope = select ? select.value : Object.keys(byScope)[0];
  const figures = byScope[scope].map(({ spec, title, data: datasets }) => {
    const place = node("div", { class: "chart" });
    const figure = node("figure", {}, node("figcaption", { text: title }), place);
    return { figure, place, title, spec: { ...data.specs[spec], datasets: Object.fromEntries(Object.entries(datasets).map(([name, rows]) => [name, rowsOf(rows)])) } };
  });
  box.replaceChildren(...figures.map(({ figure }) => figure));
  box.dataset.room = box.clientWidth;
  for (const { place, spec, title } of figures) {
    // Let Vega interpret expressions, so that the page's security policy need not allow code made from text.
    const legend = { ...data.config.legend, ...(box.clientWidth < 480 ? { columns: 2 } : {}) };
    const options = { renderer: "svg", actions: false, ast: true, mode: "vega-lite", config: { ...data.config, legend } };
    vegaEmbed(place, { ...fitted(spec, box.clientWidth - 24), description: title }, options);
  }
  for (const notes of section.querySelectorAll(".notes")) {
    notes.hidden = notes.dataset.scope !== "" && notes.dataset.scope !== scope;
  }
}

// On a phone the page begins with what to choose, the scores and the samples; the other sections unfold.
const sections = [...document.querySelectorAll("main > section")];
for (const section of sections) {
  const part = find("details.part", section), box = find(".charts", section);
  if (part && sections.indexOf(section) > 1 && window.innerWidth <= 760) part.open = false;
  part?.addEventListener("toggle", () => { if (part.open && box && box.clientWidth !== Number(box.dataset.room)) draw(section); });
  find("select.scope", section)?.addEventListener("change", (event) => {
    const wanted = event.target.value;
    for (const other of sections) {
      const select = find("select.scope", other);
      if (select && [...select.options].some((option) => option.value === wanted)) {
        select.value = wanted;
        draw(other);
      }
    }
  });
  find("input.toggle", section)?.addEventListener("change", (event) => {
    section.querySelectorAll(".scroll").forEach((one, place) => { one.hidden = (place === 1) !== event.target.checked; });
  });
  draw(section);
}
const unfold = (within) => within.querySelectorAll("details").forEach((one) => { one.open = true; });
window.addEventListener("beforeprint", () => unfold(document));
for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", () => unfold(find(link.getAttribute("href"))));
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return;
  width = window.innerWidth;
  sections.forEach(draw);
});

function table(headings, rows) {
  const line = (cells, kind) => node("tr", {}, ...cells.map((cell, index) => {
    if (cell instanceof Node) return cell;
    if (kind === "th") return node("th", { scope: "col", text: cell });
    return index === 0 ? node("th", { scope: "row", text: cell }) : node("td", { text: cell });
  }));
  return node("table", {}, node("thead", {}, line(headings, "th")), node("tbody", {}, ...rows.map((cells) => line(cells, "td"))));
}

// The browser of samples: a list to walk, and one sample with its player, picture, strips and replies.
const taskOf = (sample) => (sample.control ? `${sample.task} [${sample.control}]` : sample.task);
let visible = [], selected = 0;
const right = (reply) => reply.score === 1, graded = (reply) => known(reply.score) && reply.score % 1 !== 0;
const tally = (replies) => replies.some(graded) ? `mean ${shown(replies.reduce((sum, r) => sum + r.score, 0) / replies.length, 2)}` : `${replies.filter(right).length} of ${replies.length} right`;
const wrong = (reply) => known(reply.score) && reply.score < 1;
// Whether pruning changed the score: base has another score on the same sample.
const flipped = (sample) => sample.replies.some((reply) => {
  const base = sample.replies.find((other) => other.setting === settings[reply.setting].base);
  return base && known(base.score) && known(reply.score) && base.score !== reply.score;
});

function filtered() {
  const form = find("#filters"), text = form.text.value.toLowerCase();
  const setting = form.setting.value === "" ? null : Number(form.setting.value);
  return samples.filter((sample) => {
    const replies = sample.replies.filter((reply) => setting === null || reply.setting === setting);
    const kinds = { all: true, wrong: replies.some(wrong), failed: replies.some((r) => r.failed), unparsed: replies.some((r) => r.unparsed), flipped: flipped({ replies: setting === null ? sample.replies : sample.replies.filter((r) => r.setting === setting || r.setting === settings[setting].base) }) };
    if ((form.task.value && taskOf(sample) !== form.task.value) || !replies.length || !kinds[form.show.value]) return false;
    return !text || [sample.id, sample.prompt || "", ...replies.map((r) => r.reply)].some((part) => part.toLowerCase().includes(text));
  });
}

function list() {
  visible = filtered();
  selected = 0;
  find("#count").textContent = `${visible.length} of ${samples.length} samples${data.total > samples.length ? ` (${data.total} in the runs)` : ""}`;
  find("#list").replaceChildren(...visible.map((sample, index) => {
    const scored = sample.replies.filter((reply) => !reply.failed && known(reply.score)), failed = sample.replies.filter((reply) => reply.failed).length;
    const item = node("li", { role: "option", id: `sample-${index}`, "aria-selected": "false" }, node("span", { text: sample.id }),
      node("span", { class: "marks", text: [taskOf(sample), ...(scored.length ? [tally(scored)] : []), ...(flipped(sample) ? ["flipped"] : []), ...(failed ? [`${failed} failed`] : [])].join(" · ") }));
    item.addEventListener("click", () => select(index));
    return item;
  }));
  if (visible.length) select(0, false); else find("#detail").replaceChildren(node("p", { class: "note", text: samples.length ? "No sample matches." : "No sample was answered." }));
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

// Each byte holds two levels of 0…15.
const levelAt = (packed, place) => (place % 2 ? packed[place >> 1] & 15 : packed[place >> 1] >> 4) / 15;
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

function spectrogram(sample) {
  const packed = bytes(sample.picture), width = data.columns, height = data.bands;
  const canvas = node("canvas", { width, height, role: "img", "aria-label": `spectrogram of ${sample.id}` });
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) {
    const place = (height - 1 - y) * width + x;
    const level = levelAt(packed, place);
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
  const shares = bytes(reply.kept);
  const canvas = node("canvas", { width: 2 * shares.length, height: 1, role: "img", "aria-label": `moments that ${settings[reply.setting].name} kept` });
  const context = canvas.getContext("2d");
  context.fillStyle = settings[reply.setting].colour;
  for (let x = 0; x < canvas.width; x += 1) { context.globalAlpha = levelAt(shares, x); context.fillRect(x, 0, 1, 1); }
  return node("div", { class: "strip" }, node("span", { text: settings[reply.setting].name }), canvas);
}

// If the page was moved to another machine, the clips that it links to are missing.
function player(address) {
  const element = node("audio", { controls: "", preload: "metadata", src: address });
  let path = address.replace("file://", "");
  try { path = decodeURI(path); } catch { /* a name that is not UTF-8 */ }
  const text = address.startsWith("data:") ? "This browser cannot play the audio." : `The audio lies on the machine that made this page (${path}); audiomarathon report --audio embed puts it inside.`;
  element.addEventListener("error", () => element.replaceWith(node("p", { class: "note odd", text })));
  return element;
}

function detail(sample) {
  const parts = [node("h3", { text: `${taskOf(sample)}: ${sample.id}` }),
    node("p", { class: "note", text: `${shown(sample.seconds, 1)} s${sample.truncated ? " (cut short for the model)" : ""} · cluster ${sample.cluster ?? "–"} · right answer ${sample.answer ?? "–"}${sample.event ? ` · deciding event at ${shown(sample.event[0], 1)} s` : ""}` })];
  for (const address of sample.audio) parts.push(player(address));
  // Align the spectrogram with the strips, so that a moment is at the same x in all of them.
  if (sample.picture) parts.push(node("div", { class: "strip" }, node("span", { text: "spectrogram" }), spectrogram(sample)));
  parts.push(...sample.replies.filter((reply) => reply.kept).map(stripOf));
  if (sample.prompt) parts.push(node("pre", { text: sample.prompt }));
  const rows = sample.replies.map((reply) => {
    const verdict = reply.failed ? ["odd", "failed"] : [reply.unparsed || graded(reply) || !known(reply.score) ? "odd" : right(reply) ? "right" : "wrong", reply.verdict ?? "–"];
    return [settings[reply.setting].name, node("td", { text: reply.reply }), node("td", { class: verdict[0], text: verdict[1] }), `${reply.rule ?? "–"}`, `${reply.finish ?? "–"}`];
  });
  parts.push(node("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Replies" }, table(["setting", "reply", "verdict", "rule", "finish"], rows)));
  find("#detail").replaceChildren(...parts);
  breakable(find("#detail"));
}

function choices(select, values) {
  select.replaceChildren(node("option", { value: "", text: "all" }), ...values.map(([value, text]) => node("option", { value, text })));
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
for (const [name, step] of [["#previous", -1], ["#next", 1]]) find(name).addEventListener("click", () => { if (visible.length) select(selected + step); });
find("#theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
for (const event of ["input", "change"]) find("#filters").addEventListener(event, list);
find("#filters").addEventListener("submit", (event) => event.preventDefault());
choices(find("#filters").task, [...new Set(samples.map(taskOf))].map((task) => [task, task]));
choices(find("#filters").setting, settings.map((setting, index) => [index, setting.name]));
list();
