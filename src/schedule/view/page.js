"use strict";
/* The page of a schedule. The data (see html.c): kinds[k] = {name, what, group, colors[chunk]}; chunks[stage]; rows, one
 * a rank, with actions as [kind, stage, microbatch, start, end] one after the other, overlaps {index: [stage, microbatch]}
 * of the B in an overlap, and usage as [time, slots, memory]. */
const data = JSON.parse(document.getElementById("data").textContent);
const element = id => document.getElementById(id);
const canvas = element("chart"), context = canvas.getContext("2d"), tip = element("tip");
const FIELDS = 5, COMPUTE = 0;
const LEFT = 74, RIGHT = 176, TOP = 26, MOST_LISTED = 4000;
const FONT = "system-ui, 'DejaVu Sans', sans-serif";

/* ---- The model: actions as objects, compute and communication apart, found by their text ---- */

const number = x => String(+x.toPrecision(6));

function textOf(kind, stage, microbatch) {
  return stage + kind.name + (microbatch < 0 ? "" : microbatch);
}

function readRow(row, rank) {
  const compute = [], other = [];
  for (let i = 0; i * FIELDS < row.actions.length; i++) {
    const [k, stage, microbatch, start, end] = row.actions.slice(i * FIELDS, i * FIELDS + FIELDS);
    const kind = data.kinds[k], overlap = row.overlaps[i];
    const parts = overlap
      ? [{ kind: data.kinds[data.forward], stage, microbatch },
         { kind: data.kinds[data.backward], stage: overlap[0], microbatch: overlap[1] }]
      : [{ kind, stage, microbatch }];
    const text = overlap
      ? "(" + parts.map(part => textOf(part.kind, part.stage, part.microbatch)).join(";") + ")" + kind.name
      : textOf(kind, stage, microbatch);
    (kind.group === COMPUTE ? compute : other).push({ rank, kind, parts, text, start, end });
  }
  other.sort((a, b) => a.start - b.start);
  return { ...row, rank, compute, other };
}

const rows = data.rows.map(readRow);
const everything = rows.flatMap(row => row.compute.concat(row.other));
const longest = Math.max(0, ...rows.map(row => row.other.reduce((most, a) => Math.max(most, a.end - a.start), 0)));
const byText = new Map();
for (const action of everything) {
  byText.set(action.text, action);
  if (action.parts.length === 2)
    for (const part of action.parts) byText.set(textOf(part.kind, part.stage, part.microbatch), action);
}
const mostMemory = Math.max(1e-300, ...rows.map(row => row.peak_memory));

/* First index in a list sorted by `key` whose key is above the limit. */
function firstAbove(list, limit, key) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(list[middle]) > limit) high = middle; else low = middle + 1;
  }
  return low;
}

function usageAt(row, time) {
  const usage = row.usage;
  let low = 0, high = usage.length / 3;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (usage[middle * 3] > time + 1e-9 * data.makespan) high = middle; else low = middle + 1;
  }
  return low === 0 ? { slots: 0, memory: 0 } : { slots: usage[low * 3 - 2], memory: usage[low * 3 - 1] };
}

/* ---- What is shown: a stretch of time and a first row ---- */

const view = { from: 0, to: data.makespan || 1, top: 0 };
let width = 0, height = 0, pitch = 0, lanes = null, style = null;
let hovered = null, kept = null; /* actions */

const chartWidth = () => Math.max(50, width - LEFT - RIGHT);
const xOf = time => LEFT + (time - view.from) / (view.to - view.from) * chartWidth();
const timeAt = x => view.from + (x - LEFT) / chartWidth() * (view.to - view.from);
const yOf = rank => TOP + rank * pitch - view.top;

function measure() {
  const ratio = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  width = box.width;
  height = box.height;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  pitch = Math.min(92, Math.max(16, (height - TOP - 6) / rows.length));
  const messages = data.messages && pitch >= 22 ? Math.min(9, pitch * 0.16) : 0;
  const memory = pitch >= 24 ? Math.min(22, pitch * 0.22) : 0;
  lanes = { compute: pitch - messages - memory - 4, messages, memory };
  const css = getComputedStyle(document.documentElement);
  style = Object.fromEntries(["back", "ink", "soft", "faint", "idle", "memory", "mark"]
    .map(name => [name, css.getPropertyValue("--" + name).trim()]));
}

