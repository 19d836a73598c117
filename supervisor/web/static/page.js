// The page of rocm-supervisor: reads its own server, draws, and changes nothing. No text becomes markup: every string
// reaches the document through textContent. Written for browsers since the end of 2020 (ES2021, as uPlot is): Chrome 86,
// Firefox 79, Safari 14; in older ones the words of index.html stay.

const KEY = "rocm-supervisor-key";
const POLL_MS = 2000, SERIES_MS = 10000, BACK_OFF_MS = 30000;
const main = document.getElementById("main");

/* --- document ------------------------------------------------------------------------------------------------ */

function el(tag, given, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined));
  return made;
}

function table(caption, heads, rows) {
  const head = el("tr", {}, heads.map(text => el("th", { scope: "col" }, text)));
  const body = rows.map(cells => el("tr", {}, cells.map(cell => el("td", {}, cell === null || cell === undefined ? "-" : cell))));
  return el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": caption },
    el("table", {}, el("caption", { class: "hidden" }, caption), el("thead", {}, head), el("tbody", {}, body)));
}

function facts(pairs) {
  return el("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

let saying = 0;
function say(text) {
  clearTimeout(saying);
  saying = setTimeout(() => { document.getElementById("said").textContent = text; }, 400);
}

/* --- words --------------------------------------------------------------------------------------------------- */

const known = value => value !== null && value !== undefined;
const lastKnown = values => { for (let i = values.length - 1; i >= 0; i--) if (known(values[i])) return values[i]; return null; };
const number = (value, digits = 4) => known(value) ? Number(value).toLocaleString("en", { maximumSignificantDigits: digits }) : "-";
const whole = value => known(value) ? Math.round(value).toLocaleString("en") : "-";
const bytes = value => known(value) ? (value >= 1e9 ? `${number(value / 1e9, 3)} GB` : `${number(value / 1e6, 3)} MB`) : "-";
const time = value => known(value) ? new Date(value * 1000).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false }) : "-";

function duration(seconds) {
  if (!known(seconds)) return "-";
  const s = Math.abs(seconds);
  if (s < 60) return `${number(s, 2)} s`;
  const parts = (unit, of) => { const count = Math.round(s / unit); return [Math.floor(count / of), count % of]; };
  if (s < 3599.5) { const [minutes, rest] = parts(1, 60); return `${minutes} min ${rest} s`; }
  if (s < 172770) { const [hours, rest] = parts(60, 60); return `${hours} h ${rest} min`; }
  const [days, hours] = parts(3600, 24);
  return `${days} d ${hours} h`;
}

const GOOD = ["running", "finished"], BAD = ["failed", "killing"];
const phaseClass = phase => "phase " + (GOOD.includes(phase) ? "good" : BAD.includes(phase) ? "bad" : "wait");

/* --- server -------------------------------------------------------------------------------------------------- */

class Refused extends Error {
  constructor(status, error) { super(error.message || `status ${status}`); this.status = status; this.remedy = error.remedy || ""; }
}

async function ask(path) {
  let answer;
  try {
    answer = await fetch(path, { headers: { "X-Page-Key": localStorage.getItem(KEY) || "" }, cache: "no-store" });
  } catch (error) {
    throw new Refused(0, { message: "the page's server does not answer", remedy: "supervisorctl web starts it again" });
  }
  if (!answer.ok) throw new Refused(answer.status, (await answer.json().catch(() => ({}))).error || {});
  return answer;
}

const get = async path => (await ask(path)).json().catch(() => ({}));
const getPicture = async path => createImageBitmap(await (await ask(path)).blob());

async function openSession(token) {
  const answer = await fetch("/session", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }) });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, body.error || {});
  localStorage.setItem(KEY, body.key);
}

const api = (name, part = "") => `/api/trainings/${encodeURIComponent(name)}${part}`;

/* --- charts -------------------------------------------------------------------------------------------------- */

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const pale = text => { const [r, g, b] = text.match(/\w\w/g).map(part => parseInt(part, 16)); return `rgba(${r},${g},${b},.38)`; };

