// Tiles, the table of runs, the details of one, logs.

function overview() {
  const parts = D.sweep.split("/");
  $("name").textContent = parts.slice(-2).join("/");
  $("path").textContent = D.sweep;
  document.title = parts.slice(-2).join("/") + " · hpc_hydra";
  $("made").textContent = (D.live ? (D.active ? "live, " : "ended, ") : "") + "as of " + when(D.made);
  const tiles = [],
    tile = (what, big, small, cls) => {
      const t = el(cls === "run" ? "button" : "div", undefined, "tile" + (cls ? " wide" : ""));
      t.append(el("span", what, "what"), el("b", big));
      if (small) t.append(el("div", small, "more soft"));
      tiles.push(t);
      return t;
    };
  const best = D.best && run(D.best.run);
  if (best)
    tile(
      "best: " + D.best.direction + " " + D.best.name,
      short(D.best.value),
      "run " + best.num + (varying().length ? ": " + label(best) : ""),
      "run",
    ).onclick = () => choose(best.num, true);
  else if (D.best) tile("best: " + D.best.direction + " " + D.best.name, "–", "no run has returned it yet");
  else if (D.runs.length === 1)
    results()
      .filter(n => num(D.runs[0].cells[n]) !== null)
      .slice(0, 4)
      .forEach(n => tile(n, short(num(D.runs[0].cells[n]))));
  const tally = {};
  D.runs.forEach(r => (tally[r.state] = (tally[r.state] || 0) + 1));
  const states = tile("runs", String(D.runs.length), "", "counts"),
    bar = el("div", undefined, "bar"),
    words = el("div", undefined, "more");
  Object.entries(tally).forEach(([s, n]) => {
    const part = el("span");
    part.style.cssText = "flex:" + n + " 1 0;background:" + colour(s);
    bar.append(part);
    words.append(el("span", n + " " + s, "s-" + s), "  ");
  });
  states.append(bar, words);
  tile(
    "node-hours used",
    hours(D.hours.used),
    D.hours.asked === null ? "" : "of at most " + hours(D.hours.asked) + " asked for",
  );
  const all = D.runs.flatMap(r => r.attempts),
    [from, to] = extent(all.flatMap(a => [a.from, a.to ?? D.made]));
  if (all.length) tile("from submission to " + (D.active ? "now" : "end"), span(to - from), when(from));
  $("tiles").replaceChildren(...tiles);
}

// --- table ---
function columns() {
  const has = f => D.runs.some(r => f(r));
  return [
    ["run", r => r.num],
    ["state", r => r.state],
    ...[...D.keys, ...results()].map(n => [n, r => r.cells[n]]),
    ...(new Set(D.runs.map(r => r.world_size)).size > 1 ? [["ranks", r => r.world_size]] : []),
    ["time", r => r.seconds],
    ...(has(r => r.tries > 1) ? [["tries", r => r.tries]] : []),
    ...(has(r => gpu(r) !== null) ? [["GPU %", gpu]] : []),
    ["job", r => r.job],
    ...(has(r => r.reason) ? [["reason", r => r.reason]] : []),
  ];
}
function cell(value, name) {
  if (value === null || value === undefined) return "";
  return name === "time"
    ? span(value)
    : typeof value === "number" && !Number.isInteger(value)
      ? digits(value, 6)
      : String(value);
}
function table() {
  const cols = columns(),
    head = el("tr"),
    get = (cols.find(([n]) => n === order[0]) || cols[0])[1];
  const right = cols.map(([, f]) =>
    D.runs.every(r => {
      const v = f(r);
      return v === null || v === undefined || num(v) !== null;
    }),
  );
  cols.forEach(([name], i) => {
    const th = el("th", name, right[i] ? "n" : "");
    th.scope = "col";
    th.tabIndex = 0;
    if (order[0] === name) th.setAttribute("aria-sort", order[1] > 0 ? "ascending" : "descending");
    th.onclick = () => {
      order = [name, order[0] === name ? -order[1] : 1];
      shown = PAGE;
      table();
    };
    th.onkeydown = e => {
      if (e.key === "Enter") th.click();
    };
    head.append(th);
  });
  $("runs").tHead.replaceChildren(head);
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = D.runs.filter(r => {
    if (!words.length) return true;
    const t = (cols.map(([n, f]) => n + "=" + f(r)).join(" ") + " " + r.overrides.join(" ")).toLowerCase();
    return words.every(w => t.includes(w));
  });
  rows.sort((a, b) => {
    const x = get(a),
      y = get(b),
      p = num(x),
      q = num(y),
      none = v => v === null || v === undefined || v === "";
    if (none(x) !== none(y)) return none(x) ? 1 : -1;
    return order[1] * (p !== null && q !== null ? p - q : natural(x, y)) || a.num - b.num;
  });
  const line = r => {
    const tr = el("tr");
    tr.dataset.run = r.num;
    if (r.num === chosen) tr.className = "on";
    tr.tabIndex = 0;
    cols.forEach(([name, f], i) => {
      const td = el("td", cell(f(r), name), right[i] ? "n" : name === "state" ? "s-" + r.state : "");
      td.title = td.textContent;
      tr.append(td);
    });
    tr.onclick = () => choose(r.num === chosen ? null : r.num, true);
    tr.onkeydown = e => {
      if (e.key === "Enter") tr.click();
    };
    return tr;
  };
  const body = $("runs").tBodies[0],
    fill = () => body.append(...rows.slice(body.rows.length, shown).map(line));
  body.replaceChildren();
  fill();
  $("scroll").onscroll = () => {
    const s = $("scroll");
    if (shown < rows.length && s.scrollTop + s.clientHeight > s.scrollHeight - 400) {
      shown += PAGE;
      fill();
    }
  };
  $("number").textContent =
    rows.length +
    " of " +
    D.runs.length +
    (D.runs.length > 1 ? "; choose one for its log, plots, plan and script" : "");
}
function choose(n, move) {
  chosen = n;
  document.querySelectorAll("#runs tbody tr").forEach(tr => tr.classList.toggle("on", Number(tr.dataset.run) === n));
  detail(move);
  if (D.runs.length > 1) setTimeout(learning);
}

