"use strict";
// Draws the sweep in #data as an SVG. All text from the model goes through textContent.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const what = data.objective === "energy" ? "energy" : "time";
  const TICKS = [0, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64];  // of extra time, on a scale of logarithms
  const REACH = { mouse: 40, pen: 40, touch: 60 };  // pixels from a mark that still mean it

  // -- text ------------------------------------------------------------------------------------------------
  const grouped = (n) => n.toLocaleString("en-US");
  const three = (x) => String(Number(x.toPrecision(3)));
  function bytesText(n) {
    if (n < 1024) return `${n} bytes`;
    for (const unit of ["KB", "MB", "GB"]) {
      n /= 1024;
      if (n < 999.5 || unit === "GB") return n < 999.5 ? `${three(n)} ${unit}` : `${grouped(Math.round(n))} ${unit}`;
    }
  }
  const secondsText = (s) => s < 1e-3 ? `${three(s * 1e6)} µs` : s < 1 ? `${three(s * 1e3)} ms` : `${three(s)} s`;
  function shareText(x) {
    const percent = Math.abs(x * 100) >= 9.5 ? Math.round(x * 100) : Math.round(x * 1000) / 10;
    return percent === 0 ? "0" : `${percent > 0 ? "+" : "−"}${Math.abs(percent)} %`;
  }
  function make(tag, className, ...children) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    made.append(...children);
    return made;
  }
  function shape(tag, attributes, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // -- marks: a form and a colour for each technique, so that neither is needed alone ----------------------
  const FORMS = [
    (x, y, r) => shape("circle", { cx: x, cy: y, r }),
    (x, y, r) => shape("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r }),
    (x, y, r) => shape("path", { d: `M${x} ${y - r * 1.3}L${x + r * 1.2} ${y + r}H${x - r * 1.2}Z` }),
    (x, y, r) => shape("path", { d: `M${x} ${y - r * 1.3}L${x + r * 1.3} ${y}L${x} ${y + r * 1.3}L${x - r * 1.3} ${y}Z` }),
    (x, y, r) => shape("path", { d: `M${x} ${y + r * 1.3}L${x + r * 1.2} ${y - r}H${x - r * 1.2}Z` }),
  ];
  const names = Object.keys(data.techniques);
  const colour = (name) => `var(--c-${name})`;
  const mark = (name, x, y, r) => {
    const made = FORMS[names.indexOf(name) % FORMS.length](x, y, r);
    made.style.fill = colour(name);
    return made;
  };
  const shown = new Set(names.filter((name) => name !== "none"));
  const fits = data.points.filter((p) => p.extra !== null);
  let picked = null;
  let marks = [];

  // -- the picture -----------------------------------------------------------------------------------------
  const LEFT = 56, RIGHT = 14, TOP = 16, BOTTOM = 40;
  function draw() {
    const wide = Math.max(280, byId("picture").clientWidth), high = Math.round(Math.min(460, Math.max(300, wide * 0.55)));
    const most = Math.max(0.1, ...fits.filter((p) => shown.has(p.technique)).map((p) => p.extra));
    const top = Math.log1p(most) * 1.05, low = Math.min(0, ...fits.map((p) => p.extra),
      ...data.points.filter((p) => p.bound_s && what === "time").map((p) => p.bound_s / data.base_s - 1));
    const bottom = Math.log1p(Math.max(low, -0.9));
    const first = data.floor_bytes, last = Math.max(data.base_bytes, ...data.points.map((p) => p.budget_bytes));
    const x = (bytes) => LEFT + (bytes - first) / Math.max(last - first, 1) * (wide - LEFT - RIGHT);
    const y = (extra) => high - BOTTOM - (Math.log1p(extra) - bottom) / (top - bottom) * (high - TOP - BOTTOM);
    const svg = shape("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, "aria-hidden": "true" });
    const text = (at, to, anchor, said) => {
      const made = shape("text", { x: at, y: to, "text-anchor": anchor });
      made.textContent = said;
      svg.append(made);
    };
    let below = Infinity;
    for (const tick of TICKS.filter((t) => t <= most * 1.1)) {
      const at = y(tick);
      svg.append(shape("line", { class: "rule", x1: LEFT, x2: wide - RIGHT, y1: at, y2: at }));
      if (below - at > 16) text(LEFT - 8, below = at, "end", shareText(tick));
    }
    const count = wide < 400 ? 2 : wide < 560 ? 3 : 5;
    for (let k = 0; k <= count; k++) {
      const bytes = first + (last - first) * k / count;
      svg.append(shape("line", { class: "axis-line", x1: x(bytes), x2: x(bytes), y1: high - BOTTOM, y2: high - BOTTOM + 5 }));
      text(x(bytes), high - BOTTOM + 19, k === 0 ? "start" : k === count ? "end" : "middle", bytesText(Math.round(bytes)));
    }
    svg.append(shape("line", { class: "edge", x1: x(first), x2: x(first), y1: TOP, y2: high - BOTTOM }));
    text(x(first), high - 6, "start", "↑ floor: state and the runtime");
    const bound = data.points.filter((p) => p.technique === "joint" && p.bound_s !== null)
      .map((p) => [x(p.budget_bytes), y(p.bound_s / data.base_s - 1)]);
    if (what === "time" && bound.length > 1) svg.append(shape("polyline", { class: "bound", points: bound.join(" ") }));
    marks = [];
    // What is best lies below, thick, so that those that are as good can be seen on it.
    for (const name of [...names].reverse().filter((n) => shown.has(n))) {
      const points = fits.filter((p) => p.technique === name).sort((a, b) => a.budget_bytes - b.budget_bytes)
        .map((p) => ({ ...p, x: x(p.budget_bytes), y: y(p.extra) }));
      const line = shape("polyline", { class: `line ${name === "joint" ? "joint" : ""}`,
        points: points.map((p) => `${p.x},${p.y}`).join(" ") });
      line.style.stroke = colour(name);
      svg.append(line);
      for (const p of points) {
        p.shape = mark(name, p.x, p.y, name === "joint" ? 5 : 4);
        svg.append(p.shape);
        marks.push(p);
      }
    }
    byId("picture").replaceChildren(svg);
    picked = null;
    byId("tip").hidden = true;
  }

  // -- pointing --------------------------------------------------------------------------------------------
  function pick(point) {
    if (picked) picked.shape.classList.remove("picked");
    picked = point;
    const tip = byId("tip");
    tip.hidden = !point;
    if (!point) return;
    point.shape.classList.add("picked");
    const spent = `${shareText(point.extra)} ${what}: ${secondsText(point.seconds)} and ${three(point.joules)} J a step`;
    const lines = [`within ${grouped(point.budget_bytes)} bytes (${bytesText(point.budget_bytes)})`, spent,
      `takes ${grouped(point.ram_bytes)} bytes`];
    if (point.parts > 1) lines.push(`in ${point.parts} micro-batches`);
    if (point.bound_s) lines.push(`no step taken at once is below ${secondsText(point.bound_s)}`);
    tip.replaceChildren(make("h4", "", point.technique), ...lines.map((line) => make("p", "", line)));
    const box = byId("picture").getBoundingClientRect(), size = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, box.left + point.x - size.width / 2), window.innerWidth - size.width - 8);
    const above = box.top + point.y - size.height - 14;
    tip.style.transform = `translate(${left}px, ${above < 4 ? box.top + point.y + 16 : above}px)`;
  }
  function nearest(event) {
    const box = byId("picture").getBoundingClientRect();
    const away = (p) => Math.hypot(p.x - (event.clientX - box.left), p.y - (event.clientY - box.top));
    const best = marks.reduce((a, b) => (a && away(a) <= away(b) ? a : b), null);
    return best && away(best) <= (REACH[event.pointerType] || 40) ? best : null;
  }
  const picture = byId("picture");
  picture.addEventListener("pointermove", (event) => pick(nearest(event)));
  picture.addEventListener("pointerdown", (event) => pick(nearest(event)));
  picture.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") pick(null); });
  picture.addEventListener("blur", () => pick(null));
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], other = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") return pick(null);
    if (!(step || other) || !marks.length) return;
    event.preventDefault();
    if (!picked) return pick(marks[marks.length - 1]);
    if (step) return pick(marks[(marks.indexOf(picked) + step + marks.length) % marks.length]);
    const column = marks.filter((p) => p.budget_bytes === picked.budget_bytes).sort((a, b) => a.y - b.y);
    pick(column[(column.indexOf(picked) + other + column.length) % column.length]);
  });

  // -- the rest --------------------------------------------------------------------------------------------
  byId("answer").textContent = data.answer;
  byId("what").textContent = `extra ${what}`;
  const fact = (name, figure, more) =>
    byId("facts").append(make("dt", "", name), make("dd", "", make("b", "", figure), " ", make("span", "", more)));
  fact("no budget", bytesText(data.base_bytes),
    `a step of ${data.batch} takes about ${secondsText(data.base_s)} and ${three(data.base_j)} J ${data.where}`);
  fact("floor", bytesText(data.floor_bytes), "state and the runtime's own memory");
  for (const name of names) {
    const key = shape("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, mark(name, 8, 8, 5));
    const button = make("button", "", key, name);
    button.type = "button";
    button.title = data.techniques[name];
    button.setAttribute("aria-pressed", shown.has(name));
    button.addEventListener("click", () => {
      shown.has(name) ? shown.delete(name) : shown.add(name);
      button.setAttribute("aria-pressed", shown.has(name));
      draw();
    });
    byId("names").append(button);
    byId("meanings").append(make("li", "", `${name}: ${data.techniques[name]}`));
  }
  byId("head").append(make("tr", "", ...["budget", ...names].map((name) => make("th", "", name))));
  const budgets = [...new Set(data.points.map((p) => p.budget_bytes))].sort((a, b) => b - a);
  for (const budget of budgets) {
    const row = names.map((name) => data.points.find((p) => p.technique === name && p.budget_bytes === budget));
    const least = Math.min(...row.filter((p) => p && p.extra !== null).map((p) => p.extra));
    const cells = row.map((p) => {
      if (!p || p.extra === null) return make("td", "none", "·");
      const more = p.parts > 1 ? ` in ${p.parts}` : "";
      return make("td", p.extra <= least + 1e-9 ? "best" : "", shareText(p.extra) + more);
    });
    byId("rows").append(make("tr", "", make("td", "", bytesText(budget)), ...cells));
  }
  byId("main").hidden = false;
  draw();
  new ResizeObserver(draw).observe(picture);
})();