function keepInside() {
  const all = data.makespan || 1, span = Math.min(view.to - view.from, all);
  view.from = Math.min(Math.max(0, view.from), all - span);
  view.to = view.from + span;
  view.top = Math.max(0, Math.min(view.top, rows.length * pitch - (height - TOP - 6)));
}

function zoom(factor, x) {
  const time = timeAt(x === undefined ? LEFT + chartWidth() / 2 : x), all = data.makespan || 1;
  const span = Math.min(all, Math.max(all * 1e-6, (view.to - view.from) * factor));
  const share = (time - view.from) / (view.to - view.from);
  view.from = time - share * span;
  view.to = view.from + span;
  redraw();
}

function move(pixels, rowsDown) {
  const time = pixels / chartWidth() * (view.to - view.from);
  view.from += time;
  view.to += time;
  view.top += rowsDown;
  redraw();
}

function fit() {
  Object.assign(view, { from: 0, to: data.makespan || 1, top: 0 });
  redraw();
}

/* ---- Drawing ---- */

const luminance = color => {
  const value = parseInt(color.slice(1), 16);
  return 0.299 * (value >> 16) + 0.587 * (value >> 8 & 255) + 0.114 * (value & 255);
};
const colorOf = part => part.kind.colors[data.chunks[part.stage] % part.kind.colors.length];

/* Width of a text in font sizes. Digits are all as wide as one another. */
const widths = new Map();
function widthOf(text) {
  const form = text.replace(/\d/g, "0");
  if (!widths.has(form)) {
    context.font = `100px ${FONT}`;
    widths.set(form, context.measureText(form).width / 100);
  }
  return widths.get(form);
}

/* Boxes of one width have labels of one form and size: those that fit the longest label. */
const longestName = data.kinds.filter(kind => kind.group === COMPUTE && kind.name.length === 1).map(kind => kind.name)
  .reduce((best, name) => widthOf(name) > widthOf(best) ? name : best, "");
const longestNumber = String(everything.reduce((most, action) => Math.max(most, action.parts[0].microbatch), 0));
const longestLabel = (data.stages - 1) + longestName + longestNumber;

function drawLabel(part, x, y, boxWidth, boxHeight, color) {
  const full = textOf(part.kind, part.stage, part.microbatch), size = Math.min(12, boxHeight * 0.8);
  if (size < 6) return;
  for (const [text, most, least] of [[full, longestLabel, 7], [String(part.microbatch), longestNumber, 6]]) {
    const fits = Math.min(size, (boxWidth - 2) / widthOf(most));
    if (fits < Math.min(least, size)) continue;
    context.font = `${fits.toFixed(1)}px ${FONT}`;
    context.fillStyle = luminance(color) > 140 ? "#000000" : "#ffffff";
    context.fillText(text, x + boxWidth / 2, y + boxHeight / 2 + 0.5);
    return;
  }
}

function drawCompute(action, y, focus) {
  const x1 = Math.max(xOf(action.start), LEFT - 2), x2 = Math.min(xOf(action.end), LEFT + chartWidth() + 2);
  const boxWidth = Math.max(0.5, x2 - x1 - (x2 - x1 > 3 ? 1 : 0)), boxHeight = lanes.compute / action.parts.length;
  action.parts.forEach((part, i) => {
    const color = colorOf(part);
    context.globalAlpha = focus && !focus.parts.some(other => other.microbatch === part.microbatch) ? 0.28 : 1;
    context.fillStyle = color;
    context.fillRect(x1, y + i * boxHeight, boxWidth, boxHeight);
    drawLabel(part, x1, y + i * boxHeight, boxWidth, boxHeight, color);
  });
  context.globalAlpha = 1;
  if (action === hovered || action === kept) {
    context.strokeStyle = style.mark;
    context.lineWidth = 2;
    context.strokeRect(x1 + 1, y + 1, Math.max(1, boxWidth - 2), lanes.compute - 2);
  }
}

