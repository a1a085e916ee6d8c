"use strict";

const WIDTH = 560, HEIGHT = 176, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 20;
const [SECONDS, RATE, RETURN, LENGTH, SHARES, BUFFER] = [0, 1, 2, 5, 8, 11];  // columns of a point
const COLOURS = ["var(--blue)", "var(--orange)", "var(--green)"];
const CHARTS = [
  { title: "Return", note: "mean of the last 100 episodes, from lowest to highest", mean: RETURN },
  { title: "Frames per second", note: "over the last seconds", line: RATE },
  { title: "Length of episodes", note: "mean of the last 100, from shortest to longest", mean: LENGTH },
  { title: "Where the time goes", note: "shares since the start", shares: SHARES, names: ["env", "policy", "training"] },
  { title: "Replay buffer", note: "items in it", line: BUFFER, optional: true },
];

const points = [];
let now = null;
let hovered = null;  // seconds under the pointer

const find = (selector) => document.querySelector(selector);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const number = (value, digits = 1) =>
  value === null ? "–" : Math.abs(value) >= 1000 ? whole.format(value) : String(+value.toFixed(digits));
const percent = (value) => `${Math.round(100 * value)}%`;

function clock(seconds) {
  const all = Math.round(seconds), pad = (value) => String(value).padStart(2, "0");
  const [hours, minutes, rest] = [Math.floor(all / 3600), Math.floor(all / 60) % 60, all % 60];
  return hours ? `${hours}:${pad(minutes)}:${pad(rest)}` : `${minutes}:${pad(rest)}`;
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  Object.assign(made, attributes);
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

// ------------------------------------------------------------------ numbers

function showState(text, kind) {
  const state = find("#state");
  if (state.textContent !== text) state.textContent = text;  // a screen reader speaks changes only
  state.className = kind;
}

function showProgress() {
  const part = now.total === null ? null : Math.min(1, now.frames / now.total);
  const bar = find("#bar");
  bar.hidden = part === null;
  bar.setAttribute("aria-valuenow", Math.floor(100 * (part ?? 0)));
  bar.firstElementChild.style.width = `${100 * (part ?? 0)}%`;
  const left = part === null || now.ended || !now.frames_per_second ? "" :
    ` · ${clock(Math.max(0, now.total - now.frames) / now.frames_per_second)} left`;
  const of = part === null ? "" : ` of ${whole.format(now.total)} (${Math.floor(100 * part)}%)`;
  find("#progress").textContent = `${whole.format(now.frames)}${of} frames · ${clock(now.seconds)}${now.ended ? "" : " so far"}${left}`;
}

function tiles() {
  const range = (one) => (one.mean === null ? "" : `${number(one.min)} to ${number(one.max)}`);
  const bounds = Object.entries(now.out_of_bounds);
  const all = [
    ["Frames/s", whole.format(now.frames_per_second), now.ended ? "in all" : "now"],
    ["Return", number(now.return.mean), range(now.return)],
    ["Length", number(now.length.mean), range(now.length)],
    ["Episodes", whole.format(now.episodes), ""],
    ["Batches", whole.format(now.batches), `staleness ${now.staleness}`],
  ];
  if (now.buffer) {
    const { items, capacity } = now.buffer;
    all.push(["Replay buffer", percent(items / capacity), `${whole.format(items)} of ${whole.format(capacity)}`]);
  }
  if (now.restarts) all.push(["Mended workers", whole.format(now.restarts), ""]);
  if (now.discarded_frames) all.push(["Discarded frames", whole.format(now.discarded_frames), ""]);
  if (bounds.length) all.push(["Out of bounds", bounds.map(([, frames]) => whole.format(frames)).join(" + "), bounds.map(([key]) => key).join(", ")]);
  find("#tiles").replaceChildren(...all.map(([name, value, note]) =>
    element("div", {}, element("dt", { textContent: name }), element("dd", {}, value, element("small", { textContent: note })))));
}

function workers() {
  find("#workers").hidden = !now.workers.length;
  if (!now.workers.length) return;
  const joining = now.workers.filter((one) => one.state === "joining").length;
  const restarted = now.workers.reduce((sum, one) => sum + one.restarts, 0);
  find("#workers small").textContent =
    `${now.workers.length - joining} up${joining ? `, ${joining} joining` : ""}${restarted ? `, ${restarted} restarted` : ""}`;
  find("#workers tbody").replaceChildren(...now.workers.map((one, index) => element("tr", {},
    element("th", { scope: "row", textContent: index }),
    element("td", { className: one.state, textContent: one.state }),
    ...[one.host || "this machine", whole.format(one.frames), whole.format(one.frames_per_second), number(one.return),
      ["env", "policy", "waiting"].map((name) => percent(one.time[name])).join(" · "), one.restarts,
    ].map((text) => element("td", { textContent: text })))));
}

// ------------------------------------------------------------------ charts

function ticks(low, high) {
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((one) => one * power >= rough);
  const all = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step / 1e6; tick += step) all.push(Math.abs(tick) < step / 1e6 ? 0 : tick);
  return all;
}

function scaled(from, to, start, stop) {
  return (value) => start + ((value - from) / (to - from || 1)) * (stop - start);
}

function limits(chart) {
  if (chart.shares) return [0, Math.max(1, ...points.map((one) => one[SHARES] + one[SHARES + 1] + one[SHARES + 2]))];  // null counts as 0
  const columns = chart.mean ? [chart.mean + 1, chart.mean + 2] : [chart.line];
  const values = points.flatMap((one) => columns.map((column) => one[column])).filter((value) => value !== null);
  if (chart.line) values.push(0);
  if (!values.length) return [0, 1];
  const low = Math.min(...values), high = Math.max(...values);
  return low === high ? [Math.min(0, low), Math.max(1, high * 1.1, low + 1)] : [low, high];
}

