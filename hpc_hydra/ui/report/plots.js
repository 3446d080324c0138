// The plots.

function compare() {
  $("compare").hidden = D.runs.length < 2;
  if (!ready || D.runs.length < 2) return;
  const keys = varying().slice(0, 9),
    y = chosenOf("y");
  const good = D.runs.filter(
      r =>
        y(r) !== null &&
        y(r) !== undefined &&
        (num(y(r)) !== null || (typeof y(r) === "string" && isNaN(y(r)) && !diverged(y(r)))),
    ),
    well = new Set(good),
    bad = D.runs.filter(r => !well.has(r) && (BAD.includes(r.state) || diverged(y(r)))),
    c = shades(chosenOf("c"), $("c").value, good);
  const ys = scale(good.map(y), nameOf("y"), true),
    n = ys.words ? [0, ys.words.length - 1] : [num(ys.low) ?? 0, num(ys.high) ?? 1];
  const low = ys.log ? n[0] / (n[1] / n[0]) ** 0.12 : n[0] - (n[1] - n[0] || Math.abs(n[0]) || 1) * 0.12;
  const star = good.filter(r => D.best && r.num === D.best.run),
    plots = keys.length ? keys : ["run"];
  legend($("legend"), c, nameOf("c"));
  if (bad.length) {
    const e = el("span", "✕ " + bad.length + " failed or diverged", "s-failed");
    $("legend").append(e);
  }
  if (star.length) $("legend").append(el("span", "★ best"));
  boxes($("swept"), plots.length).forEach((box, i) => {
    const key = plots[i],
      x = r => (keys.length ? r.cells[key] : r.num),
      xs = scale(D.runs.map(x), key),
      spread = xs.words && good.length > 2 * xs.words.length ? 0.25 : 0;
    const at = r => {
      const v = xs.at(x(r));
      return v === null ? null : v + (spread ? (((r.num * 7919) % 100) / 100 - 0.5) * 2 * spread : 0);
    };
    const mark = r => (BAD.includes(r.state) ? "x" : r.state === "completed" ? "circle" : "circle-open");
    draw(
      box,
      [
        {
          type: "scatter",
          mode: "markers",
          x: good.map(at),
          y: good.map(r => ys.at(y(r))),
          customdata: good.map(r => r.num),
          text: good.map(r => about(r) + "<br><b>" + esc(nameOf("y") + " = " + short(y(r))) + "</b>"),
          hovertemplate: "%{text}<extra></extra>",
          marker: {
            size: good.length > 300 ? 6 : 9,
            symbol: good.map(mark),
            opacity: good.length > 300 ? 0.6 : 0.85,
            color: good.map(c.of),
          },
        },
        {
          type: "scatter",
          mode: "markers",
          x: bad.map(at),
          y: bad.map(() => low),
          customdata: bad.map(r => r.num),
          text: bad.map(r => about(r) + "<br>" + esc(r.reason.slice(0, 120))),
          hovertemplate: "%{text}<extra></extra>",
          marker: {size: 8, symbol: "x", color: colour("failed"), opacity: 0.7},
        },
        {
          type: "scatter",
          mode: "markers",
          x: star.map(at),
          y: star.map(r => ys.at(y(r))),
          hoverinfo: "skip",
          marker: {size: 15, symbol: "star", color: "#efb118", line: {width: 1, color: css("--fg")}},
        },
      ],
      {
        xaxis: xs.axis,
        yaxis: {...ys.axis, ...(ys.words ? {range: [bad.length ? -1.4 : -0.6, ys.words.length - 0.4]} : {})},
      },
    );
  });
  parallel(
    keys,
    good.filter(r => num(y(r)) !== null),
    y,
  );
}
/** Lines of many runs as few traces: those of the same colour are one, with gaps. */
function bundled(list) {
  const by = {};
  list.forEach(l => {
    const single = l.x.length < 3,
      key = l.color + l.width + single,
      t = (by[key] = by[key] || {
        type: "scatter",
        mode: single ? "lines+markers" : "lines",
        x: [],
        y: [],
        text: [],
        customdata: [],
        line: {color: l.color, width: l.width},
        opacity: l.opacity,
        hovertemplate: "%{text}<extra></extra>",
        connectgaps: false,
      });
    l.x.forEach((x, i) => {
      t.x.push(x);
      t.y.push(l.y[i]);
      t.text.push(typeof l.text === "function" ? l.text(i) : l.text);
      t.customdata.push(l.num);
    });
    t.x.push(null);
    t.y.push(null);
    t.text.push("");
    t.customdata.push(null);
  });
  return Object.values(by);
}
function parallel(keys, some, y) {
  $("parallel").hidden = keys.length < 2 || some.length < 2;
  if ($("parallel").hidden) return;
  const axes = [...keys.slice(0, narrow.matches ? 4 : 9).map(k => [k, r => r.cells[k]]), [nameOf("y"), y]].map(
    ([name, get]) => ({name, get, ...scale(some.map(get), name)}),
  );
  const last = axes[axes.length - 1],
    bins = some.length > 40 ? 16 : 1e6,
    shade = r => {
      const p = last.part(y(r));
      return ramp(bins < 1e6 ? Math.round(p * bins) / bins : p);
    };
  draw(
    $("parallel"),
    bundled(
      some.map(r => ({
        num: r.num,
        x: axes.map((_, i) => i),
        y: axes.map(a => (a.get(r) === undefined ? null : a.part(a.get(r)))),
        color: shade(r),
        width: D.best && r.num === D.best.run ? 4 : 1.5,
        opacity: some.length > 300 ? 0.35 : 0.75,
        text: about(r) + "<br><b>" + esc(last.name + " = " + short(y(r))) + "</b>",
      })),
    ),
    {
      margin: {l: 40, r: 40, t: 16, b: 40},
      xaxis: {
        tickvals: axes.map((_, i) => i),
        ticktext: axes.map(a => esc(a.name)),
        showgrid: false,
        range: [-0.3, axes.length - 0.7],
      },
      yaxis: {visible: false, range: [-0.14, 1.14]},
      shapes: axes.map((_, i) => ({
        type: "line",
        x0: i,
        x1: i,
        y0: -0.02,
        y1: 1.02,
        line: {color: css("--soft"), width: 1},
      })),
      annotations: axes.flatMap((a, i) =>
        [
          [1.09, a.high],
          [-0.09, a.low],
        ].map(([at, v]) => ({
          x: i,
          y: at,
          text: esc(short(v).slice(0, 16)),
          showarrow: false,
          font: {size: 11, color: css("--soft")},
        })),
      ),
    },
  );
}
function learning() {
  const withCurves = D.runs.filter(r => Object.keys(detailOf(r).curves).length);
  $("learning").hidden = !withCurves.length;
  if (!ready || !withCurves.length) return;
  const few = withCurves.length <= PALETTE.length,
    y = chosenOf("y");
  const ramped = scale(withCurves.map(y), nameOf("y")),
    place = r => {
      const v = y(r);
      return num(v) === null ? null : Math.round(ramped.part(v) * 16) / 16;
    };
  const tint = (r, i) => (few ? PALETTE[i] : place(r) === null ? css("--soft") : ramp(place(r)));
  if (few)
    legend(
      $("curvelegend"),
      {legend: withCurves.length > 1 ? withCurves.map((r, i) => [label(r), PALETTE[i], r.num]) : []},
      "",
      true,
      n => choose(n, true),
    );
  else legend($("curvelegend"), {ends: [ramped.low, ramped.high]}, nameOf("y"));
  const names = new Set(withCurves.flatMap(r => Object.keys(detailOf(r).curves))).size;
  if (names > CURVES) $("curvelegend").append(el("span", "the first " + CURVES + " of " + names + " metrics"));
  plotCurves(
    $("curves"),
    withCurves.map((r, i) => [r, tint(r, i)]),
    withCurves.length,
  );
}
function plotCurves(parent, runs, many) {
  const names = [...new Set(runs.flatMap(([r]) => Object.keys(detailOf(r).curves)))].slice(0, CURVES);
  const steps =
    $("across").value === "step" && runs.every(([r]) => Object.values(detailOf(r).curves).every(c => c.step));
  const first = r => Math.min(...Object.values(detailOf(r).curves).map(c => c.at[0])),
    longest = Math.max(
      ...runs.map(([r]) => Math.max(...Object.values(detailOf(r).curves).map(c => c.at[c.at.length - 1])) - first(r)),
    );
  const [unit, size] = longest < 300 ? ["s", 1] : longest < 18000 ? ["min", 60] : ["h", 3600],
    best = D.best && D.best.run;
  boxes(parent, names.length).forEach((box, i) => {
    const lines = runs
      .filter(([r]) => detailOf(r).curves[names[i]])
      .map(([r, color]) => {
        const c = detailOf(r).curves[names[i]],
          t0 = first(r),
          on = r.num === chosen && many > 1;
        return {
          num: r.num,
          x: steps ? c.step : c.at.map(t => (t - t0) / size),
          y: c.y,
          color: on && many > PALETTE.length ? css("--fg") : color,
          width: on || (r.num === best && many > 1) ? 3 : many > 60 ? 1 : 1.6,
          opacity: many > 300 ? 0.5 : 0.9,
          text: k =>
            "run " +
            r.num +
            " " +
            esc(label(r)) +
            "<br>" +
            (steps ? "step " + c.step[k] : span(c.at[k] - t0)) +
            ": <b>" +
            (c.y[k] === null ? "" : short(c.y[k])) +
            "</b>",
        };
      });
    const [lo, hi] = extent(lines.flatMap(l => l.y).filter(v => v !== null));
    draw(box, bundled(lines.sort((a, b) => a.width - b.width)), {
      title: names[i],
      xaxis: {title: {text: steps ? "step" : unit, standoff: 6}},
      yaxis: lo > 0 && hi / lo >= 100 ? {type: "log", ...decades(lo, hi)} : {},
      height: 260,
    });
  });
}
$("across").onchange = () => {
  learning();
  detail(false);
};
function timeline() {
  if (!ready) return;
  const kinds = {};
  D.runs.forEach(r => r.attempts.forEach(a => (kinds[a.what] = kinds[a.what] || []).push([r, a, a.to ?? D.made])));
  const none = !Object.keys(kinds).length;
  $("timeline").classList.toggle("none", none);
  if (none) {
    $("timeline").textContent = "nothing has been submitted yet";
    return;
  }
  const words = (r, a, to) => "run " + r.num + " " + a.what + " " + span(to - a.from) + "<br>" + esc(a.attempt),
    nums = D.runs.map(r => r.num),
    many = nums.length > MANY,
    height = many ? 620 : Math.max(150, 110 + 20 * nums.length);
  const traces = Object.entries(kinds).map(([what, list]) =>
    many
      ? {
          type: "scatter",
          mode: "lines",
          name: what,
          x: list.flatMap(([, a, to]) => [a.from * 1000, to * 1000, null]),
          y: list.flatMap(([r]) => [r.num, r.num, null]),
          text: list.flatMap(([r, a, to]) => [words(r, a, to), words(r, a, to), ""]),
          customdata: list.flatMap(([r]) => [r.num, r.num, null]),
          hovertemplate: "%{text}<extra></extra>",
          line: {color: colour(what), width: Math.max(1, Math.min(4, 500 / nums.length))},
          opacity: what === "queued" ? 0.25 : 0.9,
        }
      : {
          type: "bar",
          orientation: "h",
          name: what,
          y: list.map(([r]) => r.num),
          width: 0.8,
          base: list.map(([, a]) => a.from * 1000),
          x: list.map(([, a, to]) => Math.max((to - a.from) * 1000, 50)),
          customdata: list.map(([r]) => r.num),
          marker: {color: colour(what), opacity: what === "queued" ? 0.3 : 0.9},
          text: list.map(([r, a, to]) => words(r, a, to)),
          textposition: "none",
          hovertemplate: "%{text}<extra></extra>",
        },
  );
  draw($("timeline"), traces, {
    barmode: "overlay",
    showlegend: true,
    margin: {l: 52, r: 16, t: 12, b: 60},
    height,
    xaxis: {type: "date"},
    yaxis: {
      title: {text: "run"},
      range: [extent(nums)[1] + 0.7, extent(nums)[0] - 0.7],
      ...(nums.length < 25 ? {dtick: 1} : {tickformat: "d"}),
    },
  });
}
const UNITS = {
  util_percent: ["GPU utilisation", "%"],
  power_w: ["GPU power", "W"],
  mem_used_mib: ["GPU memory", "MiB"],
  temp_c: ["GPU temperature", "°C"],
  sm_mhz: ["GPU clock", "MHz"],
  cpu_percent: ["CPU", "%"],
  ram_used_mib: ["memory", "MiB"],
  net_rx_mib_s: ["network in", "MiB/s"],
  net_tx_mib_s: ["network out", "MiB/s"],
  disk_read_mib_s: ["disk read", "MiB/s"],
  disk_write_mib_s: ["disk write", "MiB/s"],
};
function hardware(r, into) {
  const by = {},
    add = (n, line) => (by[n] = by[n] || []).push(line);
  detailOf(r).measured.forEach(m => {
    const x = m.at.map(s => (m.from + s) * 1000);
    Object.entries(m.gpus).forEach(([g, its]) =>
      Object.entries(its).forEach(([n, y]) =>
        add(n, {x, y, name: m.host + (g === "mean" ? " mean of GPUs" : " GPU " + g)}),
      ),
    );
    Object.entries(m.node).forEach(([n, y]) => add(n, {x, y, name: m.host}));
  });
  const grid = el("div", undefined, "plots"),
    names = Object.keys(UNITS).filter(n => by[n]),
    of = by[names[0]] || [],
    key = el("div", undefined, "legend");
  if (of.length < 33) legend(key, {legend: of.map((s, k) => [s.name, PALETTE[k % PALETTE.length]])}, "", true);
  into.append(key, grid);
  boxes(grid, names.length).forEach((box, i) => {
    const n = names[i],
      list = by[n];
    box.classList.add("hardware");
    draw(
      box,
      list.map((s, k) => ({
        type: "scatter",
        mode: "lines",
        line: {width: 1.5, color: PALETTE[k % PALETTE.length]},
        hovertemplate: "%{y} " + UNITS[n][1] + "<extra>" + esc(s.name) + "</extra>",
        x: s.x,
        y: s.y,
      })),
      {
        title: UNITS[n][0] + ", " + UNITS[n][1],
        xaxis: {type: "date"},
        yaxis: UNITS[n][1] === "%" ? {range: [0, 105]} : {rangemode: "tozero"},
        height: 240,
      },
    );
  });
}
