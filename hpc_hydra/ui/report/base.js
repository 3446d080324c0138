"use strict";
// The data of the report, and how values become text and colours. The other scripts follow in the same scope.
const $ = id => document.getElementById(id),
  read = id => JSON.parse($(id).textContent);
const el = (tag, text, cls) => {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (cls) e.className = cls;
  return e;
};
const esc = v => String(v).replace(/&/g, "&amp;").replace(/</g, "&lt;"); // plotly renders some HTML in its labels
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const BAD = ["failed", "timeout", "lost", "unreadable"],
  PAGE = 200,
  MANY = 150,
  MOST_LOGS = 36,
  CURVES = 12;
const colour = what =>
  css(
    {
      completed: "--completed",
      running: "--running",
      requeued: "--requeued",
      pending: "--queued",
      queued: "--queued",
      unsubmitted: "--queued",
    }[what] || (BAD.includes(what) ? "--failed" : "--other"),
  );
const PALETTE = [
  "#4269d0",
  "#efb118",
  "#ff725c",
  "#3ca951",
  "#a463f2",
  "#6cc5b0",
  "#ff8ab7",
  "#9c6b4e",
  "#97bbf5",
  "#9498a0",
];
const RAMP = [
  [68, 1, 84],
  [65, 68, 135],
  [42, 120, 142],
  [34, 168, 132],
  [122, 209, 81],
  [210, 190, 30],
];
const ramp = at => {
  const isDark = document.documentElement.dataset.theme === "dark",
    t = Math.max(0, Math.min(0.9999, isDark ? 0.2 + 0.8 * at : 0.94 * at)) * 5,
    i = Math.floor(t);
  return "rgb(" + RAMP[i].map((c, k) => Math.round(c + (RAMP[i + 1][k] - c) * (t - i))).join(",") + ")";
};
const when = t => (t ? new Date(t * 1000).toLocaleString() : "");
const pad = n => String(Math.floor(n)).padStart(2, "0");
const span = s =>
  s == null
    ? ""
    : s < 60
      ? s.toFixed(1) + " s"
      : s < 3600
        ? Math.floor(s / 60) + ":" + pad(s % 60)
        : Math.floor(s / 3600) + ":" + pad((s % 3600) / 60) + ":" + pad(s % 60);
const num = v =>
  v === "" || v === null || v === undefined || typeof v === "boolean" || !isFinite(v) ? null : Number(v);
const digits = (v, n) => {
  const x = Number(v.toPrecision(n));
  return x && Math.abs(x) < 1e-4 ? x.toExponential() : String(x);
};
const short = v => (typeof v === "number" ? digits(v, 5) : String(v));
const hours = h =>
  h < 0.95 ? String(Number(h.toPrecision(2))) : h < 100 ? h.toFixed(1) : Math.round(h).toLocaleString();
/** Least and greatest of a list that may be too long for Math.min(...). */
const extent = list => list.reduce(([lo, hi], v) => [v < lo ? v : lo, v > hi ? v : hi], [Infinity, -Infinity]);
const diverged = v => typeof v === "string" && /^-?(nan|inf)$/.test(v);
const natural = (a, b) => String(a).localeCompare(String(b), undefined, {numeric: true});

let D = read("data"),
  more = {},
  chosen = D.runs.length === 1 ? D.runs[0].num : null,
  ready = false,
  order = ["run", 1],
  shown = PAGE;
const opened = {}; // of the folds, by key: whether the user opened or closed them
let memo = {}; // what is derived from the data, until it changes
const once = (key, f) => (key in memo ? memo[key] : (memo[key] = f()));
const run = n => once("runs", () => new Map(D.runs.map(r => [r.num, r]))).get(n);
const detailOf = r => more[r.num] || {tail: null, measured: [], curves: {}};
const values = name => D.runs.map(r => r.cells[name]);
const varying = () => once("varying", () => D.keys.filter(k => new Set(values(k).map(String)).size > 1));
const results = () => once("results", () => D.values.filter(n => values(n).some(v => v !== undefined)));
const label = r =>
  once(
    "label" + r.num,
    () =>
      varying()
        .filter(k => r.cells[k] !== undefined)
        .map(k => k.split(".").pop() + "=" + short(r.cells[k]))
        .join(" ") || "run " + r.num,
  );
const about = r =>
  once(
    "about" + r.num,
    () => esc("run " + r.num + ", " + r.state) + "<br>" + r.overrides.slice(0, 12).map(esc).join("<br>"),
  );
const gpu = r =>
  once("gpu" + r.num, () => {
    const all = detailOf(r)
      .measured.flatMap(m => Object.values(m.gpus))
      .flatMap(g => g.util_percent || [])
      .filter(v => v !== null);
    return all.length ? Math.round(all.reduce((a, b) => a + b) / all.length) : null;
  });