const path = (pairs) => (pairs.length ? `M${pairs.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L")}` : "");

function area(x, known, low, high, fill) {
  const outline = [...known.map((one) => [x(one[SECONDS]), high(one)]), ...known.map((one) => [x(one[SECONDS]), low(one)]).reverse()];
  return drawn("path", { d: outline.length ? `${path(outline)}Z` : "", fill });
}

function stroke(x, known, y, colour) {
  return drawn("path", { d: path(known.map((one) => [x(one[SECONDS]), y(one)])), fill: "none", stroke: colour, "stroke-width": 2, "stroke-linejoin": "round", "vector-effect": "non-scaling-stroke" });
}

function marks(chart, x, y) {
  if (chart.mean) {
    const known = points.filter((one) => one[chart.mean] !== null);
    return [
      area(x, known, (one) => y(one[chart.mean + 1]), (one) => y(one[chart.mean + 2]), "var(--band)"),
      stroke(x, known, (one) => y(one[chart.mean]), COLOURS[0]),
    ];
  }
  if (chart.line) return [stroke(x, points.filter((one) => one[chart.line] !== null), (one) => y(one[chart.line]), COLOURS[0])];
  const sum = (one, count) => one.slice(SHARES, SHARES + count).reduce((total, share) => total + share, 0);
  const known = points.filter((one) => one[SHARES] !== null);
  return COLOURS.map((colour, index) =>
    area(x, known, (one) => y(sum(one, index)), (one) => y(sum(one, index + 1)), colour));
}

function legend(chart, one) {
  if (chart.shares) {
    return chart.names.map((name, index) => {
      const swatch = element("i");
      swatch.style.background = COLOURS[index];
      return element("span", {}, swatch, `${name} ${percent(one[SHARES + index])}`);
    });
  }
  if (chart.line) return [element("span", { textContent: number(one[chart.line], 0) })];
  const [mean, low, high] = one.slice(chart.mean, chart.mean + 3);
  return [element("span", { textContent: mean === null ? "no episode has ended yet" : `${number(mean)} (${number(low)} to ${number(high)})` })];
}

function draw(chart) {
  const { svg, caption } = chart, last = points[points.length - 1];
  const width = svg.clientWidth || WIDTH;
  const [low, high] = limits(chart);
  const x = scaled(points[0][SECONDS], last[SECONDS], LEFT, width - RIGHT), y = scaled(low, high, HEIGHT - BOTTOM, TOP);
  const shown = hovered === null ? last : points.reduce((best, one) => (Math.abs(one[SECONDS] - hovered) < Math.abs(best[SECONDS] - hovered) ? one : best));
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  const lines = ticks(low, high).flatMap((tick) => [
    drawn("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
    drawn("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, chart.shares ? percent(tick) : short.format(tick)),
  ]);
  const times = [drawn("text", { x: LEFT, y: HEIGHT - 4 }, clock(points[0][SECONDS])),
    drawn("text", { x: width - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, clock(last[SECONDS]))];
  const cursor = hovered === null ? [] : [
    drawn("line", { class: "cursor", x1: x(shown[SECONDS]), x2: x(shown[SECONDS]), y1: TOP, y2: HEIGHT - BOTTOM })];
  svg.replaceChildren(...lines, ...times, ...marks(chart, x, y), ...cursor);
  caption.replaceChildren(...(hovered === null ? [] : [`at ${clock(shown[SECONDS])}`]), ...legend(chart, shown));
  svg.setAttribute("aria-label", `${chart.title}, ${chart.note}: ${legend(chart, last).map((one) => one.textContent).join(", ")}`);
}

function build(chart) {
  chart.svg = drawn("svg", { role: "img", preserveAspectRatio: "none" });
  chart.caption = element("div", { className: "legend" });
  chart.figure = element("figure", {}, element("h2", {}, `${chart.title} `, element("small", { textContent: chart.note })), chart.svg, chart.caption);
  chart.svg.addEventListener("pointermove", (event) => {
    const box = chart.svg.getBoundingClientRect();
    const seconds = scaled(LEFT, box.width - RIGHT, points[0][SECONDS], points[points.length - 1][SECONDS]);
    hovered = seconds(event.clientX - box.left);
    drawAll();
  });
  chart.svg.addEventListener("pointerleave", () => { hovered = null; drawAll(); });
  find("#charts").append(chart.figure);
}

function drawAll() {
  if (!points.length) return;
  for (const chart of CHARTS) {
    chart.figure.hidden = Boolean(chart.optional) && points[points.length - 1][chart.line] === null;
    if (!chart.figure.hidden) draw(chart);
  }
}

// ------------------------------------------------------------------ news

function show(news) {
  now = news.now;
  points.length = news.from;
  points.push(...news.points);
  document.title = `${now.title} · reap`;
  find("#title").textContent = now.title;
  showState(now.ended ? "ended" : "running", now.ended ? "ended" : "running");
  showProgress();
  tiles();
  workers();
  drawAll();
}

CHARTS.forEach(build);
addEventListener("resize", drawAll);
const source = new EventSource(`events${location.search}`);
source.addEventListener("message", (event) => {
  show(JSON.parse(event.data));
  if (now.ended) source.close();
});
source.addEventListener("error", () => showState("no connection: the program that collects has stopped, or was stopped", "lost"));
