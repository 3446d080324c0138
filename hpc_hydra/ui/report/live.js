// The start of the page, and its updates while it is served.

function plots() {
  const begin = performance.now();
  compare();
  learning();
  timeline();
  detail(false);
  return performance.now() - begin;
}

/** Take over what has changed, and draw that anew; returns how long it took, in ms. */
function merge(news) {
  const begin = performance.now(),
    known = new Map(D.runs.map(r => [r.num, r])),
    text = r => (r ? JSON.stringify([r.state, r.cells, r.reason]) : ""),
    moved = news.runs.filter(r => text(r) !== text(known.get(r.num))),
    nums = new Set(news.nums),
    left = D.runs.filter(r => !nums.has(r.num)); // the selection
  const fresh = Object.keys(news.details).length,
    open = news.details[chosen] || (chosen !== null && moved.concat(left).some(r => r.num === chosen)),
    at = $("scroll").scrollTop;
  left.forEach(r => {
    known.delete(r.num);
    delete more[r.num];
  });
  news.runs.forEach(r => known.set(r.num, r));
  Object.assign(more, news.details);
  D = {...D, ...news.head, runs: [...known.values()].sort((a, b) => a.num - b.num)};
  if (left.some(r => r.num === chosen)) chosen = null;
  memo = {};
  choices();
  table();
  $("scroll").scrollTop = at;
  if (news.head.launched) launch();
  if (moved.length || left.length) compare();
  if (fresh || moved.length || left.length) {
    learning();
    logs();
  }
  if (open) detail(false);
  timeline();
  return performance.now() - begin;
}
async function follow() {
  let version = D.live.version,
    pause = D.live.every * 1000;
  for (;;) {
    await new Promise(go => setTimeout(go, pause));
    if (document.hidden) continue;
    try {
      const answer = await fetch("data?since=" + version, {cache: "no-store"});
      if (!answer.ok) throw new Error(answer.status === 503 ? await answer.text() : "HTTP " + answer.status);
      const news = await answer.json();
      version = news.version;
      D.made = news.made;
      const spent = news.head ? merge(news) : 0;
      overview();
      pause = Math.max(D.live.every * 1000, 10 * spent);
      document.documentElement.dataset.version = version;
    } catch (error) {
      $("made").textContent = "no answer from hpc-hydra report --serve (" + error.message + "); as of " + when(D.made);
      pause = Math.min(60000, 2 * pause);
    }
  }
}

const dark = matchMedia("(prefers-color-scheme: dark)"),
  paint = on => {
    document.documentElement.dataset.theme = on ? "dark" : "light";
    overview();
    plots();
  };
narrow.onchange = () => plots();
dark.onchange = e => paint(e.matches);
$("theme").onclick = () => paint(document.documentElement.dataset.theme !== "dark");
$("filter").oninput = () => {
  shown = PAGE;
  table();
};
document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
overview();
choices();
table();
launch();
(async () => {
  const unpack = id =>
    new Response(
      new Blob([Uint8Array.from(atob($(id).textContent.trim()), c => c.charCodeAt(0))])
        .stream()
        .pipeThrough(new DecompressionStream("gzip")),
    ).text();
  more = JSON.parse(await unpack("details"));
  memo = {};
  table();
  logs();
  detail(false);
  const script = el("script", await unpack("library"));
  document.head.append(script);
  ["library", "details"].forEach(id => $(id).remove());
  if (!window.Plotly) throw new Error("plotly did not load");
  ready = true;
  document.documentElement.dataset.drawn = Math.round(plots());
  document.documentElement.dataset.ready = "1";
  let width = 0; // a scrollbar that comes or goes is no resize of the window
  new ResizeObserver(() => {
    if (width !== (width = document.body.clientWidth))
      document.querySelectorAll(".js-plotly-plot").forEach(p => {
        if (p.offsetParent) Plotly.Plots.resize(p);
      });
  }).observe(document.body);
})()
  .catch(error => {
    $("compare").append(el("p", "The plots need a newer browser: " + error, "soft"));
    document.documentElement.dataset.ready = "failed";
  })
  .then(() => {
    if (D.live) follow();
  });
