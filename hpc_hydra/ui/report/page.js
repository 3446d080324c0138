"use strict";
const $ = id => document.getElementById(id), read = id => JSON.parse($(id).textContent);
const el = (tag, text, cls) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; if (cls) e.className = cls; return e; };
const esc = v => String(v).replace(/&/g, "&amp;").replace(/</g, "&lt;"); // plotly renders some HTML in its labels
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const BAD = ["failed", "timeout", "lost", "unreadable"], PAGE = 200, MANY = 150, MOST_LOGS = 36, CURVES = 12;
const colour = what => css({completed: "--completed", running: "--running", pending: "--queued", queued: "--queued", unsubmitted: "--queued"}[what] || (BAD.includes(what) ? "--failed" : "--other"));
const PALETTE = ["#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#6cc5b0", "#ff8ab7", "#9c6b4e", "#97bbf5", "#9498a0"];
const RAMP = [[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 209, 81], [210, 190, 30]];
const ramp = at => { const isDark = document.documentElement.dataset.theme === "dark", t = Math.max(0, Math.min(.9999, isDark ? .2 + .8 * at : .94 * at)) * 5, i = Math.floor(t); return "rgb(" + RAMP[i].map((c, k) => Math.round(c + (RAMP[i + 1][k] - c) * (t - i))).join(",") + ")"; };
const when = t => t ? new Date(t * 1000).toLocaleString() : "";
const pad = n => String(Math.floor(n)).padStart(2, "0");
const span = s => s == null ? "" : s < 60 ? s.toFixed(1) + " s" : s < 3600 ? Math.floor(s / 60) + ":" + pad(s % 60) : Math.floor(s / 3600) + ":" + pad(s % 3600 / 60) + ":" + pad(s % 60);
const num = v => v === "" || v === null || v === undefined || typeof v === "boolean" || !isFinite(v) ? null : Number(v);
const digits = (v, n) => { const x = Number(v.toPrecision(n)); return x && Math.abs(x) < 1e-4 ? x.toExponential() : String(x); };
const short = v => typeof v === "number" ? digits(v, 5) : String(v);
const hours = h => h < .95 ? String(Number(h.toPrecision(2))) : h < 100 ? h.toFixed(1) : Math.round(h).toLocaleString();
const extent = list => list.reduce(([lo, hi], v) => [v < lo ? v : lo, v > hi ? v : hi], [Infinity, -Infinity]); // lists may be too long for Math.min(...)
const diverged = v => typeof v === "string" && /^-?(nan|inf)$/.test(v);
const natural = (a, b) => String(a).localeCompare(String(b), undefined, {numeric: true});

let D = read("data"), more = {}, chosen = D.runs.length === 1 ? D.runs[0].num : null, ready = false, order = ["run", 1], shown = PAGE;
const opened = {}; // of the folds, by key: whether the user opened or closed them
let memo = {}; // what is derived from the data, until it changes
const once = (key, f) => key in memo ? memo[key] : memo[key] = f();
const run = n => once("runs", () => new Map(D.runs.map(r => [r.num, r]))).get(n);
const detailOf = r => more[r.num] || {tail: null, measured: [], curves: {}};
const values = name => D.runs.map(r => r.cells[name]);
const varying = () => once("varying", () => D.keys.filter(k => new Set(values(k).map(String)).size > 1));
const results = () => once("results", () => D.values.filter(n => values(n).some(v => v !== undefined)));
const label = r => once("label" + r.num, () => varying().filter(k => r.cells[k] !== undefined).map(k => k.split(".").pop() + "=" + short(r.cells[k])).join(" ") || "run " + r.num);
const about = r => once("about" + r.num, () => esc("run " + r.num + ", " + r.state) + "<br>" + r.overrides.slice(0, 12).map(esc).join("<br>"));
const gpu = r => once("gpu" + r.num, () => { const all = detailOf(r).measured.flatMap(m => Object.values(m.gpus)).flatMap(g => g.util_percent || []).filter(v => v !== null); return all.length ? Math.round(all.reduce((a, b) => a + b) / all.length) : null; });

