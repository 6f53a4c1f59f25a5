"use strict";
(() => {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const redraws = [];
  const themed = () => {
    document.querySelector("#theme span").textContent = dark() ? "light" : "dark";
    for (const redraw of redraws) redraw();
  };
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    themed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
  themed();

  // Paper is white: while printing the page is light, and every section is open.
  let before = null;
  addEventListener("beforeprint", () => {
    if (before) return;
    const all = [...document.querySelectorAll("details")];
    before = { theme: root.dataset.theme, open: all.map((one) => one.open) };
    root.dataset.theme = "light";
    for (const one of all) one.open = true;
    themed();
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    if (before.theme) root.dataset.theme = before.theme;
    else delete root.dataset.theme;
    document.querySelectorAll("details").forEach((one, at) => { one.open = before.open[at]; });
    before = null;
    themed();
  });

  const reveal = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") target.open = true;
  };
  addEventListener("hashchange", reveal);
  reveal();

  // A cell sorts by the number that it begins with; names and what has none sort as text.
  const key = (cell) => {
    const text = cell.textContent.replace(/(\d),(?=\d{3})/g, "$1");
    const found = cell.tagName === "TD" && text.match(/^(?:under )?([+-]?\d+(?:\.\d+)?)/);
    return found ? parseFloat(found[1]) : null;
  };
  const order = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x !== null && y !== null) return x - y;
    return a.textContent.localeCompare(b.textContent, undefined, { numeric: true });
  };
  const missing = (cell) => cell.textContent.trim() === "–";
  for (const table of document.querySelectorAll("table")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((one, two) => {
          const [a, b] = [one.cells[column], two.cells[column]];
          if (missing(a) !== missing(b)) return missing(a) ? 1 : -1;
          return down ? order(b, a) : order(a, b);
        });
        table.tBodies[0].append(...rows);
      });
    });
  }

  // Step times: one series of points for each arm, and above them the outliers and the evaluations of all arms.
  const place = document.getElementById("steps");
  if (!place) return;
  const data = JSON.parse(document.getElementById("steps-data").textContent);
  const points = [];
  for (const run of data.runs) {
    run.ms.forEach((ms, at) => points.push({ arm: run.arm, block: run.block, ms, at_s: run.at_s[at], step: run.step[at], repetition: run.repetition[at], mark: run.marks[at] || "" }));
  }
  points.sort((a, b) => a.at_s - b.at_s);
  const shown = data.arms.map(() => true);
  // Eight colours. Arms of a matrix come in rows of 2, 4, 8, ...: the next eight begin at another one, and are rings.
  const hue = (arm) => `--c${(arm + 3 * (arm >> 3)) % 8}`;
  const colour = (arm) => css(hue(arm));
  const ring_of = (arm) => (arm >> 3) % 2 === 1;
  const aligned = () => [
    points.map((p) => p.at_s),
    ...data.arms.map((_, arm) => points.map((p) => (p.arm === arm ? p.ms : null))),
    ...[false, true].map((filled) => points.map((p) => (p.mark && (p.mark === "evaluation") === filled && shown[p.arm] ? p.ms : null))),
  ];
  const sorted = points.map((p) => p.ms).sort((a, b) => a - b);
  const wide = sorted[sorted.length - 1] > 8 * sorted[sorted.length >> 1];
  const axis = (label, size) => ({ label, size, stroke: () => css("--ink"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { stroke: () => css("--edge"), width: 1 } });
  const dots = (size, stroke, fill, line) => ({ stroke, width: 0.7, spanGaps: true, paths: line ? uPlot.paths.linear() : () => null, points: { show: true, size, width: 1.5, stroke, fill } });
  const chart = place.querySelector(".chart");
  const height = parseInt(getComputedStyle(chart).minHeight);
  const plot = new uPlot({
    width: chart.clientWidth || 640, height, legend: { show: false },
    cursor: { points: { show: false }, x: false, y: false, drag: { x: true, y: true, uni: 20 } },
    scales: { x: { time: false }, y: { distr: wide ? 3 : 1 } },
    axes: [axis("seconds since the first measured step", 50), axis(wide ? "ms (log scale)" : "ms", 62)],
    series: [{}, ...data.arms.map((_, arm) => dots(4, () => colour(arm), () => (ring_of(arm) ? "transparent" : colour(arm)), data.lines)), dots(9, () => css("--ink"), () => "transparent"), dots(8, () => css("--ink"), () => css("--soft"))],
  }, aligned(), chart);
  redraws.push(() => plot.redraw(false));

  const tip = document.createElement("div"), ring = document.createElement("div");
  tip.className = "tip"; tip.setAttribute("role", "status"); ring.className = "ring";
  tip.hidden = ring.hidden = true;
  chart.append(ring, tip);
  let current = -1;
  const where = (p) => [plot.valToPos(p.at_s, "x") + plot.over.offsetLeft, plot.valToPos(p.ms, "y") + plot.over.offsetTop];
  const show = (at) => {
    current = at;
    tip.hidden = ring.hidden = at < 0;
    if (at < 0) return;
    const p = points[at], [x, y] = where(p);
    tip.textContent = `${data.arms[p.arm]}, block ${p.block}, repetition ${p.repetition}, step ${p.step}: ${p.ms} ms${p.mark ? ` (${p.mark})` : ""}`;
    ring.style.left = `${x}px`; ring.style.top = `${y}px`;
    tip.style.left = `${Math.max(0, Math.min(x + 12, chart.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${Math.max(0, y - 34)}px`;
  };
  plot.over.addEventListener("mousemove", (event) => {
    const box = chart.getBoundingClientRect();
    let best = -1, least = 25 ** 2;
    points.forEach((p, at) => {
      if (!shown[p.arm]) return;
      const [x, y] = where(p);
      const away = (x - event.clientX + box.left) ** 2 + (y - event.clientY + box.top) ** 2;
      if (away < least) [best, least] = [at, away];
    });
    show(best);
  });
  plot.over.addEventListener("mouseleave", () => show(-1));
  chart.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    for (let at = current + by; at >= 0 && at < points.length; at += by) if (shown[points[at].arm]) return show(at);
  });

  const legend = place.querySelector(".legend");
  const toggles = data.arms.map((name, arm) => {
    const button = document.createElement("button"), mark = document.createElement("i");
    button.type = "button";
    mark.style.background = ring_of(arm) ? "transparent" : `var(${hue(arm)})`;
    mark.style.boxShadow = `inset 0 0 0 2px var(${hue(arm)})`;
    button.append(mark, name);
    button.addEventListener("click", () => { shown[arm] = !shown[arm]; update(); });
    return button;
  });
  const all = document.createElement("button");
  all.type = "button"; all.className = "all";
  all.addEventListener("click", () => { shown.fill(!shown.every(Boolean)); update(); });
  if (toggles.length > 1) legend.append(...toggles, all);
  const update = () => {
    toggles.forEach((button, arm) => button.setAttribute("aria-pressed", String(shown[arm])));
    all.textContent = shown.every(Boolean) ? "none" : "all";
    show(-1);
    plot.batch(() => {
      shown.forEach((on, arm) => plot.setSeries(arm + 1, { show: on }));
      plot.setData(aligned());
    });
  };
  update();
  new ResizeObserver(() => {
    if (chart.clientWidth) plot.setSize({ width: chart.clientWidth, height });
    show(-1);
  }).observe(chart);
})();