// As uPlot wants it: the smallest step of a row, its text, and what is put below it where year, month, day, hour, minute
// or second begin, or at the first mark. The rest of the page writes times in the same way.
const AXIS_TIMES = [
  [31536000, "{YYYY}", null, null, null, null, null, null, 1],
  [2419200, "{MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [86400, "{MMM} {D}", "\n{YYYY}", null, null, null, null, null, 1],
  [60, "{HH}:{mm}", "\n{MMM} {D}", null, "\n{MMM} {D}", null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", "\n{MMM} {D}", null, "\n{MMM} {D}", null, null, null, 1],
  [0.001, "{ss}.{fff}", "\n{MMM} {D} {HH}:{mm}", null, "\n{MMM} {D} {HH}:{mm}", null, "\n{HH}:{mm}", null, 1],
];

// One chart with its sentence, its keys and its table. `lines` are {label, values, colour, pale, hidden, show}, a band is
// the pair of line numbers between which it is drawn.
class Chart {
  constructor(place, title, options) {
    this.options = { height: 170, unit: "", format: number, time: true, sync: "time", bands: [], ...options };
    this.title = title;
    this.legend = el("p", { class: "legend" });
    this.plot = el("div", { class: "plot", tabindex: 0, role: "img", "aria-label": title, onkeydown: event => this.onKey(event) });
    this.rows = el("div");
    this.details = el("details", { ontoggle: () => this.fillTable() }, el("summary", {}, `Table of ${title.toLowerCase()}`), this.rows);
    this.figure = el("figure", { class: this.options.wide ? "wide" : "" },
      el("figcaption", {}, el(this.options.heading || "h3", {}, title), this.legend), this.plot, this.details);
    place.append(this.figure);
    this.seen = new ResizeObserver(() => this.u && this.u.setSize({ width: this.plot.clientWidth, height: this.options.height }));
    this.seen.observe(this.plot);
  }

  draw(x, lines, window) {
    this.x = x; this.lines = lines; this.window = window;
    const data = [x, ...lines.map(line => line.values)];
    const shape = lines.map(line => line.label + line.colour + line.pale).join();
    const any = lines.some(line => line.values.some(known));
    this.figure.hidden = !any && !this.options.always;
    if (this.u && this.shape === shape) {
      this.u.setData(data, false);
      this.u.redraw();
      this.u.setScale("x", this.range());
    } else {
      this.shape = shape;
      if (this.u) this.u.destroy();
      this.u = new uPlot(this.describe(lines), data, this.plot);
    }
    this.describeInWords();
    this.writeLegend(null);
    if (this.details.open) this.fillTable();
  }

  range() {
    const [low, high] = this.window || [this.x[0], this.x[this.x.length - 1]];
    return { min: low, max: high > low ? high : low + 1 };
  }

  describe(lines) {
    const axis = { stroke: colour("soft"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid") }, font: "12px system-ui" };
    const values = (u, splits) => splits.map(split => this.options.format(split, 4));
    return {
      width: this.plot.clientWidth || 320,
      height: this.options.height,
      legend: { show: false },
      cursor: { sync: { key: this.options.sync, scales: ["x", null] }, drag: { x: Boolean(this.options.onZoom), y: false, setScale: false }, points: { size: 6 } },
      scales: { x: { time: this.options.time, range: () => { const r = this.range(); return [r.min, r.max]; } } },
      axes: [this.options.time ? { ...axis, values: AXIS_TIMES } : axis, { ...axis, size: 64, values }],
      series: [{}, ...lines.map(line => ({
        label: line.label, show: true, spanGaps: false, points: { show: line.hidden ? false : undefined, size: 4 },
        stroke: line.hidden ? "transparent" : line.pale ? pale(colour(line.colour)) : colour(line.colour),
        width: line.hidden ? 0 : 1.5, dash: line.dash,
      }))],
      bands: this.options.bands.map(series => ({ series, fill: colour("band") })),
      hooks: {
        drawClear: [u => this.drawIncidents(u)],
        setSelect: [u => this.onSelect(u)],
        setCursor: [u => this.writeLegend(u.cursor.idx)],
        ready: [u => u.over.addEventListener("dblclick", () => this.options.onZoom && this.options.onZoom(null))],
      },
    };
  }

  drawIncidents(u) {
    const { ctx, bbox } = u, dot = devicePixelRatio || 1;
    const { min, max } = u.scales.x;
    ctx.save();
    for (const incident of this.options.incidents ? this.options.incidents() : []) {
      const end = incident.resumed_at || (incident.outcome === "open" ? max : incident.at);
      if (end < min || incident.at > max) continue;
      const left = Math.max(bbox.left, u.valToPos(incident.at, "x", true));
      const right = Math.min(bbox.left + bbox.width, Math.max(left + 2 * dot, u.valToPos(end, "x", true)));
      ctx.fillStyle = colour("incident");
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
      ctx.fillStyle = colour("incident-edge");
      ctx.fillRect(left, bbox.top, dot, bbox.height);
      ctx.beginPath(); ctx.moveTo(left - 4 * dot, bbox.top); ctx.lineTo(left + 4 * dot, bbox.top); ctx.lineTo(left, bbox.top + 7 * dot); ctx.fill();
    }
    ctx.restore();
  }

  onSelect(u) {
    if (u.select.width < 6 || !this.options.onZoom) return;
    const from = u.posToVal(u.select.left, "x"), to = u.posToVal(u.select.left + u.select.width, "x");
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.options.onZoom([from, to]);
  }

  onKey(event) {
    if (!this.u || !this.x.length) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }, last = this.x.length - 1;
    const zoom = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    if (event.key in steps || event.key === "Home" || event.key === "End") {
      const at = known(this.at) ? this.at : last;
      this.at = event.key === "Home" ? 0 : event.key === "End" ? last : Math.min(last, Math.max(0, at + steps[event.key]));
      this.u.setCursor({ left: this.u.valToPos(this.x[this.at], "x"), top: this.options.height / 3 }, true, true);
      say(`${this.title}: ${this.words(this.at)}`);
    } else if (zoom && this.options.onZoom) {
      const { min, max } = this.u.scales.x, middle = known(this.at) ? this.x[this.at] : (min + max) / 2, half = (max - min) * zoom / 2;
      this.options.onZoom([middle - half, middle + half]);
    } else if (event.key === "0" && this.options.onZoom) this.options.onZoom(null);
    else return;
    event.preventDefault();
  }

  label(index) { return this.options.time ? time(this.x[index]) : `${this.options.axis || "x"} ${number(this.x[index], 7)}`; }

  words(index) {
    const shown = this.lines.filter(line => !line.quiet && known(line.values[index]));
    return `${this.label(index)}, ` + (shown.map(line => `${line.label} ${this.options.format(line.values[index])}${this.options.unit}`).join(", ") || "no value");
  }

  writeLegend(index) {
    if (known(index)) this.at = index;
    const parts = this.lines.filter(line => !line.hidden && line.values.some(known)).map(line => {
      const value = known(index) ? line.values[index] : lastKnown(line.values);
      const swatch = el("span", { class: "swatch" });
      swatch.style.background = line.pale ? pale(colour(line.colour)) : colour(line.colour);
      return [swatch, known(value) ? `${line.label} ${this.options.format(value)}${this.options.unit}` : line.label];
    });
    this.legend.replaceChildren(...parts.flat(), known(index) && this.x[index] ? ` · ${this.label(index)}` : "");
  }

  describeInWords() {
    const line = this.lines.find(each => !each.hidden && each.values.some(known));
    if (!line) { this.plot.setAttribute("aria-label", `${this.title}: nothing was reported in this time`); return; }
    const first = line.values.find(known), last = lastKnown(line.values);
    let low = Infinity, high = -Infinity;
    for (const each of this.lines) for (const value of each.values) if (known(value)) { low = Math.min(low, value); high = Math.max(high, value); }
    const say = value => `${this.options.format(value)}${this.options.unit}`;
    const way = last < first ? "fell" : last > first ? "rose" : "stayed";
    const [from, to] = [this.x[0], this.x[this.x.length - 1]];
    const over = this.options.time ? `in ${duration(to - from)}` : `over ${number(to - from)} ${this.options.axis || ""}`;
    const incidents = this.options.incidents ? this.options.incidents().filter(each => each.at >= from && each.at <= to).length : 0;
    this.plot.setAttribute("aria-label", `${this.title}: ${line.label} ${way} from ${say(first)} to ${say(last)} ${over}; smallest ${say(low)}, largest ${say(high)}`
      + (this.options.incidents ? `; ${incidents} incident${incidents === 1 ? "" : "s"}` : "") + ". Arrow keys read the values, plus and minus zoom.");
  }

  fillTable() {
    if (!this.details.open || !this.x) return;
    const lines = this.lines.filter(line => !line.quiet);
    const rows = this.x.map((_, index) => index).filter(index => lines.some(line => known(line.values[index])));
    const every = Math.max(1, Math.ceil(rows.length / 25));
    const shown = rows.filter((_, place) => place % every === 0 || place === rows.length - 1).slice(-25);
    this.rows.replaceChildren(table(`${this.title}, ${shown.length} of ${rows.length} points`,
      [this.options.time ? "time" : this.options.axis || "x", ...lines.map(line => line.label + (this.options.unit ? ` (${this.options.unit.trim()})` : ""))],
      shown.map(index => [this.options.time ? time(this.x[index]) : number(this.x[index], 7), ...lines.map(line => known(line.values[index]) ? this.options.format(line.values[index]) : null)])));
  }

  destroy() { this.seen.disconnect(); if (this.u) this.u.destroy(); }
}

// A line of values and, drawn pale, those of work that a later attempt redid.
function twoLines(label, values, again, name) {
  const strong = { label, colour: name, values: values.map((value, index) => again[index] ? null : value) };
  if (!again.includes(1)) return [strong];
  return [strong, { label: `${label}, redone later`, colour: name, pale: true, values: values.map((value, index) => again[index] ? value : null) }];
}

/* --- views --------------------------------------------------------------------------------------------------- */

let view = null;

class View {
  constructor(heading) {
    this.charts = []; this.alive = true; this.timers = [];
    document.title = `${heading} · rocm-supervisor`;
    this.h1 = el("h1", {}, heading);
    this.body = el("div");
    main.replaceChildren(this.h1, this.body);
  }

  // Calls `work` now and every `ms` while the page is visible; slower while it fails.
  every(ms, work) {
    let wait = ms, timer = 0;
    const turn = async () => {
      if (!this.alive) return;
      if (!document.hidden) {
        try { await work(); wait = ms; if (this.alive) tell(this.problem); }
        catch (error) { if (this.alive) explain(error); wait = Math.min(BACK_OFF_MS, wait * 2); }
      }
      timer = setTimeout(turn, wait);
      this.timers.push(timer);
    };
    return turn();
  }

  chart(place, title, options) { const made = new Chart(place, title, options); this.charts.push(made); return made; }

  end() { this.alive = false; this.timers.forEach(clearTimeout); this.charts.forEach(chart => chart.destroy()); }
}

function tell(text) { document.getElementById("problem").textContent = text || ""; }

function explain(error) {
  if (error instanceof Refused && error.status === 401) { view?.end(); view = new SignIn(error.message); return; }
  tell(error.message + (error.remedy ? `: ${error.remedy}` : ""));
  if (!(error instanceof Refused)) console.error(error);
}

class SignIn extends View {
  constructor(why) {
    super("Sign in");
    const input = el("input", { id: "token", autocomplete: "off", spellcheck: "false" });
    const send = async event => {
      event.preventDefault();
      try { await openSession(input.value.trim().replace(/^.*#/, "")); location.hash = "#/"; route(); }
      catch (error) { tell(error.message); }
    };
    this.body.append(el("p", {}, why), el("p", {}, "Open the address that `supervisorctl web` prints, or paste it here. Its token is good once, for ten minutes."),
      el("form", { class: "row", onsubmit: send }, el("label", { for: "token" }, "Address or token"), input, el("button", {}, "Sign in")));
  }
}

class Overview extends View {
  constructor() {
    super("Trainings");
    this.cards = el("div", { class: "cards" });
    this.body.append(this.cards);
    this.byName = new Map();
    this.every(POLL_MS, () => this.refresh());
  }

  async refresh() {
    const answer = await get("/api/overview");
    if (!this.alive) return;
    this.problem = [answer.problem, answer.daemon?.problem, ...(answer.daemon?.alert_problems || [])].filter(Boolean).join("; ");
    if (!answer.trainings.length) this.cards.replaceChildren(el("p", {}, "No training is configured or recorded yet."));
    for (const training of answer.trainings) this.show(training, answer.now);
  }

  show(training, now) {
    let card = this.byName.get(training.name);
    if (!card) {
      card = { head: el("p"), facts: el("div"), place: el("div") };
      this.cards.append(el("section", { class: "card" }, el("h2", {}, el("a", { href: `#/training/${encodeURIComponent(training.name)}` }, training.name)), card.head, card.facts, card.place));
      this.byName.set(training.name, card);
    }
    card.head.replaceChildren(el("span", { class: phaseClass(training.phase) }, training.phase), ...aboutPhase(training, now));
    card.facts.replaceChildren(facts(factsOf(training, now)), ...(training.flags || []).map(text => el("p", { class: "bad" }, text)));
    const at = training.spark?.at;
    if (at?.length) {
      card.chart ||= this.chart(card.place, "Loss, 6 hours", { height: 100, sync: training.name });
      card.chart.draw(at, [{ label: "loss", values: training.spark.loss, colour: "c0" }]);
    }
  }
}

function aboutPhase(training, now) {
  const parts = [];
  if (training.stage && training.phase === "running") parts.push(`, ${training.stage}`);
  if (training.since && training.live) parts.push(` for ${duration(now - training.since)}`);
  if (!training.live && training.saved_at) parts.push(` (as recorded ${time(training.saved_at)})`);
  if (training.reason) parts.push(`: ${training.reason}`);
  return parts;
}

function factsOf(training, now) {
  const end = known(training.eta) ? `${time(training.eta)}, in ${duration(training.eta - now)}` : null;
  return [
    ["attempt", training.attempt],
    ["epoch", known(training.epoch) ? `${training.epoch + 1}${training.epochs ? ` of ${training.epochs}` : ""}` : null],
    ["step", known(training.step) ? `${whole(training.step)}${training.steps_total ? ` of ${whole(training.steps_total)}` : ""}` : null],
    ["pace", known(training.steps_per_s) ? `${number(training.steps_per_s, 3)} steps/s` : null],
    ["loss", known(training.loss) ? number(training.loss) : null],
    ["last step", known(training.last_step_at) ? `${duration(Math.max(0, now - training.last_step_at))} ago` : null],
    ["expected end", end],
    ["restarts", training.restarts || null],
    ["remedies", (training.remedies || []).join("; ")],
    ["degraded", (training.degraded || []).join("; ")],
  ];
}

const STEP_CHARTS = [
  { title: "Loss", wide: true, height: 240, lines: (s) => [
    { label: "smallest", values: s.loss_min, colour: "c0", hidden: true }, { label: "largest", values: s.loss_max, colour: "c0", hidden: true },
    ...twoLines("loss", s.loss, s.again, "c0")], bands: [[2, 1]], always: true },
  { title: "Pace", unit: " steps/s", lines: s => twoLines("pace", s.steps_per_s, s.again, "c2") },
  { title: "Data wait", unit: " ms", lines: s => twoLines("wait for a batch", s.data_wait_s.map(v => known(v) ? v * 1000 : null), s.again, "c1") },
  { title: "Learning rate", lines: s => twoLines("learning rate", s.lr, s.again, "c3") },
  { title: "Gradient norm", lines: s => twoLines("largest norm", s.grad_norm, s.again, "c4") },
];
const SAMPLE_CHARTS = [
  { title: "Memory", format: bytes, gpu: "memory_bytes", own: ["rss_bytes", "processes"] },
  { title: "Temperature", unit: " C", gpu: "temperature_c" },
  { title: "Power", unit: " W", gpu: "power_w" },
];
const SPANS = [["1 h", 3600], ["6 h", 21600], ["24 h", 86400], ["7 d", 604800], ["all", null]];

class Training extends View {
  constructor(name, params) {
    super(name);
    this.name = name; this.incidents = [];
    this.head = el("p"); this.facts = el("div");
    this.spans = el("div", { class: "row", role: "group", "aria-label": "Time shown" });
    this.grid = el("div", { class: "charts" });
    this.list = el("div"); this.account = el("div", {}, el("p", {}, "Being read from the record.")); this.attempts = el("div");
    this.tune = el("div", { class: "tune" });
    const path = encodeURIComponent(name);
    this.body.append(this.head, this.facts, el("p", {}, el("a", { href: `#/log/${path}` }, "Log"), " · ", el("a", { href: `#/compare?of=${path}` }, "Compare attempts")),
      el("h2", {}, "Charts"), this.spans, this.grid, el("h2", {}, "Incidents"), this.list, el("h2", {}, "Time account"), this.account, this.tune, el("h2", {}, "Attempts"), this.attempts);
    const shared = { incidents: () => this.incidents, onZoom: window => this.zoom(window) };
    this.stepCharts = STEP_CHARTS.map(spec => [spec, this.chart(this.grid, spec.title, { ...spec, ...shared })]);
    this.sampleCharts = SAMPLE_CHARTS.map(spec => [spec, this.chart(this.grid, spec.title, { ...spec, ...shared })]);
    this.setWindow(params);
    this.every(SERIES_MS, () => this.refreshSeries());
    this.every(POLL_MS, () => this.refresh());
    this.every(60000, () => this.refreshAccount());
    this.every(SERIES_MS, () => this.refreshTune());
  }

  update(params) { this.setWindow(params); this.refreshSeries().catch(explain); }

  setWindow(params) {
    const from = Number(params.get("from")), to = Number(params.get("to"));
    this.window = from && to ? [from, to] : null;
    this.last = Number(params.get("last")) || null;
    this.spans.replaceChildren(...SPANS.map(([label, seconds]) => el("button", { type: "button", "aria-pressed": String(!this.window && this.last === seconds),
      onclick: () => this.go(seconds ? `?last=${seconds}` : "") }, label)),
    ...(this.window ? [el("button", { type: "button", onclick: () => this.go("") }, "Leave zoom"), el("span", {}, `${time(this.window[0])} to ${time(this.window[1])}`)] : []));
  }

  go(query) { location.hash = `#/training/${encodeURIComponent(this.name)}${query}`; }

  zoom(window) {
    if (!window) { this.go(""); return; }
    const from = Math.floor(window[0]), to = Math.max(from + 60, Math.ceil(window[1]));
    for (const chart of this.charts) { chart.window = [from, to]; if (chart.u) chart.u.setScale("x", { min: from, max: to }); }
    this.go(`?from=${from}&to=${to}`);
  }

  query() {
    let [from, to] = this.window || [null, null];
    if (!from && this.last && this.until) [from, to] = [this.until - this.last, this.until + 1];
    const points = Math.min(600, Math.max(120, Math.round(this.grid.clientWidth * 0.6)));
    return `?points=${points}` + (from ? `&from=${from}&to=${to}` : "");
  }

  async refreshSeries() {
    if (this.last && !this.window && !this.until) await this.refresh();
    const query = this.query(), turn = this.turn = (this.turn || 0) + 1;
    const both = [get(api(this.name, "/steps") + query), get(api(this.name, "/samples") + query)];
    both[1].catch(() => {});
    const answer = await both[0];
    if (!this.alive || turn !== this.turn) return;
    const steps = answer.steps, window = [answer.since, answer.until], x = steps.at.map(at => answer.since + at);
    this.again = steps.again;
    for (const [spec, chart] of this.stepCharts) chart.draw(x, spec.lines(steps), window);
    if (!this.drawn) { this.drawn = true; performance.mark("first-chart"); }
    const samples = await both[1];
    if (!this.alive || turn !== this.turn) return;
    for (const [spec, chart] of this.sampleCharts) chart.draw(...sampleLines(samples, spec), window);
  }

  async refresh() {
    const answer = await get(api(this.name));
    if (!this.alive) return;
    this.problem = answer.problem; this.until = answer.until;
    const state = answer.state || {}, shape = JSON.stringify(answer.incidents);
    this.head.replaceChildren(el("span", { class: phaseClass(state.phase) }, state.phase || "recorded only"), ...aboutPhase({ ...state, live: answer.live }, answer.now));
    this.facts.replaceChildren(facts(factsOf(state, answer.now)), ...(state.flags || []).map(text => el("p", { class: "bad" }, text)));
    if (this.incidentShape === shape && this.attemptCount === answer.attempts.length) return;
    this.incidentShape = shape; this.attemptCount = answer.attempts.length; this.incidents = answer.incidents;
    for (const chart of this.charts) if (chart.u) { chart.u.redraw(); chart.describeInWords(); }
    this.list.replaceChildren(answer.incidents.length ? table("Incidents, the newest first", ["when", "what", "done", "outcome", "cost"], answer.incidents.map(incidentRow)) : el("p", {}, "No incident is recorded."));
    this.attempts.replaceChildren(table("Attempts", ["attempt", "began", "ended", "steps", "resumed from step", "how it ended"], answer.attempts.map(a => [
      String(a.attempt), time(a.launched_at), a.ended_at ? time(a.ended_at) : "running", known(a.step_first) ? `${whole(a.step_first)} to ${whole(a.step_last)}` : null,
      known(a.resume_step) ? whole(a.resume_step) : null, ending(a)])));
  }

  async refreshTune() {
    const { tune } = await get(api(this.name, "/tune"));
    if (!this.alive) return;
    const dark = matchMedia("(prefers-color-scheme: dark)").matches, width = Math.floor(this.tune.clientWidth / 20) * 20;
    const shape = JSON.stringify([tune, dark, width]);
    if (this.tuneShape === shape) return;
    const drawn = tune?.adopted.length && typeof createImageBitmap === "function";
    const picture = drawn ? await getPicture(api(this.name, `/tune.png?width=${width}${dark ? "&dark" : ""}`)) : null;
    if (!this.alive) return;
    this.tuneShape = shape;
    if (tune) showTune(this.tune, tune, picture); else this.tune.replaceChildren();
  }

  async refreshAccount() {
    try {
      const answer = await get(api(this.name, "/account"));
      if (this.alive) showAccount(this.account, answer);
    } catch (error) {
      if (this.alive) this.account.replaceChildren(el("p", { class: "bad" }, `Not available: ${error.message}`));
      throw error;
    }
  }
}

// What a tune came to. A picture is asked for with the session's key, as all data are, so that it is drawn by hand and no
// <img>; Safari 14 cannot, and has the words and the table alone.
const gain = value => `${value < 0 ? "-" : "+"}${Math.abs(value * 100).toFixed(1)}\u00a0%`;
const setting = row => `${row.knob} = ${known(row.value) ? row.value : "-"}`;
const range = row => `${gain(row.gain)} (${gain(row.low)} to ${gain(row.high)})`;

function wordsOfTune(tune) {
  const { before, after } = tune.samples_per_s;
  if (tune.state !== "ended") return "Under way; so far:";
  if (!tune.adopted.length) return "Nothing was adopted: the owner's settings hold.";
  return before && after ? `${number(before)} ${tune.unit}/s before, ${number(after)} after (${number(after / before, 3)} times as many).` : "Adopted:";
}

function showTune(place, tune, picture) {
  const rows = [...tune.adopted.map(row => ["adopted", setting(row), range(row), row.remark || null]), ...tune.refused.map(row => ["refused", setting(row), null, row.why])];
  const words = wordsOfTune(tune), label = `Tune: ${words} ${tune.adopted.map(row => `${setting(row)}: ${range(row)}`).join("; ")}`;
  const canvas = picture && el("canvas", { width: picture.width, height: picture.height, role: "img", "aria-label": label });
  if (picture) canvas.getContext("2d").drawImage(picture, 0, 0);
  place.replaceChildren(el("h2", {}, "Tune"), el("p", {}, words), ...(tune.problem ? [el("p", { class: "bad" }, `It ended early: ${tune.problem}`)] : []),
    ...(picture ? [canvas] : []), table("What a tune adopted and refused", ["verdict", "setting", "gain", "why"], rows));
}

function ending(attempt) {
  if (known(attempt.exit_signal)) return `signal ${attempt.exit_signal}`;
  if (known(attempt.exit_code)) return attempt.exit_code === 0 ? "exit 0" : `exit code ${attempt.exit_code}`;
  return attempt.reason;
}

const incidentRow = incident => [
  el("a", { href: `#/incident/${encodeURIComponent(incident.id)}` }, time(incident.at)),
  `${incident.rule}${incident.fault ? ` (${incident.fault})` : ""}: ${incident.message}`, incident.decision,
  incident.outcome.replaceAll("_", " ") + (incident.reason ? `: ${incident.reason}` : ""),
  [known(incident.lost_steps) ? `${whole(incident.lost_steps)} steps to redo` : null, known(incident.downtime_s) ? `${duration(incident.downtime_s)} down` : null].filter(Boolean).join(", ") || null,
];

function sampleLines(samples, spec) {
  const parts = Object.entries(samples.gpus).map(([gpu, columns], index) => ({ label: gpu, at: columns.at, values: columns[spec.gpu], colour: `c${index % 8}` }));
  if (spec.own && samples.processes.at?.length) parts.push({ label: spec.own[1], at: samples.processes.at, values: samples.processes[spec.own[0]], colour: "c6", dash: [6, 4] });
  if (!parts.length) return [[], []];
  const joined = parts.length === 1 ? [parts[0].at, parts[0].values] : uPlot.join(parts.map(part => [part.at, part.values]));
  return [joined[0].map(at => samples.since + at), parts.map((part, index) => ({ ...part, values: joined[index + 1] }))];
}

const USES = ["train", "data_wait", "setup", "compile", "validate", "checkpoint", "lost", "down", "triage", "waiting", "unseen"];

function showAccount(place, answer) {
  const parts = USES.filter(use => answer.lifetime.seconds[use] > 0), total = parts.reduce((sum, use) => sum + answer.lifetime.seconds[use], 0);
  if (!total) { place.replaceChildren(el("p", {}, "No step is recorded yet.")); return; }
  const share = use => answer.lifetime.seconds[use] / total;
  const percent = value => `${(value * 100).toFixed(1)} %`;
  const bar = el("div", { class: "account", role: "img", "aria-label": parts.map(use => `${use.replace("_", " ")} ${percent(share(use))}`).join(", ") },
    parts.map(use => { const part = el("span", { class: `use${USES.indexOf(use)}` }); part.style.flexGrow = String(share(use)); return part; }));
  place.replaceChildren(
    el("p", {}, known(answer.lifetime.ettr) ? `${percent(answer.lifetime.ettr)} of the time went into steps that count` + (known(answer.last_hour.ettr) ? `, ${percent(answer.last_hour.ettr)} in the last hour.` : ".") : ""), bar,
    table("Time account", ["use", "time", "share"], parts.map(use => [el("span", {}, el("span", { class: `key use${USES.indexOf(use)}` }), use.replace("_", " ")), duration(answer.lifetime.seconds[use]), percent(share(use))])),
    ...(Object.keys(answer.lifetime.cost_s).length ? [table("Cost by cause", ["cause", "times", "cost"], Object.entries(answer.lifetime.cost_s).map(([cause, cost]) => [cause, String(answer.lifetime.faults[cause] || 0), duration(cost)]))] : []));
}

class Incident extends View {
  constructor(id) {
    super(`Incident ${id}`);
    this.every(SERIES_MS, async () => {
      const answer = await get(`/api/incidents/${encodeURIComponent(id)}`);
      if (this.alive) this.show(answer);
    });
  }

  show(answer) {
    const i = answer.incident, d = i.diagnosis || {}, listed = values => values?.length ? el("ul", {}, values.map(text => el("li", {}, text))) : null;
    this.body.replaceChildren(el("p", {}, el("a", { href: `#/training/${encodeURIComponent(i.job)}?from=${Math.floor(i.at - 600)}&to=${Math.ceil((i.resumed_at || i.at) + 600)}` }, `Charts of ${i.job} around it`)),
      facts([["what", i.message], ["rule", `${i.rule}${i.fault ? ` (${i.fault})` : ""}`], ["when", time(i.at)], ["attempt", i.attempt], ["last step", known(i.last_step) ? whole(i.last_step) : null], ["decision", i.decision],
        ["outcome", i.outcome.replaceAll("_", " ")], ["reason", i.reason], ["resumed from", i.resumed_from ? `${i.resumed_from.path}${known(i.resumed_from.step) ? `, step ${whole(i.resumed_from.step)}` : ""}` : null],
        ["resumed", known(i.resumed_at) ? time(i.resumed_at) : null], ["steps to redo", known(i.lost_steps) ? whole(i.lost_steps) : null], ["time down", known(i.downtime_s) ? duration(i.downtime_s) : null],
        ["cause", i.cause], ["remedy", i.remedy ? `${i.remedy}${i.remedy_why ? `: ${i.remedy_why}` : ""}` : null], ["triage", i.finding ? `${i.finding.verdict}: ${i.finding.words}` : null],
        ["look at", listed(i.finding?.files)], ["likely causes", listed(d.causes)], ["ruled out", listed(d.ruled_out)], ["advice", listed(d.advice)], ["evidence", i.evidence]]),
      el("h2", {}, "Timeline"), table("Timeline", ["when", "what", "detail"], answer.story.map(line => [time(line.at), line.what, line.detail])),
      ...(answer.evidence_files?.length ? [el("h2", {}, "Evidence"), table("Files of the evidence", ["file", "size"], answer.evidence_files.map(file => [file.name, bytes(file.size_bytes)]))] : []));
  }
}

class Compare extends View {
  constructor(params) {
    super("Compare");
    this.chosen = params.getAll("of");
    this.by = params.get("by") || "step"; this.what = params.get("what") || "loss";
    this.form = el("div"); this.place = el("div", { class: "charts" });
    this.body.append(this.form, this.place);
    this.every(SERIES_MS, () => this.refresh());
  }

  update(params) { this.chosen = params.getAll("of"); this.by = params.get("by") || "step"; this.what = params.get("what") || "loss"; this.refresh().catch(explain); }

  go() { location.hash = `#/compare?${new URLSearchParams([...this.chosen.map(of => ["of", of]), ["by", this.by], ["what", this.what]])}`; }

  async refresh() {
    if (!this.trainings) {
      const overview = await get("/api/overview");
      this.trainings = await Promise.all(overview.trainings.map(async each => [each.name, (await get(api(each.name))).attempts]));
      if (this.alive) this.offer();
    }
    if (!this.chosen.length) return;
    const answer = await get(`/api/compare?points=400&${new URLSearchParams(this.chosen.map(of => ["of", of]))}`);
    if (!this.alive) return;
    const parts = answer.compared.map((each, index) => {
      const [x, y] = sorted(axisOf(each.steps, this.by), each.steps[this.what]);
      return { x, values: y, label: each.training + (each.attempt === null ? "" : ` attempt ${each.attempt}`), colour: `c${index % 8}` };
    }).filter(part => part.x.length);
    this.chartOf().draw(...joinLines(parts));
  }

  chartOf() {
    const axis = { step: "step", epoch: "epoch", time: "hours" }[this.by], title = `${WHAT[this.what]} by ${axis}`;
    if (this.shown === title) return this.charts[0];
    this.charts.splice(0).forEach(chart => chart.destroy());
    this.place.replaceChildren(); this.shown = title;
    return this.chart(this.place, title, { wide: true, height: 340, time: false, axis, sync: "compare", always: true, heading: "h2" });
  }

  offer() {
    const choose = (of, checked) => { this.chosen = checked ? [...this.chosen, of].slice(-6) : this.chosen.filter(each => each !== of); this.go(); this.offer(); };
    const box = (of, label) => el("label", { class: "choice" }, el("input", { type: "checkbox", checked: this.chosen.includes(of), onchange: event => choose(of, event.target.checked) }), label);
    const radios = Object.entries({ step: "by step", epoch: "by epoch", time: "by time" }).map(([by, label]) => el("label", { class: "choice" }, el("input", { type: "radio", name: "by", checked: this.by === by, onchange: () => { this.by = by; this.go(); } }), label));
    const what = el("select", { id: "what", onchange: event => { this.what = event.target.value; this.go(); } }, Object.entries(WHAT).map(([value, label]) => el("option", { value, selected: value === this.what }, label)));
    this.form.replaceChildren(el("p", {}, `Up to six attempts, or complete trainings; ${this.chosen.length} chosen.`),
      ...this.trainings.map(([name, attempts]) => el("fieldset", {}, el("legend", {}, name), box(name, "all attempts"), ...attempts.filter(a => known(a.step_first)).slice(-30).map(a => box(`${name}:${a.attempt}`, `attempt ${a.attempt}`)))),
      el("div", { class: "row" }, el("label", { for: "what" }, "Show"), what, ...radios));
  }
}

const WHAT = { loss: "Loss", steps_per_s: "Pace", lr: "Learning rate", grad_norm: "Gradient norm", data_wait_s: "Data wait", gpu_memory_bytes: "GPU memory" };

function axisOf(steps, by) {
  if (by === "time") return steps.at.map(at => at / 3600);
  if (by === "step") return steps.step;
  const first = new Map();
  steps.step.forEach((step, index) => { const epoch = steps.epoch[index]; if (known(epoch) && known(step) && !(first.get(epoch) <= step)) first.set(epoch, step); });
  const sizes = [...first].map(([epoch, step]) => first.has(epoch + 1) ? first.get(epoch + 1) - step : 0).filter(size => size > 0).sort((a, b) => a - b);
  const size = sizes[sizes.length >> 1];
  return steps.step.map((step, index) => known(steps.epoch[index]) && known(step) ? steps.epoch[index] + (size ? Math.min(0.999, (step - first.get(steps.epoch[index])) / size) : 0) : null);
}

function sorted(x, y) {
  const order = x.map((_, index) => index).filter(index => known(x[index])).sort((a, b) => x[a] - x[b]).filter((place, index, all) => !index || x[place] > x[all[index - 1]]);
  return [order.map(index => x[index]), order.map(index => y[index])];
}

function joinLines(parts) {
  if (!parts.length) return [[], []];
  const joined = parts.length === 1 ? [parts[0].x, parts[0].values] : uPlot.join(parts.map(part => [part.x, part.values]));
  return [joined[0], parts.map((part, index) => ({ ...part, values: joined[index + 1] }))];
}

const GPU_CHARTS = [
  { title: "Use", unit: " %", gpu: "busy_percent" }, { title: "Memory", format: bytes, gpu: "memory_bytes" },
  { title: "Temperature", unit: " C", gpu: "temperature_c" }, { title: "Power", unit: " W", gpu: "power_w" },
];

class Gpus extends View {
  constructor(params) {
    super("GPUs");
    this.last = Number(params.get("last")) || 3600;
    this.spans = el("div", { class: "row", role: "group", "aria-label": "Time shown" });
    this.now = el("div"); this.grid = el("div", { class: "charts" });
    this.body.append(this.now, this.spans, this.grid);
    this.drawn = GPU_CHARTS.map(spec => [spec, this.chart(this.grid, spec.title, { ...spec, heading: "h2", onZoom: window => { this.window = window; this.refresh().catch(explain); } })]);
    this.update(params);
    this.every(SERIES_MS, () => this.refresh());
  }

  update(params) {
    this.last = Number(params.get("last")) || 3600; this.window = null;
    const spans = [...SPANS.slice(0, 4), ["14 d", 1209600]];
    this.spans.replaceChildren(...spans.map(([label, seconds]) => el("button", { type: "button", "aria-pressed": String(this.last === seconds), onclick: () => { location.hash = `#/gpus?last=${seconds}`; } }, label)));
    if (this.read) this.refresh().catch(explain);
  }

  async refresh() {
    const [from, to] = this.window || [this.read ? Date.now() / 1000 - this.last : null, null];
    const range = from === null ? (this.last === 3600 ? "" : `&from=${Date.now() / 1000 - this.last}`) : `&from=${from}` + (to ? `&to=${to}` : "");
    const answer = await get(`/api/gpus?points=${Math.min(600, Math.max(120, Math.round(this.grid.clientWidth * 0.3)))}${range}`);
    if (!this.alive) return;
    this.read = true; this.problem = answer.problem;
    const c = value => known(value) ? `${number(value, 3)} C` : null;
    this.now.replaceChildren(answer.live.length ? table("GPUs now", ["gpu", "name", "use", "memory", "edge", "junction", "memory", "power", "fan", "state"], answer.live.map(g => [
      g.gpu, g.name, known(g.gpu_busy_percent) ? `${number(g.gpu_busy_percent, 3)} %` : null, known(g.memory_used_bytes) ? `${bytes(g.memory_used_bytes)} of ${bytes(g.memory_total_bytes)}` : null,
      c(g.edge_c), c(g.junction_c), c(g.memory_c), known(g.power_w) ? `${number(g.power_w, 3)} of ${number(g.power_cap_w, 3)} W` : null, known(g.fan_rpm) ? `${whole(g.fan_rpm)} rpm` : null, g.runtime_status])) : el("p", {}, "No GPU is read now."));
    for (const [spec, chart] of this.drawn) chart.draw(...sampleLines({ ...answer, processes: {} }, spec), [answer.since, answer.until]);
  }
}

class Log extends View {
  constructor(name) {
    super(`Log of ${name}`);
    this.name = name; this.lines = []; this.rest = ""; this.attempt = null; this.after = null;
    this.search = el("input", { id: "search", type: "search", oninput: () => this.write() });
    this.follow = el("input", { type: "checkbox", checked: true });
    this.text = el("pre", { tabindex: 0, role: "log", "aria-live": "off", "aria-label": `Output of ${name}`, onscroll: () => { this.follow.checked = this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 20; } });
    this.body.append(el("p", {}, el("a", { href: `#/training/${encodeURIComponent(name)}` }, `Charts of ${name}`)),
      el("div", { class: "row" }, el("label", { for: "search" }, "Show lines with"), this.search, el("label", { class: "choice" }, this.follow, "follow")), this.text);
    this.every(POLL_MS, () => this.refresh());
  }

  async refresh() {
    const given = known(this.after) ? `?after=${this.after}&attempt=${this.attempt}` : "";
    const answer = await get(api(this.name, "/log") + given);
    if (!this.alive || (answer.attempt === this.attempt && answer.next_offset === this.after)) return;
    if (answer.attempt !== this.attempt) { this.lines = []; this.rest = ""; }
    this.attempt = answer.attempt; this.after = answer.next_offset;
    const parts = (this.rest + answer.text).split("\n");
    this.rest = parts.pop();
    this.lines = [...this.lines, ...parts].slice(-2000);
    this.write();
  }

  write() {
    const wanted = this.search.value.toLowerCase(), lines = [...this.lines, ...(this.rest ? [this.rest] : [])];
    const follows = this.follow.checked;
    this.text.textContent = lines.filter(line => line.toLowerCase().includes(wanted)).join("\n") || "No output.";
    if (follows) this.text.scrollTop = this.text.scrollHeight;
  }
}

class Alerts extends View {
  constructor() {
    super("Alerts");
    this.every(SERIES_MS, async () => {
      const answer = await get("/api/alerts");
      if (!this.alive) return;
      const state = r => r.muted_until ? `muted until ${time(r.muted_until)}` : r.quiet ? "quiet hours" : r.state;
      this.body.replaceChildren(
        el("h2", {}, "Receivers"), ...answer.receivers.filter(r => r.problem || r.warning).map(r => el("p", {}, `${r.name}: `, el("span", { class: "bad" }, r.problem || r.warning))),
        answer.receivers.length ? table("Receivers", ["receiver", "channel", "state", "waiting", "delivered", "given up", "last delivered"],
          answer.receivers.map(r => [r.name, r.kind, state(r), String(r.waiting), String(r.delivered), String(r.given_up), time(r.last_delivered_at)])) : el("p", {}, "No receiver is configured: see [alerts] in the configuration."),
        el("h2", {}, "Newest alerts"), answer.alerts.length ? table("Newest alerts", ["queued", "state", "receiver", "training", "type", "tries"],
          answer.alerts.map(a => [time(a.queued_at), a.error ? [a.state, el("br"), el("span", { class: "bad" }, a.error)] : a.state, a.receiver, a.job, a.type, String(a.tries)])) : el("p", {}, "No alert was queued."));
    });
  }
}

/* --- routing ------------------------------------------------------------------------------------------------- */

const VIEWS = { "": Overview, compare: Compare, gpus: Gpus, alerts: Alerts };
const NAMED = { training: Training, incident: Incident, log: Log };
let shownPath = null;

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const params = new URLSearchParams(query || ""), [kind, ...rest] = path.split("/");
  if (shownPath === path && view?.alive && view.update) { view.update(params); return; }
  shownPath = path;
  view?.end();
  const name = rest.length ? decodeURIComponent(rest.join("/")) : null;
  tell("");
  const moved = view !== null;
  view = name && NAMED[kind] ? new NAMED[kind](name, params) : new (VIEWS[kind] || Overview)(params);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${kind}`) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  if (moved) { main.focus(); scrollTo(0, 0); }
}

async function begin() {
  const given = location.hash.slice(1);
  if (given && !given.startsWith("/")) {
    history.replaceState(null, "", "#/");
    try { await openSession(given); } catch (error) { if (!localStorage.getItem(KEY)) { view = new SignIn(error.message); listen(); return; } }
  }
  listen();
  route();
}

function listen() {
  addEventListener("hashchange", () => {
    const given = location.hash.slice(1);
    if (given && !given.startsWith("/")) begin(); else route();
  });
  listen = () => {};
}

document.getElementById("skip").addEventListener("click", () => main.focus());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of view?.charts || []) { chart.shape = null; if (chart.x) chart.draw(chart.x, chart.lines, chart.window); }
  if (view?.tune) view.refreshTune().catch(explain);
});
begin();
