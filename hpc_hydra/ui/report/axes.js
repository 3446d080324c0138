// Axes, colours and legends of the plots, and the choices above them.

const narrow = matchMedia("(max-width: 600px)"),
  touch = matchMedia("(hover: none)"); // without hover plotly would always show its buttons
function draw(box, traces, extra) {
  const side = axis => ({
    gridcolor: css("--line"),
    zerolinecolor: css("--line"),
    linecolor: css("--line"),
    automargin: true,
    exponentformat: "e",
    minexponent: 5,
    ...(axis && axis.type === "date" ? {tickangle: 0, nticks: narrow.matches ? 4 : 8} : {}),
    ...axis,
  });
  const {title, xaxis, yaxis, ...rest} = extra;
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: css("--fg"), size: 12, family: "system-ui, sans-serif"},
    margin: {l: 52, r: 16, t: title ? 36 : 16, b: 44},
    height: 280,
    uirevision: "1",
    ...(title ? {title: {text: esc(title), font: {size: 13}, x: 0, xanchor: "left", xref: "paper"}} : {}),
    hoverlabel: {align: "left"},
    showlegend: false,
    legend: {orientation: "h", yref: "container", y: 0, yanchor: "bottom"},
    modebar: {
      bgcolor: "rgba(0,0,0,0)",
      color: css("--soft"),
      activecolor: css("--fg"),
      remove: ["lasso2d", "select2d", "autoScale2d"],
    },
    hovermode: "closest",
    ...rest,
    xaxis: side(xaxis),
    yaxis: side(yaxis),
  };
  box.style.height = layout.height + 2 + "px"; // with its border
  Plotly.react(box, traces, layout, {
    displaylogo: false,
    showSendToCloud: false,
    displayModeBar: narrow.matches || touch.matches ? false : "hover",
  });
  if (!box.clickable) {
    box.clickable = true;
    box.on("plotly_click", e => {
      const n = e.points[0].customdata;
      if (typeof n === "number" && run(n)) choose(n, true);
    });
  }
}
function boxes(parent, count) {
  // all, before the first is drawn: a plot takes the width that its box has then
  while (parent.children.length > count) {
    Plotly.purge(parent.lastChild);
    parent.lastChild.remove();
  }
  while (parent.children.length < count) parent.append(el("div", undefined, "plot"));
  parent.classList.toggle("few", count < 4);
  return [...parent.children];
}
/** Whether positive values are spaced evenly on a logarithmic axis rather than on a linear one. */
function spaced(list) {
  const v = [...new Set(list)].sort((a, b) => a - b),
    n = v.length,
    lo = v[0],
    hi = v[n - 1];
  if (n < 2 || lo <= 0) return false;
  if (n === 2) return hi / lo >= 10;
  const spread = f => {
    const gaps = v.slice(1).map((x, i) => f(x) - f(v[i]));
    return Math.max(...gaps) / Math.min(...gaps);
  };
  if (hi / lo >= 4 && spread(Math.log) <= 1.6 && spread(x => x) >= 1.9) return true;
  return hi / lo >= 100 && (v.reduce((a, b) => a + b) / n - lo) / (hi - lo) < 0.3;
}
/** Ticks of a logarithmic axis: powers of ten, if there are two or more. */
const decades = (lo, hi) => {
  const n = Math.log10(hi / lo);
  return n >= 2 ? {dtick: Math.ceil(n / 8)} : {};
};
/**
 * An axis for these values: `at` places a value, `axis` describes it to plotly.
 * Words stand side by side; few numbers are labelled unless `free`.
 */
