"use strict";
// Draws the plan in #data. Canvases are exactly the plot areas: x is the instruction, y the address. All text from
// the plan goes through textContent.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const MEANING = { saved: "kept for backward", mask: "kept for backward as bits", activation: "activation",
    gradient: "gradient", input: "input", accumulator: "accumulator", scratch: "scratch", rows: "rows of a map" };
  const SLACK = { mouse: 3, pen: 6, touch: 14 };  // pixels around a small rectangle that still mean it
  const MOST_PIXELS = 16000;  // of a canvas
  const MOST_MODULES = 48;

  // -- text ------------------------------------------------------------------------------------------------
  const grouped = (n) => n.toLocaleString("en-US");
  const three = (x) => String(Number(x.toPrecision(3)));
  const one = (n, word) => (n === 1 ? `1 ${word}` : `${grouped(n)} ${word}s`);
  function bytesText(n) {
    if (n < 1024) return `${n} bytes`;
    for (const unit of ["KB", "MB", "GB"]) {
      n /= 1024;
      if (n < 999.5 || unit === "GB") return n < 999.5 ? `${three(n)} ${unit}` : `${grouped(Math.round(n))} ${unit}`;
    }
  }
  function countText(n) {
    for (const prefix of ["", " k", " M", " G"]) {
      if (n < 999.5) return three(n) + prefix;
      n /= 1000;
    }
    return `${three(n)} T`;
  }
  const secondsText = (s) => s < 1e-3 ? `${three(s * 1e6)} µs` : s < 1 ? `${three(s * 1e3)} ms` : `${three(s)} s`;
  function make(tag, className, ...children) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    made.append(...children);
    return made;
  }
  const swatch = (kind) => make("i", `k-${kind}`);
  function part(kind, share) {
    const made = swatch(kind);
    made.style.flexGrow = share;
    made.style.flexBasis = "0";
    return made;
  }

  // -- the plan --------------------------------------------------------------------------------------------
  const { strings, kinds, stages, plan } = data;
  const entries = data.entries.map((e) => {
    const moments = e.moments.map(([op, layer, stage, macs]) =>
      ({ op: strings[op], layer: strings[layer], stage: stages[stage], macs }));
    const spans = e.spans.map(([tensor, kind, offset, bytes, first, last, made]) =>
      ({ tensor: strings[tensor], kind: kinds[kind], offset, bytes, first, last, made: moments[made] }));
    const live = new Array(moments.length + 1).fill(0);
    for (const s of spans) {
      const count = Math.ceil(s.bytes / e.align) * e.align;
      live[s.first] += count;
      live[s.last + 1] -= count;
    }
    for (let i = 1; i < live.length; i++) live[i] += live[i - 1];
    live.pop();
    const peak = live.reduce((a, b) => Math.max(a, b), 0);
    const turn = moments.findIndex((m) => m.stage === "backward");
    return { ...e, moments, spans, live, peak, at: live.indexOf(peak), turn: turn < 0 ? moments.length : turn };
  });
  const view = { entry: entries.find((e) => e.arena === plan.arena_bytes) || entries[0], span: null, time: -1, zoom: 1,
    layers: null, folded: true };

  // -- the answer ------------------------------------------------------------------------------------------
  function showAnswer() {
    byId("ram").textContent = bytesText(plan.ram_bytes);
    byId("ram-bytes").textContent = grouped(plan.ram_bytes);
    const parts = ["state", "arena", "context", "stack", "work"].map((name) => [name, plan[`${name}_bytes`]])
      .filter(([, bytes]) => bytes);
    byId("ram-bar").append(...parts.map(([name, bytes]) => part(name, bytes)));
    byId("ram-bar").setAttribute("aria-label", parts.map(([name, bytes]) => `${name} ${grouped(bytes)} bytes`).join(", "));
    byId("ram-parts").append(...parts.map(([name, bytes]) => make("li", "", swatch(name), `${name} ${grouped(bytes)}`)));
    const fact = (name, figure, more) =>
      byId("facts").append(make("dt", "", name), make("dd", "", make("b", "", figure), " ", make("span", "", more)));
    if (data.fits) fact("fits", ...data.fits);
    if (data.state.length) fact("state", bytesText(plan.state_bytes),
      data.state.map(([name, bytes]) => `${name} ${bytesText(bytes)}`).join(", "));
    fact("flash", bytesText(plan.flash_bytes), "program, constants, initial state");
    const sum = (key) => data.layers.reduce((a, row) => a + row[key], 0);
    fact("MACs", countText(plan.macs), `a step of ${one(plan.batch, "sample")}: ${countText(sum("forward"))} forward, `
      + `${countText(sum("backward"))} backward`);
    for (const [name, figure, more] of data.predicted) fact(name, figure, more);
    if (plan.seconds) fact("time", secondsText(plan.seconds), `a step where this was made: ${grouped(
      Number((plan.batch / plan.seconds).toPrecision(3)))} samples/s`
      + (plan.infer_seconds ? `; inference of 1 sample ${secondsText(plan.infer_seconds)}` : ""));
    const of = plan.model_tensors ? `of ${plan.model_tensors} tensors, ${grouped(plan.learned_parameters)} of `
      + `${grouped(plan.model_parameters)} parameters` : "tensors";
    fact("learns", String(plan.learns), `${of}; method ${plan.method}${plan.optimizer ? `, ${plan.optimizer}` : ""}`);
  }

  // -- pictures --------------------------------------------------------------------------------------------
  const arena = byId("arena"), live = byId("live"), tip = byId("tip");
  const css = () => {
    const style = getComputedStyle(document.documentElement);
    return (name) => style.getPropertyValue(`--${name}`).trim();
  };
  const font = () => `11px ${getComputedStyle(document.body).fontFamily}`;
  function sized(canvas) {
    const box = canvas.getBoundingClientRect(), scale = window.devicePixelRatio || 1;
    const [w, h] = [Math.max(1, Math.round(box.width * scale)), Math.max(1, Math.round(box.height * scale))];
    if (canvas.width !== w) canvas.width = w;
    if (canvas.height !== h) canvas.height = h;
    const pen = canvas.getContext("2d");
    pen.setTransform(w / box.width, 0, 0, h / box.height, 0, 0);
    pen.clearRect(0, 0, box.width, box.height);
    return [pen, box.width, box.height];
  }
  function rectangle(s, w, h) {
    const { entry } = view, steps = entry.moments.length;
    const x = s.first / steps * w, y = h - (s.offset + s.bytes) / entry.arena * h;
    return [x, y, (s.last + 1 - s.first) / steps * w, s.bytes / entry.arena * h];
  }
  function draw() {
    const colour = css(), { entry } = view, steps = entry.moments.length;
    let [pen, w, h] = sized(arena);
    pen.strokeStyle = colour("grid");
    for (let k = 1; k < 4; k++) line(pen, 0, h * k / 4, w, h * k / 4);
    pen.font = font();
    pen.textBaseline = "middle";
    for (const s of entry.spans) {
      const [x, y, wide, high] = rectangle(s, w, h);
      pen.globalAlpha = view.layers && !view.layers.has(s.made.layer) ? 0.15 : 1;
      pen.fillStyle = colour(s.kind);
      const gap = (size) => (size > 4 ? 1 : 0);
      pen.fillRect(x, y, Math.max(wide - gap(wide), 0.5), Math.max(high - gap(high), 0.5));
      if (wide > 56 && high > 13) {
        pen.save();
        pen.beginPath();
        pen.rect(x, y, wide - 6, high);
        pen.clip();
        pen.fillStyle = s.kind === "saved" || s.kind === "accumulator" ? "#ffffff" : "#14161a";
        pen.fillText(s.tensor, x + 5, y + high / 2 + 0.5);
        pen.restore();
      }
    }
    pen.globalAlpha = 1;
    mark(pen, h, w, colour);
    if (view.span) {
      const [x, y, wide, high] = rectangle(view.span, w, h);
      pen.strokeStyle = colour("text");
      pen.lineWidth = 2;
      pen.strokeRect(x, y, Math.max(wide - 1, 1), Math.max(high - 1, 1));
    }
    [pen, w, h] = sized(live);
    const top = Math.max(1, entry.arena * 1.06), high = (bytes) => h - bytes / top * h;
    pen.beginPath();
    pen.moveTo(0, h);
    entry.live.forEach((bytes, i) => {
      pen.lineTo(i / steps * w, high(bytes));
      pen.lineTo((i + 1) / steps * w, high(bytes));
    });
    pen.lineTo(w, h);
    pen.globalAlpha = 0.22;
    pen.fillStyle = colour("accent");
    pen.fill();
    pen.globalAlpha = 1;
    pen.strokeStyle = colour("accent");
    pen.lineWidth = 1.5;
    pen.stroke();
    dashed(pen, colour("soft"), [2, 3], high(entry.arena), w);
    dashed(pen, colour("accumulator"), [6, 4], high(entry.peak), w);
    mark(pen, h, w, colour);
    pen.fillStyle = colour("accumulator");
    pen.beginPath();
    const x = (entry.at + 0.5) / steps * w, right = x < w - 60;
    pen.arc(x, high(entry.peak), 4, 0, 7);
    pen.fill();
    pen.font = font();
    pen.textAlign = right ? "left" : "right";
    pen.fillText("peak", x + (right ? 8 : -8), high(entry.peak) + 14);
  }
  function line(pen, x, y, x2, y2) {
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x2, y2);
    pen.stroke();
  }
  function dashed(pen, colour, pattern, y, w) {
    pen.save();
    pen.setLineDash(pattern);
    pen.strokeStyle = colour;
    pen.lineWidth = 1.5;
    line(pen, 0, y, w, y);
    pen.restore();
  }
  function mark(pen, h, w, colour) {  // the peak, and the instruction that is looked at
    const { entry } = view, at = (i) => (i + 0.5) / entry.moments.length * w;
    pen.save();
    pen.lineWidth = 1;
    pen.setLineDash([4, 3]);
    pen.strokeStyle = colour("accumulator");
    line(pen, at(entry.at), 0, at(entry.at), h);
    if (view.time >= 0) {
      pen.setLineDash([]);
      pen.strokeStyle = colour("text");
      pen.globalAlpha = 0.6;
      line(pen, at(view.time), 0, at(view.time), h);
    }
    pen.restore();
  }
  let asked = false;
  function redraw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  }

  // -- one entry point -------------------------------------------------------------------------------------
  const label = (text, share, name) => {
    const made = make("span", name || "", text);
    if (!name) made.style.bottom = `${share * 100}%`;
    return made;
  };
  function strip(id, runs, name) {
    byId(id).replaceChildren(...runs.map(([text, count], i) => {
      const made = make("span", i % 2 ? "odd" : "");
      made.style.flexGrow = count;
      made.title = name + text;
      return made;
    }));
  }
  function nameStrips() {  // in full, or by the last part of the path, or not at all
    for (const made of document.querySelectorAll(".strip span")) {
      const text = made.title.replace(/^layers? /, "");
      for (const shorter of [text, text.split(".").pop(), ""]) {
        made.textContent = shorter;
        if (made.scrollWidth <= made.clientWidth) break;
      }
    }
  }
  function runs(moments, name) {
    const found = [];
    moments.forEach((m, i) => {
      const text = name(m, i);
      if (found.length && found[found.length - 1][0] === text) found[found.length - 1][1]++;
      else found.push([text, 1]);
    });
    return found;
  }
  function modules(moments) {  // as deep as leaves room for names; what is in no module goes with what is before it
    const depth = Math.max(1, ...moments.map((m) => m.layer.split(".").length));
    for (let level = depth; ; level--) {
      let last = "(input)";
      const found = runs(moments, (m) => {
        if (!m.layer.startsWith("(")) last = m.layer.split(".").slice(0, level).join(".");
        return last;
      });
      if (found.length <= MOST_MODULES || level === 1) return found;
    }
  }
  function stageOf(m, i) {
    const { loop, turn } = view.entry;
    if (loop && i >= loop[0] && i <= loop[0] + loop[1]) return `sample by sample, ×${plan.batch}`;
    return i >= turn ? "backward" : m.stage === "update" ? "update" : "forward";
  }
  function showEntry() {
    const { entry } = view, steps = entry.moments.length, now = entry.moments[entry.at];
    view.span = null;
    view.time = -1;
    hide();
    for (const button of byId("tabs").children) button.setAttribute("aria-pressed", button.value === entry.name);
    const gap = entry.peak && entry.arena > entry.peak ? `${three((entry.arena / entry.peak - 1) * 100)}% above the least `
      + "that these steps can do with" : "the least that these steps can do with";
    byId("about").textContent = `${entry.name}: ${one(steps, "instruction")}, ${one(entry.spans.length, "tensor")} in an `
      + `arena of ${grouped(entry.arena)} bytes, ${gap}.${entry.loop ? " In the loop over samples, time is one sample." : ""}`;
    const used = kinds.filter((kind) => entry.spans.some((s) => s.kind === kind));
    byId("legend").replaceChildren(...used.map((kind) => make("li", "", swatch(kind), MEANING[kind])));
    byId("axis").replaceChildren(label(bytesText(entry.arena), 1, "top"), label(bytesText(Math.round(entry.arena / 4 * 3)), 0.75),
      label(bytesText(Math.round(entry.arena / 2)), 0.5), label(bytesText(Math.round(entry.arena / 4)), 0.25), label("0", 0));
    byId("live-axis").replaceChildren(label(bytesText(entry.peak), 1, "top"), label("0", 0));
    strip("stages", runs(entry.moments, stageOf), "");
    strip("modules", modules(entry.moments), "layer ");
    nameStrips();
    arena.setAttribute("aria-label", `Arena of ${entry.name}: ${entry.spans.length} tensors over ${steps} instructions. `
      + "Arrow keys go from tensor to tensor.");
    live.setAttribute("aria-label", `Bytes in use over time; at most ${grouped(entry.peak)} at instruction ${entry.at + 1}`);
    byId("bound-text").textContent = `lower bound ${grouped(entry.peak)}`;
    byId("arena-text").textContent = `arena ${grouped(entry.arena)}`;
    const alive = entry.spans.filter((s) => s.first <= entry.at && entry.at <= s.last).sort((a, b) => b.bytes - a.bytes);
    const shown = alive.slice(0, 12), rest = alive.slice(12);
    byId("peak-title").textContent = now ? `At the peak, ${bytesText(entry.peak)} are in use: ${now.op} of ${now.layer} `
      + `(${now.stage}, instruction ${entry.at + 1})` : "";
    byId("peak").replaceChildren(...shown.map((s) => make("li", "", swatch(s.kind), make("b", "", bytesText(s.bytes)), s.tensor)));
    if (rest.length) byId("peak").append(make("li", "", make("span"),
      make("b", "", bytesText(rest.reduce((a, s) => a + s.bytes, 0))), `${rest.length} more`));
    byId("all-entry").textContent = entry.name;
    showTensors();
    redraw();
  }
  function showTensors() {
    if (!byId("all").open) return byId("tensors").replaceChildren();
    byId("tensors").replaceChildren(...view.entry.spans.map((s) => make("tr", "", make("td", "", s.tensor),
      make("td", "", s.made.layer), make("td", "", s.made.op), make("td", "", MEANING[s.kind]),
      make("td", "", grouped(s.offset)), make("td", "", grouped(s.bytes)), make("td", "", `${s.first + 1}–${s.last + 1}`))));
  }

  // -- pointing --------------------------------------------------------------------------------------------
  function spanAt(x, y, w, h, slack) {
    const { entry } = view, steps = entry.moments.length;
    const time = Math.min(steps - 1, Math.max(0, Math.floor(x / w * steps))), address = (h - y) / h * entry.arena;
    const hit = entry.spans.find((s) => s.first <= time && time <= s.last && s.offset <= address
      && address < s.offset + s.bytes);
    if (hit) return [hit, time];
    let best = null, least = slack;
    for (const s of entry.spans) {
      const [left, top, wide, high] = rectangle(s, w, h);
      const away = Math.max(left - x, x - left - wide, top - y, y - top - high);
      if (away < least) [best, least] = [s, away];
    }
    return [best, time];
  }
  const scrolled = () => [scrollX, scrollY, byId("scroll").scrollLeft];
  let shownAt = scrolled();
  const at = (i) => `instruction ${i + 1}, ${view.entry.moments[i].op} of ${view.entry.moments[i].layer}`;
  function describe() {
    const { entry, span, time } = view, paragraph = (text, name) => make("p", name || "", text);
    if (span) {
      const kind = make("p", "kind", swatch(span.kind), `${MEANING[span.kind]}, ${grouped(span.bytes)} bytes`);
      tip.replaceChildren(make("h4", "", span.tensor), kind, paragraph(`layer ${span.made.layer}, made by ${span.made.op}`),
        paragraph(span.first === span.last ? `lives at ${at(span.first)}`
          : `lives from ${at(span.first)}, to ${at(span.last)}`),
        paragraph(`address ${grouped(span.offset)} to ${grouped(span.offset + span.bytes)}`, "soft"));
    } else {
      const m = entry.moments[time];
      tip.replaceChildren(make("h4", "", `${m.op} of ${m.layer}`), paragraph(`instruction ${time + 1} of `
        + `${entry.moments.length}, ${m.stage}${m.macs ? `, ${countText(m.macs)} MACs` : ""}`),
      paragraph(`${grouped(entry.live[time])} bytes in use`));
    }
    tip.hidden = false;
    shownAt = scrolled();
  }
  function beside(x, y) {
    const box = tip.getBoundingClientRect(), room = 8;
    const left = x + 16 + box.width + room > innerWidth ? x - 16 - box.width : x + 16;
    const top = y + 16 + box.height + room > innerHeight ? y - 16 - box.height : y + 16;
    tip.style.left = `${Math.max(room, Math.min(left, innerWidth - box.width - room))}px`;
    tip.style.top = `${Math.max(room, top)}px`;
  }
  function hide() {
    tip.hidden = true;
  }
  function pointed(event) {
    const box = event.currentTarget.getBoundingClientRect(), [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (!view.entry.moments.length) return;
    const [span, time] = spanAt(x, y, box.width, box.height, SLACK[event.pointerType] ?? 3);
    view.span = event.currentTarget === arena ? span : null;
    view.time = time;
    describe();
    beside(event.clientX, event.clientY);
    redraw();
  }
  function left() {
    view.span = null;
    view.time = -1;
    hide();
    redraw();
  }
  for (const canvas of [arena, live]) {
    canvas.addEventListener("pointermove", pointed);
    canvas.addEventListener("pointerdown", pointed);
    canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && left());
  }
  document.addEventListener("pointerdown", (event) => event.target !== arena && event.target !== live && left());
  const moved = () => scrolled().some((x, i) => Math.abs(x - shownAt[i]) > 2) && hide();
  byId("scroll").addEventListener("scroll", moved, { passive: true });
  addEventListener("scroll", moved, { passive: true });

  // From tensor to tensor: left and right in the order they are made, up and down by address at the same time.
  function next(key) {
    const { spans, at: peak } = view.entry, now = view.span, index = spans.indexOf(now);
    const largest = (list) => list.reduce((a, b) => (a && a.bytes >= b.bytes ? a : b), null);
    if (!now || key === "Home") return largest(spans.filter((s) => s.first <= peak && peak <= s.last));
    if (key === "ArrowLeft") return spans[Math.max(0, index - 1)];
    if (key === "ArrowRight") return spans[Math.min(spans.length - 1, index + 1)];
    const time = Math.min(now.last, Math.max(now.first, view.time)), up = key === "ArrowUp";
    const there = spans.filter((s) => s.first <= time && time <= s.last && (up ? s.offset > now.offset : s.offset < now.offset));
    return there.reduce((a, b) => (a && (up ? a.offset < b.offset : a.offset > b.offset) ? a : b), null) || now;
  }
  arena.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return left();
    if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home"].includes(event.key) || !view.entry.spans.length) return;
    event.preventDefault();
    const span = next(event.key), box = arena.getBoundingClientRect();
    if (!["ArrowUp", "ArrowDown"].includes(event.key) || view.time < 0) view.time = span.first;
    view.span = span;
    describe();
    const [x, y, wide, high] = rectangle(span, box.width, box.height), scroll = byId("scroll");
    const middle = x + Math.min(wide, scroll.clientWidth) / 2;
    if (middle < scroll.scrollLeft || middle > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = middle - scroll.clientWidth / 2;
    const seen = arena.getBoundingClientRect();
    shownAt = scrolled();
    beside(seen.left + middle, seen.top + y + high / 2);
    redraw();
  });
  arena.addEventListener("blur", left);

  // -- zoom ------------------------------------------------------------------------------------------------
  function zoom(to) {
    const scroll = byId("scroll"), middle = (scroll.scrollLeft + scroll.clientWidth / 2) / scroll.scrollWidth;
    const fits = (z) => scroll.clientWidth * z * (window.devicePixelRatio || 1) <= MOST_PIXELS;
    view.zoom = Math.max(1, Math.min(16, to));
    while (view.zoom > 1 && !fits(view.zoom)) view.zoom /= 2;
    byId("wide").style.width = `${view.zoom * 100}%`;
    byId("zoom").textContent = `${view.zoom}×`;
    byId("out").disabled = view.zoom === 1;
    byId("in").disabled = view.zoom === 16 || !fits(view.zoom * 2);
    draw();
    nameStrips();
    scroll.scrollLeft = middle * scroll.scrollWidth - scroll.clientWidth / 2;
  }
  byId("in").addEventListener("click", () => zoom(view.zoom * 2));
  byId("out").addEventListener("click", () => zoom(view.zoom / 2));

  // -- layers and decisions --------------------------------------------------------------------------------
  function cell(parts, most, text) {
    const made = make("div", "cell"), bar = make("div", "stack"), total = parts.reduce((a, [, n]) => a + n, 0);
    bar.append(...parts.filter(([, n]) => n).map(([kind, n]) => part(kind, n)));
    bar.style.width = most ? `${total / most * 100}%` : "0";
    made.append(make("div", "", bar), make("b", "", total ? text(total) : ""));
    return make("td", total ? "" : "none", made);
  }
  function showLayers() {
    const rows = view.folded ? data.rows : data.layers, total = (r) => r.forward + r.backward;
    const most = Math.max(1, ...rows.map(total)), kept = Math.max(1, ...rows.map((r) => r.saved));
    byId("layers").replaceChildren(...rows.map((r) => {
      const short = r.learns.map((name) => (name.startsWith(`${r.name}.`) ? name.slice(r.name.length + 1) : name)).join(", ");
      const learns = short.length <= 24 ? short : one(r.learns.length, "tensor");
      const made = make("tr", "", make("td", "", r.name, " ", make("small", "", r.ops.join(", "))),
        cell([["forward", r.forward], ["backward", r.backward]], most, countText), cell([["saved", r.saved]], kept, bytesText),
        make("td", r.weights ? "" : "none", r.weights ? bytesText(r.weights) : ""), make("td", learns ? "" : "none", learns));
      const look = (on) => () => {
        view.layers = on ? new Set(r.members) : null;
        redraw();
      };
      made.addEventListener("pointerenter", look(true));
      made.addEventListener("pointerleave", look(false));
      return made;
    }));
    byId("fold").hidden = data.rows.length >= data.layers.length;
    byId("fold").textContent = view.folded ? `show all ${data.layers.length} layers` : `show ${data.rows.length} rows`;
  }
  byId("fold").addEventListener("click", () => {
    view.folded = !view.folded;
    showLayers();
  });
  function showDecisions() {
    const list = byId("decisions"), most = Math.max(1, ...data.decisions.map((d) => d.saves_bytes));
    list.replaceChildren(...data.decisions.map((d) => {
      const bar = make("div", "stack"), filled = part("saved", d.saves_bytes);
      bar.append(filled, part("none", most - d.saves_bytes));
      return make("li", "", make("b", "", `${bytesText(d.saves_bytes)} less`), bar, make("div", "", `${d.kind}: ${d.why}`),
        make("small", "", d.adds_s < 0 ? `${secondsText(-d.adds_s)} less a step`
          : d.adds_s ? `costs ${secondsText(d.adds_s)} a step` : "costs no time"));
    }));
    if (!data.decisions.length) list.append(make("li", "", "none: there was nothing to save"));
  }

  // -- start -----------------------------------------------------------------------------------------------
  byId("main").hidden = false;
  showAnswer();
  showLayers();
  showDecisions();
  for (const id of ["h-memory", "h-layers"]) byId(id).closest("section").hidden = !view.entry;
  if (view.entry) {
    byId("tabs").append(...entries.map((e) => {
      const made = make("button", "", `${e.name} ${bytesText(e.arena)}`);
      made.type = "button";
      made.value = e.name;
      made.addEventListener("click", () => {
        view.entry = e;
        showEntry();
      });
      return made;
    }));
    showEntry();
    zoom(1);
    byId("all").addEventListener("toggle", showTensors);
    addEventListener("resize", () => zoom(view.zoom));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }
})();