function drawMessages(row, y) {
  const lane = y + lanes.compute + 1, boxHeight = lanes.messages / 2 - 0.5;
  const first = firstAbove(row.other, view.from - longest, action => action.start);
  for (let i = first; i < row.other.length && row.other[i].start <= view.to; i++) {
    const action = row.other[i], sends = action.kind.name.startsWith("SEND");
    if (action.end < view.from || !(action.end > action.start)) continue;
    context.fillStyle = colorOf(action.parts[0]);
    context.fillRect(xOf(action.start), lane + (sends ? 0 : boxHeight + 0.5),
      Math.max(0.5, xOf(action.end) - xOf(action.start)), boxHeight);
  }
}

function drawMemory(row, y) {
  const bottom = y + pitch - 3, usage = row.usage;
  context.fillStyle = style.memory;
  context.beginPath();
  context.moveTo(LEFT, bottom);
  let level = usageAt(row, view.from).memory, x = LEFT;
  context.lineTo(x, bottom - lanes.memory * level / mostMemory);
  for (let i = 0; i < usage.length; i += 3) {
    if (usage[i] <= view.from) continue;
    if (usage[i] > view.to) break;
    x = xOf(usage[i]);
    context.lineTo(x, bottom - lanes.memory * level / mostMemory);
    level = usage[i + 2];
    context.lineTo(x, bottom - lanes.memory * level / mostMemory);
  }
  context.lineTo(LEFT + chartWidth(), bottom - lanes.memory * level / mostMemory);
  context.lineTo(LEFT + chartWidth(), bottom);
  context.fill();
}

/* Draws the row and adds what it drew to the list; returns how many compute actions were drawn. */
function drawRow(row, y, focus, listed) {
  let drawn = 0, lastEnd = -Infinity;
  const first = firstAbove(row.compute, view.from, action => action.end);
  for (let i = first; i < row.compute.length && row.compute[i].start < view.to; i++) {
    const action = row.compute[i], end = xOf(action.end);
    drawn++;
    if (listed.length < MOST_LISTED) listed.push(action.text);
    if (end - lastEnd < 0.3) continue; /* nobody would see it */
    drawCompute(action, y, focus);
    lastEnd = end;
  }
  if (lanes.messages) drawMessages(row, y);
  if (lanes.memory) drawMemory(row, y);
  return drawn;
}

/* A round step of time that leaves at least 70 pixels between ticks. */
function tickStep() {
  const least = (view.to - view.from) * 70 / chartWidth(), power = 10 ** Math.floor(Math.log10(least));
  return power * ([1, 2, 5].find(step => power * step >= least) || 10);
}

/* Calls back with each tick's time and place. */
function eachTick(callback) {
  const step = tickStep();
  for (let k = Math.ceil(view.from / step); k * step <= view.to * (1 + 1e-12); k++) callback(k * step, xOf(k * step));
}

/* Under everything else: the idle time of the rows, and lines at the ticks. */
function drawGround(firstRow, lastRow) {
  context.fillStyle = style.idle;
  for (let rank = firstRow; rank <= lastRow; rank++) context.fillRect(LEFT, yOf(rank), chartWidth(), lanes.compute);
  context.fillStyle = style.faint;
  eachTick((time, x) => context.fillRect(x, TOP - 5, 1, Math.min(height, rows.length * pitch + TOP) - TOP + 5));
}

function drawAxis() {
  context.textAlign = "center";
  context.font = `11px ${FONT}`;
  context.fillStyle = style.soft;
  eachTick((time, x) => context.fillText(number(time), x, TOP - 13));
}

/* The rank's name at the left, its figures at the right. */
function drawFrame(firstRow, lastRow) {
  const right = LEFT + chartWidth();
  context.fillStyle = style.back;
  context.fillRect(0, 0, LEFT, height);
  context.fillRect(right, 0, RIGHT, height);
  context.font = `11px ${FONT}`;
  context.textAlign = "right";
  context.fillStyle = style.soft;
  [[58, "bubble"], [102, "slots"], [164, "memory"]].forEach(([at, name]) => context.fillText(name, right + at, TOP - 13));
  context.fillStyle = style.ink;
  for (let rank = firstRow; rank <= lastRow; rank++) {
    const y = yOf(rank) + lanes.compute / 2 + 0.5, row = rows[rank];
    context.fillText(row.name, LEFT - 8, y);
    context.fillText((100 * row.bubble).toFixed(1) + " %", right + 58, y);
    context.fillText(number(row.peak_slots), right + 102, y);
    context.fillText(number(row.peak_memory), right + 164, y);
  }
}