// --- top ---
function overview() {
  const parts = D.sweep.split("/");
  $("name").textContent = parts.slice(-2).join("/"); $("path").textContent = D.sweep; document.title = parts.slice(-2).join("/") + " · hpc_hydra";
  $("made").textContent = (D.live ? (D.active ? "live, " : "ended, ") : "") + "as of " + when(D.made);
  const tiles = [], tile = (what, big, small, cls) => { const t = el(cls === "run" ? "button" : "div", undefined, "tile" + (cls ? " wide" : "")); t.append(el("span", what, "what"), el("b", big)); if (small) t.append(el("div", small, "more soft")); tiles.push(t); return t; };
  const best = D.best && run(D.best.run);
  if (best) tile("best: " + D.best.direction + " " + D.best.name, short(D.best.value), "run " + best.num + (varying().length ? ": " + label(best) : ""), "run").onclick = () => choose(best.num, true);
  else if (D.best) tile("best: " + D.best.direction + " " + D.best.name, "–", "no run has returned it yet");
  else if (D.runs.length === 1) results().filter(n => num(D.runs[0].cells[n]) !== null).slice(0, 4).forEach(n => tile(n, short(num(D.runs[0].cells[n]))));
  const tally = {}; D.runs.forEach(r => tally[r.state] = (tally[r.state] || 0) + 1);
  const states = tile("runs", String(D.runs.length), "", "counts"), bar = el("div", undefined, "bar"), words = el("div", undefined, "more");
  Object.entries(tally).forEach(([s, n]) => { const part = el("span"); part.style.cssText = "flex:" + n + " 1 0;background:" + colour(s); bar.append(part); words.append(el("span", n + " " + s, "s-" + s), "  "); });
  states.append(bar, words);
  tile("node-hours used", hours(D.hours.used), D.hours.asked === null ? "" : "of at most " + hours(D.hours.asked) + " asked for");
  const all = D.runs.flatMap(r => r.attempts), [from, to] = extent(all.flatMap(a => [a.from, a.to ?? D.made]));
  if (all.length) tile("from submission to " + (D.active ? "now" : "end"), span(to - from), when(from));
  $("tiles").replaceChildren(...tiles);
}

// --- table ---
function columns() {
  const has = f => D.runs.some(r => f(r));
  return [["run", r => r.num], ["state", r => r.state], ...[...D.keys, ...results()].map(n => [n, r => r.cells[n]]), ...(new Set(D.runs.map(r => r.world_size)).size > 1 ? [["ranks", r => r.world_size]] : []),
    ["time", r => r.seconds], ...(has(r => r.tries > 1) ? [["tries", r => r.tries]] : []), ...(has(r => gpu(r) !== null) ? [["GPU %", gpu]] : []), ["job", r => r.job], ...(has(r => r.reason) ? [["reason", r => r.reason]] : [])];
}
function cell(value, name) {
  if (value === null || value === undefined) return "";
  return name === "time" ? span(value) : typeof value === "number" && !Number.isInteger(value) ? digits(value, 6) : String(value);
}
function table() {
  const cols = columns(), head = el("tr"), get = (cols.find(([n]) => n === order[0]) || cols[0])[1];
  const right = cols.map(([, f]) => D.runs.every(r => { const v = f(r); return v === null || v === undefined || num(v) !== null; }));
  cols.forEach(([name], i) => { const th = el("th", name, right[i] ? "n" : ""); th.scope = "col"; th.tabIndex = 0;
    if (order[0] === name) th.setAttribute("aria-sort", order[1] > 0 ? "ascending" : "descending");
    th.onclick = () => { order = [name, order[0] === name ? -order[1] : 1]; shown = PAGE; table(); }; th.onkeydown = e => { if (e.key === "Enter") th.click(); }; head.append(th); });
  $("runs").tHead.replaceChildren(head);
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = D.runs.filter(r => { if (!words.length) return true; const t = (cols.map(([n, f]) => n + "=" + f(r)).join(" ") + " " + r.overrides.join(" ")).toLowerCase(); return words.every(w => t.includes(w)); });
  rows.sort((a, b) => { const x = get(a), y = get(b), p = num(x), q = num(y), none = v => v === null || v === undefined || v === "";
    if (none(x) !== none(y)) return none(x) ? 1 : -1;
    return order[1] * (p !== null && q !== null ? p - q : natural(x, y)) || a.num - b.num; });
  const line = r => { const tr = el("tr"); tr.dataset.run = r.num; if (r.num === chosen) tr.className = "on"; tr.tabIndex = 0;
    cols.forEach(([name, f], i) => { const td = el("td", cell(f(r), name), right[i] ? "n" : name === "state" ? "s-" + r.state : ""); td.title = td.textContent; tr.append(td); });
    tr.onclick = () => choose(r.num === chosen ? null : r.num, true); tr.onkeydown = e => { if (e.key === "Enter") tr.click(); }; return tr; };
  const body = $("runs").tBodies[0], fill = () => body.append(...rows.slice(body.rows.length, shown).map(line));
  body.replaceChildren(); fill();
  $("scroll").onscroll = () => { const s = $("scroll"); if (shown < rows.length && s.scrollTop + s.clientHeight > s.scrollHeight - 400) { shown += PAGE; fill(); } };
  $("number").textContent = rows.length + " of " + D.runs.length + (D.runs.length > 1 ? "; choose one for its log, plots, plan and script" : "");
}
function choose(n, move) { chosen = n; document.querySelectorAll("#runs tbody tr").forEach(tr => tr.classList.toggle("on", Number(tr.dataset.run) === n)); detail(move); if (D.runs.length > 1) setTimeout(learning); }