function fold(into, key, name, text, open, tail) {
  const d = el("details"),
    pre = el("pre"),
    show = () => {
      if (d.open && !pre.textContent) pre.textContent = typeof text === "function" ? text() : text;
      if (d.open && tail) pre.scrollTop = pre.scrollHeight;
    };
  d.open = opened[key] ?? !!open;
  d.append(el("summary", name), pre);
  into.append(d);
  show();
  d.ontoggle = () => {
    if (d.open !== (opened[key] ?? !!open)) opened[key] = d.open;
    show();
  };
}
const logOf = r => {
  const t = detailOf(r).tail;
  return t ? t.log + "\n\n" + t.lines.join("\n") : "";
};
function detail(move) {
  const box = $("detail"),
    r = chosen === null ? null : run(chosen);
  box.replaceChildren();
  box.hidden = !r;
  if (!r) return;
  const head = el("div", undefined, "row"),
    t = detailOf(r).tail;
  head.append(el("h2", "Run " + r.num + ": " + r.state + (r.reason ? ", " + r.reason : ""), "s-" + r.state));
  box.append(head);
  if (D.runs.length > 1) {
    const close = el("button", "close");
    close.type = "button";
    close.onclick = () => choose(null);
    head.append(close);
  }
  const list = el("dl"),
    item = (k, v) => {
      if (v !== "" && v !== null && v !== undefined) list.append(el("dt", k), el("dd", String(v)));
    };
  item("directory", r.dir.startsWith("/") ? r.dir : D.sweep + (r.dir === "." ? "" : "/" + r.dir));
  item("job", r.job);
  item("ranks", r.world_size);
  item("time", span(r.seconds));
  results().forEach(n => item(n, r.cells[n] === undefined ? "" : short(r.cells[n]).slice(0, 2000)));
  box.append(list);
  fold(box, "overrides" + r.num, "overrides", r.overrides.join("\n") || "(none)", r.overrides.length < 9);
  if (t) fold(box, "log" + r.num, "log " + t.log, t.lines.join("\n"), true, true);
  if (ready && D.runs.length > 1 && Object.keys(detailOf(r).curves).length) {
    const own = el("div", undefined, "plots");
    box.append(own);
    plotCurves(own, [[r, PALETTE[0]]], 1);
  }
  if (ready && detailOf(r).measured.length) hardware(r, box);
  else if (!detailOf(r).measured.length)
    box.append(el("p", (D.plans[r.plan] || {}).monitor ? "no monitor samples" : "not monitored (monitor=gpu)", "soft"));
  fold(box, "plan" + r.num, "plan", () => JSON.stringify(D.plans[r.plan] || {}, null, 2));
  fold(box, "script" + r.num, "script", () => D.scripts[r.script] || "");
  if (move) box.scrollIntoView({block: "nearest", behavior: "smooth"});
}
function logs() {
  const has = D.runs.filter(r => detailOf(r).tail),
    list = (id, into, some, open, most) => {
      $(id).hidden = !some.length;
      into.replaceChildren();
      some
        .slice(0, most)
        .forEach(r =>
          fold(
            into,
            id + r.num,
            "run " +
              r.num +
              " " +
              r.state +
              (r.reason ? ": " + r.reason : "") +
              (varying().length ? " [" + label(r) + "]" : ""),
            () => logOf(r),
            open,
            true,
          ),
        );
      if (some.length > most)
        into.append(el("p", "… and " + (some.length - most) + " more: choose a run in the table", "soft"));
    };
  const bad = has.filter(r => BAD.includes(r.state)),
    rest = has.filter(r => !BAD.includes(r.state));
  list("failures", $("failed"), bad, bad.length < 4, MOST_LOGS);
  list("logs", $("ended"), rest, false, MOST_LOGS);
}
function launch() {
  const {launches, ...rest} = D.launched;
  $("launched").replaceChildren();
  launches.forEach((l, i) =>
    fold($("launched"), "launch" + i, when(l.time) + " on " + l.host, l.command + "\n" + l.python, true),
  );
  Object.entries(rest).forEach(([k, v]) =>
    fold(
      $("launched"),
      "launched" + k,
      k,
      typeof v === "string" ? v : () => JSON.stringify(v, null, 2),
      typeof v === "string",
    ),
  );
}