/* The way of the focused microbatch through the stages. */
function drawPath(focus) {
  const microbatch = focus.parts[0].microbatch;
  if (microbatch < 0) return;
  const center = action => [(xOf(action.start) + xOf(action.end)) / 2, yOf(action.rank) + lanes.compute / 2];
  const names = { F: [], B: [] };
  for (let stage = 0; stage < data.stages; stage++) {
    names.F.push(stage + "F" + microbatch);
    names.B.unshift(byText.has(stage + "B" + microbatch) ? stage + "B" + microbatch : stage + "I" + microbatch);
  }
  context.strokeStyle = style.mark;
  context.lineWidth = 1.2;
  context.globalAlpha = 0.55;
  context.beginPath();
  let pen = null;
  for (const text of names.F.concat(names.B)) {
    const action = byText.get(text);
    if (!action) continue;
    const [x, y] = center(action);
    if (pen) context.lineTo(x, y); else context.moveTo(x, y);
    pen = true;
  }
  context.stroke();
  context.globalAlpha = 1;
}

function draw() {
  const listed = [], focus = kept || hovered;
  let drawn = 0;
  keepInside();
  context.fillStyle = style.back;
  context.fillRect(0, 0, width, height);
  context.textBaseline = "middle";
  context.textAlign = "center";
  const firstRow = Math.max(0, Math.floor(view.top / pitch));
  const lastRow = Math.min(rows.length - 1, Math.floor((view.top + height - TOP) / pitch));
  context.save();
  context.beginPath();
  context.rect(LEFT, TOP - 1, chartWidth(), height);
  context.clip();
  drawGround(firstRow, lastRow);
  for (let rank = firstRow; rank <= lastRow; rank++) drawn += drawRow(rows[rank], yOf(rank), focus, listed);
  if (focus) drawPath(focus);
  context.restore();
  drawFrame(firstRow, lastRow);
  drawAxis();
  report(drawn, listed);
}

/* What is on the canvas, for those who cannot see it: screen readers, find in page, tests. */
let listTimer = 0;
function report(drawn, listed) {
  document.body.dataset.drawn = drawn;
  clearTimeout(listTimer);
  const list = () => element("actions").replaceChildren(...listed.map(text => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
  if (element("actions").childElementCount === 0) list(); else listTimer = setTimeout(list, 250);
}

let pending = false;
function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draw(); });
}

/* ---- Pointing ---- */

function actionAt(x, y) {
  const rank = Math.floor((y - TOP + view.top) / pitch), row = rows[rank];
  if (!row || x < LEFT || x > LEFT + chartWidth() || y < TOP) return null;
  const time = timeAt(x), inside = y - yOf(rank);
  if (inside <= lanes.compute) {
    const action = row.compute[firstAbove(row.compute, time, each => each.end)];
    return action && action.start <= time ? action : null;
  }
  if (lanes.messages && inside <= lanes.compute + lanes.messages + 1) {
    const sends = inside <= lanes.compute + 1 + lanes.messages / 2;
    return row.other.find(each => each.start <= time && time < each.end && sends === each.kind.name.startsWith("SEND")) || null;
  }
  return null;
}

/* Lines about an action: the text first, then what it is, where, when and what the rank holds meanwhile. */
function describe(action) {
  const usage = usageAt(rows[action.rank], action.start);
  const what = action.parts.map(part => part.kind.what + ", stage " + part.stage +
    (part.microbatch < 0 ? "" : ", microbatch " + part.microbatch));
  return [action.text, ...what, rows[action.rank].name,
    "start " + number(action.start) + ", end " + number(action.end) + " (" + number(action.end - action.start) + ")",
    "memory " + number(usage.memory) + " in " + usage.slots + (usage.slots === 1 ? " slot" : " slots")];
}

function showTip(action, x, y) {
  tip.hidden = !action;
  if (!action) return;
  const [head, ...lines] = describe(action), title = document.createElement("b"), rest = document.createElement("span");
  title.textContent = head;
  rest.textContent = "\n" + lines.join("\n");
  tip.replaceChildren(title, rest);
  tip.style.left = Math.max(4, Math.min(x + 14, width - tip.offsetWidth - 6)) + "px";
  tip.style.top = Math.max(4, y + 18 + tip.offsetHeight > height ? y - tip.offsetHeight - 10 : y + 18) + "px";
}