// --- plots ---
const narrow = matchMedia("(max-width: 600px)"), touch = matchMedia("(hover: none)"); // without hover plotly would always show its buttons
function draw(box, traces, extra) {
  const side = axis => ({gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true, exponentformat: "e", minexponent: 5, ...(axis && axis.type === "date" ? {tickangle: 0, nticks: narrow.matches ? 4 : 8} : {}), ...axis});
  const {title, xaxis, yaxis, ...rest} = extra;
  const layout = {paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: css("--fg"), size: 12, family: "system-ui, sans-serif"}, margin: {l: 52, r: 16, t: title ? 36 : 16, b: 44}, height: 280, uirevision: "1",
    ...(title ? {title: {text: esc(title), font: {size: 13}, x: 0, xanchor: "left", xref: "paper"}} : {}), hoverlabel: {align: "left"}, showlegend: false, legend: {orientation: "h", yref: "container", y: 0, yanchor: "bottom"},
    modebar: {bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--fg"), remove: ["lasso2d", "select2d", "autoScale2d"]}, hovermode: "closest", ...rest, xaxis: side(xaxis), yaxis: side(yaxis)};
  box.style.height = layout.height + 2 + "px"; // with its border
  Plotly.react(box, traces, layout, {displaylogo: false, showSendToCloud: false, displayModeBar: narrow.matches || touch.matches ? false : "hover"});
  if (!box.clickable) { box.clickable = true; box.on("plotly_click", e => { const n = e.points[0].customdata; if (typeof n === "number" && run(n)) choose(n, true); }); }
}
function boxes(parent, count) { // all, before the first is drawn: a plot takes the width that its box has then
  while (parent.children.length > count) { Plotly.purge(parent.lastChild); parent.lastChild.remove(); }
  while (parent.children.length < count) parent.append(el("div", undefined, "plot"));
  parent.classList.toggle("few", count < 4);
  return [...parent.children];
}
/** Whether positive values are spaced evenly on a logarithmic axis rather than on a linear one. */
function spaced(list) {
  const v = [...new Set(list)].sort((a, b) => a - b), n = v.length, lo = v[0], hi = v[n - 1];
  if (n < 2 || lo <= 0) return false;
  if (n === 2) return hi / lo >= 10;
  const spread = f => { const gaps = v.slice(1).map((x, i) => f(x) - f(v[i])); return Math.max(...gaps) / Math.min(...gaps); };
  if (hi / lo >= 4 && spread(Math.log) <= 1.6 && spread(x => x) >= 1.9) return true;
  return hi / lo >= 100 && (v.reduce((a, b) => a + b) / n - lo) / (hi - lo) < .3;
}
/** Ticks of a logarithmic axis: powers of ten, if there are two or more. */
const decades = (lo, hi) => { const n = Math.log10(hi / lo); return n >= 2 ? {dtick: Math.ceil(n / 8)} : {}; };
/** An axis for these values: `at` places a value, `axis` describes it to plotly. Words stand side by side; few numbers are labelled unless `free`. */
function scale(list, title, free) {
  const known = list.filter(v => v !== null && v !== undefined && !diverged(v)), text = {title: {text: esc(title), standoff: 6}};
  if (known.length && known.every(v => num(v) !== null)) {
    const ns = known.map(num), log = spaced(ns), ticks = [...new Set(ns)].sort((a, b) => a - b);
    if (!free && ticks[0] === 0 && ticks.length <= 8 && spaced(ticks.slice(1))) return {low: 0, high: ticks[ticks.length - 1], at: v => num(v) === null ? null : ticks.indexOf(num(v)), part: v => ticks.indexOf(num(v)) / (ticks.length - 1),
      axis: {...text, tickvals: ticks.map((_, i) => i), ticktext: ticks.map(short)}}; // 0, 0.01, 0.1: a logarithmic axis has no zero
    const few = ticks.length <= 6 && !free ? {tickvals: ticks, ticktext: ticks.map(short)} : log ? decades(ticks[0], ticks[ticks.length - 1]) : {};
    return {log, low: ticks[0], high: ticks[ticks.length - 1], at: num, part: v => { const f = x => log ? Math.log10(x) : x, lo = f(ticks[0]), hi = f(ticks[ticks.length - 1]); return hi === lo ? .5 : (f(num(v)) - lo) / (hi - lo); },
      axis: {...text, ...(log ? {type: "log"} : {}), ...few}};
  }
  const words = [...new Set(known.map(String))].sort(natural);
  return {words, low: words[0], high: words[words.length - 1], at: v => v === null || v === undefined ? null : words.indexOf(String(v)), part: v => words.length < 2 ? .5 : words.indexOf(String(v)) / (words.length - 1),
    axis: {...text, tickvals: words.map((_, i) => i), ticktext: words.map(w => esc(w.length > 18 ? w.slice(0, 17) + "…" : w)), range: [-.6, words.length - .4]}};
}
const pick = name => r => name === "state" ? r.state : name === "seconds" ? r.seconds : name === "ranks" ? r.world_size : r.cells[name];
const option = name => { const o = el("option", name.slice(1)); o.value = name; return o; }; // "=seconds" is ours, ".seconds" a user's
function choices() {
  const keep = id => $(id).value, fill = (id, list, first) => { const old = keep(id); $(id).replaceChildren(...list.map(option)); $(id).value = list.includes(old) ? old : first; $(id).onchange = () => { compare(); if (id === "y") learning(); }; };
  const y = results().filter(n => num(values(n).find(v => num(v) !== null)) !== null), wanted = D.best && y.includes(D.best.name) ? D.best.name : y[0];
  fill("y", [...results().map(n => "." + n), "=seconds"], wanted === undefined ? "=seconds" : "." + wanted);
  fill("c", ["=state", ...[...varying(), ...results()].map(n => "." + n), "=seconds", "=ranks"], "=state");
}
const chosenOf = id => { const v = $(id).value; return v[0] === "=" ? pick(v.slice(1)) : r => r.cells[v.slice(1)]; };
const nameOf = id => $(id).value.slice(1);
/** How runs are coloured by a value: state, word, or place on a ramp. */
function shades(get, name, some) {
  if (name === "=state") return {of: r => colour(r.state), legend: [...new Set(some.map(r => r.state))].map(s => [s, colour(s)])};
  const s = scale(D.runs.map(get), name);
  if (s.words && s.words.length <= PALETTE.length) return {of: r => { const v = get(r); return v === null || v === undefined ? css("--soft") : PALETTE[s.at(v)]; }, legend: s.words.map((w, i) => [w, PALETTE[i]])};
  return {of: r => { const v = get(r); return v === null || v === undefined ? css("--soft") : ramp(s.part(v)); }, ends: [s.low, s.high]};
}
function legend(into, shade, name, line, click) {
  into.replaceChildren();
  if (shade.ends) { const bar = el("span", undefined, "ramp"); bar.style.background = "linear-gradient(90deg," + [0, .2, .4, .6, .8, 1].map(ramp).join(",") + ")"; into.append(el("span", name), el("span", short(shade.ends[0] ?? "")), bar, el("span", short(shade.ends[1] ?? ""))); return; }
  shade.legend.forEach(([text, c, n]) => { const e = el(n === undefined ? "span" : "button"), dot = el("span", undefined, "dot" + (line ? " line" : "")); dot.style.background = c; e.append(dot, text); if (n !== undefined) e.onclick = () => click(n); into.append(e); });
}
function compare() {
  $("compare").hidden = D.runs.length < 2; if (!ready || D.runs.length < 2) return;
  const keys = varying().slice(0, 9), y = chosenOf("y");
  const good = D.runs.filter(r => y(r) !== null && y(r) !== undefined && (num(y(r)) !== null || typeof y(r) === "string" && isNaN(y(r)) && !diverged(y(r)))), well = new Set(good), bad = D.runs.filter(r => !well.has(r) && (BAD.includes(r.state) || diverged(y(r)))), c = shades(chosenOf("c"), $("c").value, good);
  const ys = scale(good.map(y), nameOf("y"), true), n = ys.words ? [0, ys.words.length - 1] : [num(ys.low) ?? 0, num(ys.high) ?? 1];
  const low = ys.log ? n[0] / (n[1] / n[0]) ** .12 : n[0] - ((n[1] - n[0]) || Math.abs(n[0]) || 1) * .12;
  const star = good.filter(r => D.best && r.num === D.best.run), plots = keys.length ? keys : ["run"];
  legend($("legend"), c, nameOf("c")); if (bad.length) { const e = el("span", "✕ " + bad.length + " failed or diverged", "s-failed"); $("legend").append(e); } if (star.length) $("legend").append(el("span", "★ best"));
  boxes($("swept"), plots.length).forEach((box, i) => {
    const key = plots[i], x = r => keys.length ? r.cells[key] : r.num, xs = scale(D.runs.map(x), key), spread = xs.words && good.length > 2 * xs.words.length ? .25 : 0;
    const at = r => { const v = xs.at(x(r)); return v === null ? null : v + (spread ? (r.num * 7919 % 100 / 100 - .5) * 2 * spread : 0); };
    const mark = r => BAD.includes(r.state) ? "x" : r.state === "completed" ? "circle" : "circle-open";
    draw(box, [{type: "scatter", mode: "markers", x: good.map(at), y: good.map(r => ys.at(y(r))), customdata: good.map(r => r.num), text: good.map(r => about(r) + "<br><b>" + esc(nameOf("y") + " = " + short(y(r))) + "</b>"), hovertemplate: "%{text}<extra></extra>",
        marker: {size: good.length > 300 ? 6 : 9, symbol: good.map(mark), opacity: good.length > 300 ? .6 : .85, color: good.map(c.of)}},
      {type: "scatter", mode: "markers", x: bad.map(at), y: bad.map(() => low), customdata: bad.map(r => r.num), text: bad.map(r => about(r) + "<br>" + esc(r.reason.slice(0, 120))), hovertemplate: "%{text}<extra></extra>", marker: {size: 8, symbol: "x", color: colour("failed"), opacity: .7}},
      {type: "scatter", mode: "markers", x: star.map(at), y: star.map(r => ys.at(y(r))), hoverinfo: "skip", marker: {size: 15, symbol: "star", color: "#efb118", line: {width: 1, color: css("--fg")}}}],
      {xaxis: xs.axis, yaxis: {...ys.axis, ...(ys.words ? {range: [bad.length ? -1.4 : -.6, ys.words.length - .4]} : {})}});
  });
  parallel(keys, good.filter(r => num(y(r)) !== null), y);
}
/** Lines of many runs as few traces: those of the same colour are one, with gaps. */
function bundled(list) {
  const by = {};
  list.forEach(l => { const single = l.x.length < 3, key = l.color + l.width + single, t = by[key] = by[key] || {type: "scatter", mode: single ? "lines+markers" : "lines", x: [], y: [], text: [], customdata: [], line: {color: l.color, width: l.width}, opacity: l.opacity, hovertemplate: "%{text}<extra></extra>", connectgaps: false};
    l.x.forEach((x, i) => { t.x.push(x); t.y.push(l.y[i]); t.text.push(typeof l.text === "function" ? l.text(i) : l.text); t.customdata.push(l.num); }); t.x.push(null); t.y.push(null); t.text.push(""); t.customdata.push(null); });
  return Object.values(by);
}
function parallel(keys, some, y) {
  $("parallel").hidden = keys.length < 2 || some.length < 2; if ($("parallel").hidden) return;
  const axes = [...keys.slice(0, narrow.matches ? 4 : 9).map(k => [k, r => r.cells[k]]), [nameOf("y"), y]].map(([name, get]) => ({name, get, ...scale(some.map(get), name)}));
  const last = axes[axes.length - 1], bins = some.length > 40 ? 16 : 1e6, shade = r => { const p = last.part(y(r)); return ramp(bins < 1e6 ? Math.round(p * bins) / bins : p); };
  draw($("parallel"), bundled(some.map(r => ({num: r.num, x: axes.map((_, i) => i), y: axes.map(a => a.get(r) === undefined ? null : a.part(a.get(r))), color: shade(r), width: D.best && r.num === D.best.run ? 4 : 1.5, opacity: some.length > 300 ? .35 : .75,
      text: about(r) + "<br><b>" + esc(last.name + " = " + short(y(r))) + "</b>"}))),
    {margin: {l: 40, r: 40, t: 16, b: 40}, xaxis: {tickvals: axes.map((_, i) => i), ticktext: axes.map(a => esc(a.name)), showgrid: false, range: [-.3, axes.length - .7]}, yaxis: {visible: false, range: [-.14, 1.14]},
     shapes: axes.map((_, i) => ({type: "line", x0: i, x1: i, y0: -.02, y1: 1.02, line: {color: css("--soft"), width: 1}})),
     annotations: axes.flatMap((a, i) => [[1.09, a.high], [-.09, a.low]].map(([at, v]) => ({x: i, y: at, text: esc(short(v).slice(0, 16)), showarrow: false, font: {size: 11, color: css("--soft")}})))});
}
function learning() {
  const withCurves = D.runs.filter(r => Object.keys(detailOf(r).curves).length);
  $("learning").hidden = !withCurves.length; if (!ready || !withCurves.length) return;
  const few = withCurves.length <= PALETTE.length, y = chosenOf("y");
  const ramped = scale(withCurves.map(y), nameOf("y")), place = r => { const v = y(r); return num(v) === null ? null : Math.round(ramped.part(v) * 16) / 16; };
  const tint = (r, i) => few ? PALETTE[i] : place(r) === null ? css("--soft") : ramp(place(r));
  if (few) legend($("curvelegend"), {legend: withCurves.length > 1 ? withCurves.map((r, i) => [label(r), PALETTE[i], r.num]) : []}, "", true, n => choose(n, true));
  else legend($("curvelegend"), {ends: [ramped.low, ramped.high]}, nameOf("y"));
  const names = new Set(withCurves.flatMap(r => Object.keys(detailOf(r).curves))).size;
  if (names > CURVES) $("curvelegend").append(el("span", "the first " + CURVES + " of " + names + " metrics"));
  plotCurves($("curves"), withCurves.map((r, i) => [r, tint(r, i)]), withCurves.length);
}
function plotCurves(parent, runs, many) {
  const names = [...new Set(runs.flatMap(([r]) => Object.keys(detailOf(r).curves)))].slice(0, CURVES);
  const steps = $("across").value === "step" && runs.every(([r]) => Object.values(detailOf(r).curves).every(c => c.step));
  const first = r => Math.min(...Object.values(detailOf(r).curves).map(c => c.at[0])), longest = Math.max(...runs.map(([r]) => Math.max(...Object.values(detailOf(r).curves).map(c => c.at[c.at.length - 1])) - first(r)));
  const [unit, size] = longest < 300 ? ["s", 1] : longest < 18000 ? ["min", 60] : ["h", 3600], best = D.best && D.best.run;
  boxes(parent, names.length).forEach((box, i) => {
    const lines = runs.filter(([r]) => detailOf(r).curves[names[i]]).map(([r, color]) => { const c = detailOf(r).curves[names[i]], t0 = first(r), on = r.num === chosen && many > 1;
      return {num: r.num, x: steps ? c.step : c.at.map(t => (t - t0) / size), y: c.y, color: on && many > PALETTE.length ? css("--fg") : color, width: on || (r.num === best && many > 1) ? 3 : many > 60 ? 1 : 1.6, opacity: many > 300 ? .5 : .9,
        text: k => "run " + r.num + " " + esc(label(r)) + "<br>" + (steps ? "step " + c.step[k] : span(c.at[k] - t0)) + ": <b>" + (c.y[k] === null ? "" : short(c.y[k])) + "</b>"}; });
    const [lo, hi] = extent(lines.flatMap(l => l.y).filter(v => v !== null));
    draw(box, bundled(lines.sort((a, b) => a.width - b.width)), {title: names[i], xaxis: {title: {text: steps ? "step" : unit, standoff: 6}}, yaxis: lo > 0 && hi / lo >= 100 ? {type: "log", ...decades(lo, hi)} : {}, height: 260});
  });
}
$("across").onchange = () => { learning(); detail(false); };
function timeline() {
  if (!ready) return;
  const kinds = {}; D.runs.forEach(r => r.attempts.forEach(a => (kinds[a.what] = kinds[a.what] || []).push([r, a, a.to ?? D.made])));
  const none = !Object.keys(kinds).length; $("timeline").classList.toggle("none", none);
  if (none) { $("timeline").textContent = "nothing has been submitted yet"; return; }
  const words = (r, a, to) => "run " + r.num + " " + a.what + " " + span(to - a.from) + "<br>" + esc(a.attempt), nums = D.runs.map(r => r.num), many = nums.length > MANY, height = many ? 620 : Math.max(150, 110 + 20 * nums.length);
  const traces = Object.entries(kinds).map(([what, list]) => many
    ? {type: "scatter", mode: "lines", name: what, x: list.flatMap(([, a, to]) => [a.from * 1000, to * 1000, null]), y: list.flatMap(([r]) => [r.num, r.num, null]), text: list.flatMap(([r, a, to]) => [words(r, a, to), words(r, a, to), ""]), customdata: list.flatMap(([r]) => [r.num, r.num, null]),
       hovertemplate: "%{text}<extra></extra>", line: {color: colour(what), width: Math.max(1, Math.min(4, 500 / nums.length))}, opacity: what === "queued" ? .25 : .9}
    : {type: "bar", orientation: "h", name: what, y: list.map(([r]) => r.num), width: .8, base: list.map(([, a]) => a.from * 1000), x: list.map(([, a, to]) => Math.max((to - a.from) * 1000, 50)), customdata: list.map(([r]) => r.num),
       marker: {color: colour(what), opacity: what === "queued" ? .3 : .9}, text: list.map(([r, a, to]) => words(r, a, to)), textposition: "none", hovertemplate: "%{text}<extra></extra>"});
  draw($("timeline"), traces, {barmode: "overlay", showlegend: true, margin: {l: 52, r: 16, t: 12, b: 60}, height, xaxis: {type: "date"}, yaxis: {title: {text: "run"}, range: [extent(nums)[1] + .7, extent(nums)[0] - .7], ...(nums.length < 25 ? {dtick: 1} : {tickformat: "d"})}});
}
const UNITS = {util_percent: ["GPU utilisation", "%"], power_w: ["GPU power", "W"], mem_used_mib: ["GPU memory", "MiB"], temp_c: ["GPU temperature", "°C"], sm_mhz: ["GPU clock", "MHz"], cpu_percent: ["CPU", "%"],
  ram_used_mib: ["memory", "MiB"], net_rx_mib_s: ["network in", "MiB/s"], net_tx_mib_s: ["network out", "MiB/s"], disk_read_mib_s: ["disk read", "MiB/s"], disk_write_mib_s: ["disk write", "MiB/s"]};
function hardware(r, into) {
  const by = {}, add = (n, line) => (by[n] = by[n] || []).push(line);
  detailOf(r).measured.forEach(m => { const x = m.at.map(s => (m.from + s) * 1000);
    Object.entries(m.gpus).forEach(([g, its]) => Object.entries(its).forEach(([n, y]) => add(n, {x, y, name: m.host + (g === "mean" ? " mean of GPUs" : " GPU " + g)})));
    Object.entries(m.node).forEach(([n, y]) => add(n, {x, y, name: m.host})); });
  const grid = el("div", undefined, "plots"), names = Object.keys(UNITS).filter(n => by[n]), of = by[names[0]] || [], key = el("div", undefined, "legend");
  if (of.length < 33) legend(key, {legend: of.map((s, k) => [s.name, PALETTE[k % PALETTE.length]])}, "", true);
  into.append(key, grid);
  boxes(grid, names.length).forEach((box, i) => { const n = names[i], list = by[n]; box.classList.add("hardware");
    draw(box, list.map((s, k) => ({type: "scatter", mode: "lines", line: {width: 1.5, color: PALETTE[k % PALETTE.length]}, hovertemplate: "%{y} " + UNITS[n][1] + "<extra>" + esc(s.name) + "</extra>", x: s.x, y: s.y})),
      {title: UNITS[n][0] + ", " + UNITS[n][1], xaxis: {type: "date"}, yaxis: UNITS[n][1] === "%" ? {range: [0, 105]} : {rangemode: "tozero"}, height: 240}); });
}

// --- details ---
function fold(into, key, name, text, open, tail) {
  const d = el("details"), pre = el("pre"), show = () => { if (d.open && !pre.textContent) pre.textContent = typeof text === "function" ? text() : text; if (d.open && tail) pre.scrollTop = pre.scrollHeight; };
  d.open = opened[key] ?? !!open; d.append(el("summary", name), pre); into.append(d); show();
  d.ontoggle = () => { if (d.open !== (opened[key] ?? !!open)) opened[key] = d.open; show(); };
}
const logOf = r => { const t = detailOf(r).tail; return t ? t.log + "\n\n" + t.lines.join("\n") : ""; };
function detail(move) {
  const box = $("detail"), r = chosen === null ? null : run(chosen); box.replaceChildren(); box.hidden = !r; if (!r) return;
  const head = el("div", undefined, "row"), t = detailOf(r).tail; head.append(el("h2", "Run " + r.num + ": " + r.state + (r.reason ? ", " + r.reason : ""), "s-" + r.state)); box.append(head);
  if (D.runs.length > 1) { const close = el("button", "close"); close.type = "button"; close.onclick = () => choose(null); head.append(close); }
  const list = el("dl"), item = (k, v) => { if (v !== "" && v !== null && v !== undefined) list.append(el("dt", k), el("dd", String(v))); };
  item("directory", r.dir.startsWith("/") ? r.dir : D.sweep + (r.dir === "." ? "" : "/" + r.dir)); item("job", r.job); item("ranks", r.world_size); item("time", span(r.seconds)); results().forEach(n => item(n, r.cells[n] === undefined ? "" : short(r.cells[n]).slice(0, 2000))); box.append(list);
  fold(box, "overrides" + r.num, "overrides", r.overrides.join("\n") || "(none)", r.overrides.length < 9);
  if (t) fold(box, "log" + r.num, "log " + t.log, t.lines.join("\n"), true, true);
  if (ready && D.runs.length > 1 && Object.keys(detailOf(r).curves).length) { const own = el("div", undefined, "plots"); box.append(own); plotCurves(own, [[r, PALETTE[0]]], 1); }
  if (ready && detailOf(r).measured.length) hardware(r, box); else if (!detailOf(r).measured.length) box.append(el("p", (D.plans[r.plan] || {}).monitor ? "no monitor samples" : "not monitored (monitor=gpu)", "soft"));
  fold(box, "plan" + r.num, "plan", () => JSON.stringify(D.plans[r.plan] || {}, null, 2)); fold(box, "script" + r.num, "script", () => D.scripts[r.script] || "");
  if (move) box.scrollIntoView({block: "nearest", behavior: "smooth"});
}
function logs() {
  const has = D.runs.filter(r => detailOf(r).tail), list = (id, into, some, open, most) => { $(id).hidden = !some.length; into.replaceChildren();
    some.slice(0, most).forEach(r => fold(into, id + r.num, "run " + r.num + " " + r.state + (r.reason ? ": " + r.reason : "") + (varying().length ? " [" + label(r) + "]" : ""), () => logOf(r), open, true));
    if (some.length > most) into.append(el("p", "… and " + (some.length - most) + " more: choose a run in the table", "soft")); };
  const bad = has.filter(r => BAD.includes(r.state)), rest = has.filter(r => !BAD.includes(r.state));
  list("failures", $("failed"), bad, bad.length < 4, MOST_LOGS); list("logs", $("ended"), rest, false, MOST_LOGS);
}
function launch() {
  const {launches, ...rest} = D.launched; $("launched").replaceChildren();
  launches.forEach((l, i) => fold($("launched"), "launch" + i, when(l.time) + " on " + l.host, l.command + "\n" + l.python, true));
  Object.entries(rest).forEach(([k, v]) => fold($("launched"), "launched" + k, k, typeof v === "string" ? v : () => JSON.stringify(v, null, 2), typeof v === "string"));
}
function plots() { const begin = performance.now(); compare(); learning(); timeline(); detail(false); return performance.now() - begin; }

// --- served: ask for what has changed ---
/** Take over what has changed, and draw that anew; returns how long it took, in ms. */
function merge(news) {
  const begin = performance.now(), known = new Map(D.runs.map(r => [r.num, r])), text = r => r ? JSON.stringify([r.state, r.cells, r.reason]) : "", moved = news.runs.filter(r => text(r) !== text(known.get(r.num)));
  const fresh = Object.keys(news.details).length, open = news.details[chosen] || moved.some(r => r.num === chosen), at = $("scroll").scrollTop;
  news.runs.forEach(r => known.set(r.num, r)); Object.assign(more, news.details);
  D = {...D, ...news.head, runs: [...known.values()].sort((a, b) => a.num - b.num)}; memo = {};
  choices(); table(); $("scroll").scrollTop = at; if (news.head.launched) launch();
  if (moved.length) compare(); if (fresh || moved.length) { learning(); logs(); } if (open) detail(false); timeline();
  return performance.now() - begin;
}
async function follow() {
  let version = D.live.version, pause = D.live.every * 1000;
  for (;;) {
    await new Promise(go => setTimeout(go, pause));
    if (document.hidden) continue;
    try {
      const answer = await fetch("data?since=" + version, {cache: "no-store"});
      if (!answer.ok) throw new Error(answer.status === 503 ? await answer.text() : "HTTP " + answer.status);
      const news = await answer.json(); version = news.version; D.made = news.made;
      const spent = news.head ? merge(news) : 0; overview();
      pause = Math.max(D.live.every * 1000, 10 * spent); document.documentElement.dataset.version = version;
    } catch (error) { $("made").textContent = "no answer from hpc-hydra report --serve (" + error.message + "); as of " + when(D.made); pause = Math.min(60000, 2 * pause); }
  }
}

const dark = matchMedia("(prefers-color-scheme: dark)"), paint = on => { document.documentElement.dataset.theme = on ? "dark" : "light"; overview(); plots(); };
narrow.onchange = () => plots(); dark.onchange = e => paint(e.matches); $("theme").onclick = () => paint(document.documentElement.dataset.theme !== "dark"); $("filter").oninput = () => { shown = PAGE; table(); };
document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
overview(); choices(); table(); launch();
(async () => {
  const unpack = id => new Response(new Blob([Uint8Array.from(atob($(id).textContent.trim()), c => c.charCodeAt(0))]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  more = JSON.parse(await unpack("details")); memo = {}; table(); logs(); detail(false);
  const script = el("script", await unpack("library")); document.head.append(script); ["library", "details"].forEach(id => $(id).remove());
  if (!window.Plotly) throw new Error("plotly did not load");
  ready = true; document.documentElement.dataset.drawn = Math.round(plots()); document.documentElement.dataset.ready = "1";
  let width = 0; // a scrollbar that comes or goes is no resize of the window
  new ResizeObserver(() => { if (width !== (width = document.body.clientWidth)) document.querySelectorAll(".js-plotly-plot").forEach(p => { if (p.offsetParent) Plotly.Plots.resize(p); }); }).observe(document.body);
})().catch(error => { $("compare").append(el("p", "The plots need a newer browser: " + error, "soft")); document.documentElement.dataset.ready = "failed"; }).then(() => { if (D.live) follow(); });