function scale(list, title, free) {
  const known = list.filter(v => v !== null && v !== undefined && !diverged(v)),
    text = {title: {text: esc(title), standoff: 6}};
  if (!known.length) return {at: num, part: () => 0.5, axis: text};
  if (known.every(v => num(v) !== null)) {
    const ns = known.map(num),
      log = spaced(ns),
      ticks = [...new Set(ns)].sort((a, b) => a - b);
    if (!free && ticks[0] === 0 && ticks.length <= 8 && spaced(ticks.slice(1)))
      return {
        low: 0,
        high: ticks[ticks.length - 1],
        at: v => (num(v) === null ? null : ticks.indexOf(num(v))),
        part: v => ticks.indexOf(num(v)) / (ticks.length - 1),
        axis: {...text, tickvals: ticks.map((_, i) => i), ticktext: ticks.map(short)},
      }; // 0, 0.01, 0.1: a logarithmic axis has no zero
    const few =
      ticks.length <= 6 && !free
        ? {tickvals: ticks, ticktext: ticks.map(short)}
        : log
          ? decades(ticks[0], ticks[ticks.length - 1])
          : {};
    return {
      log,
      low: ticks[0],
      high: ticks[ticks.length - 1],
      at: num,
      part: v => {
        const f = x => (log ? Math.log10(x) : x),
          lo = f(ticks[0]),
          hi = f(ticks[ticks.length - 1]);
        return hi === lo ? 0.5 : (f(num(v)) - lo) / (hi - lo);
      },
      axis: {...text, ...(log ? {type: "log"} : {}), ...few},
    };
  }
  const words = [...new Set(known.map(String))].sort(natural);
  return {
    words,
    low: words[0],
    high: words[words.length - 1],
    at: v => (v === null || v === undefined ? null : words.indexOf(String(v))),
    part: v => (words.length < 2 ? 0.5 : words.indexOf(String(v)) / (words.length - 1)),
    axis: {
      ...text,
      tickvals: words.map((_, i) => i),
      ticktext: words.map(w => esc(w.length > 18 ? w.slice(0, 17) + "…" : w)),
      range: [-0.6, words.length - 0.4],
    },
  };
}
const pick = name => r =>
  name === "state" ? r.state : name === "seconds" ? r.seconds : name === "ranks" ? r.world_size : r.cells[name];
const option = name => {
  const o = el("option", name.slice(1));
  o.value = name;
  return o;
}; // "=seconds" is ours, ".seconds" a user's
function choices() {
  const keep = id => $(id).value,
    fill = (id, list, first) => {
      const old = keep(id);
      $(id).replaceChildren(...list.map(option));
      $(id).value = list.includes(old) ? old : first;
      $(id).onchange = () => {
        compare();
        if (id === "y") learning();
      };
    };
  const y = results().filter(n => num(values(n).find(v => num(v) !== null)) !== null),
    wanted = D.best && y.includes(D.best.name) ? D.best.name : y[0];
  fill("y", [...results().map(n => "." + n), "=seconds"], wanted === undefined ? "=seconds" : "." + wanted);
  fill("c", ["=state", ...[...varying(), ...results()].map(n => "." + n), "=seconds", "=ranks"], "=state");
}
const chosenOf = id => {
  const v = $(id).value;
  return v[0] === "=" ? pick(v.slice(1)) : r => r.cells[v.slice(1)];
};
const nameOf = id => $(id).value.slice(1);
/** How runs are coloured by a value: state, word, or place on a ramp. */
function shades(get, name, some) {
  if (name === "=state")
    return {of: r => colour(r.state), legend: [...new Set(some.map(r => r.state))].map(s => [s, colour(s)])};
  const s = scale(D.runs.map(get), name);
  if (s.words && s.words.length <= PALETTE.length)
    return {
      of: r => {
        const v = get(r);
        return v === null || v === undefined ? css("--soft") : PALETTE[s.at(v)];
      },
      legend: s.words.map((w, i) => [w, PALETTE[i]]),
    };
  return {
    of: r => {
      const v = get(r);
      return v === null || v === undefined ? css("--soft") : ramp(s.part(v));
    },
    ends: [s.low, s.high],
  };
}
function legend(into, shade, name, line, click) {
  into.replaceChildren();
  if (shade.ends) {
    const bar = el("span", undefined, "ramp");
    bar.style.background = "linear-gradient(90deg," + [0, 0.2, 0.4, 0.6, 0.8, 1].map(ramp).join(",") + ")";
    into.append(el("span", name), el("span", short(shade.ends[0] ?? "")), bar, el("span", short(shade.ends[1] ?? "")));
    return;
  }
  shade.legend.forEach(([text, c, n]) => {
    const e = el(n === undefined ? "span" : "button"),
      dot = el("span", undefined, "dot" + (line ? " line" : ""));
    dot.style.background = c;
    e.append(dot, text);
    if (n !== undefined) e.onclick = () => click(n);
    into.append(e);
  });
}