function hover(x, y) {
  const action = actionAt(x, y);
  showTip(action, x, y);
  if (action === hovered) return;
  hovered = action;
  redraw();
}

/* Marks the action and says in the status line what it is; null takes the mark away. */
function keep(action) {
  kept = action;
  element("status").textContent = action ? describe(action).join(" \u00b7 ") : "";
  redraw();
}

/* Brings an action into view and marks it. */
function reveal(action) {
  const span = Math.max(Math.min(view.to - view.from, data.makespan), action.end - action.start);
  if (action.start < view.from || action.end > view.to) {
    view.from = (action.start + action.end) / 2 - span / 2;
    view.to = view.from + span;
  }
  const y = action.rank * pitch;
  if (y < view.top || y + pitch > view.top + height - TOP) view.top = y - (height - TOP) / 2;
  keep(action);
}

function find(text) {
  const action = byText.get(text.trim().toUpperCase());
  element("find").classList.toggle("none", text.trim() !== "" && !action);
  if (action) reveal(action); else keep(null);
}

/* ---- Events ---- */

const pointers = new Map(); /* pressed ones: id to {x, y}; two of them pinch */
let moved = 0;

canvas.addEventListener("pointerdown", event => {
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
  moved = 0;
});
canvas.addEventListener("pointermove", event => {
  const before = pointers.get(event.pointerId), now = { x: event.offsetX, y: event.offsetY };
  if (!before) return hover(now.x, now.y);
  if (pointers.size === 2) {
    const other = [...pointers.entries()].find(([id]) => id !== event.pointerId)[1];
    zoom(Math.max(8, Math.abs(before.x - other.x)) / Math.max(8, Math.abs(now.x - other.x)), (now.x + other.x) / 2);
  } else {
    move(before.x - now.x, before.y - now.y);
  }
  moved += Math.abs(before.x - now.x) + Math.abs(before.y - now.y);
  canvas.classList.add("moving");
  showTip(null);
  pointers.set(event.pointerId, now);
});
function release(event) {
  pointers.delete(event.pointerId);
  canvas.classList.remove("moving");
}
canvas.addEventListener("pointerup", event => {
  release(event);
  if (moved > 4) return;
  const action = actionAt(event.offsetX, event.offsetY);
  keep(action === kept ? null : action);
});
canvas.addEventListener("pointercancel", release);
canvas.addEventListener("pointerleave", () => { hovered = null; showTip(null); redraw(); });
canvas.addEventListener("wheel", event => {
  event.preventDefault();
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX || event.deltaY, 0);
  else zoom(1.0015 ** event.deltaY, event.offsetX);
}, { passive: false });
canvas.addEventListener("dblclick", fit);
window.addEventListener("keydown", event => {
  if (event.target.tagName === "INPUT") return;
  const step = chartWidth() / 8, keys = {
    ArrowLeft: () => move(-step, 0), ArrowRight: () => move(step, 0), ArrowUp: () => move(0, -pitch),
    ArrowDown: () => move(0, pitch), "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7),
    0: fit, Escape: () => keep(null),
  };
  if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  keys[event.key]();
});
element("zoom-in").onclick = () => zoom(0.7);
element("zoom-out").onclick = () => zoom(1 / 0.7);
element("fit").onclick = fit;
element("find").oninput = event => find(event.target.value);
window.addEventListener("resize", () => { measure(); draw(); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { measure(); draw(); });
window.addEventListener("hashchange", () => find(decodeURIComponent(location.hash.slice(1))));

/* ---- Start: page.html#2F0 opens with that action marked ---- */

element("title").textContent = data.title;
element("figures").textContent = data.figures;
const legend = data.legend.concat({ color: "var(--memory)", text: "activation memory" });
for (const { color, text } of legend) {
  const entry = document.createElement("span"), swatch = document.createElement("i");
  swatch.style.background = color;
  entry.append(swatch, text);
  element("legend").append(entry);
}
const note = text => element("legend").appendChild(document.createElement("span")).textContent = text;
if (data.chunks.some(chunk => chunk > 0)) note("lighter: a rank's later stages");
note("2F0: stage 2, forward, microbatch 0; a number alone is a microbatch");
measure();
draw();
if (location.hash.length > 1) find(decodeURIComponent(location.hash.slice(1)));
