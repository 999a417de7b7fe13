// What every page of ours does: charts as SVG in the page's colours, and the change between light and dark.
"use strict";
const page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const narrow = matchMedia("(max-width: 640px)");
  const SYMBOLS = [[40, 0], [4, 0.25], [4, 0], [3, 0], [3, 0.5], [5, 0]]; // corners and turn: circle, square, diamond, two triangles, pentagon
  const TEXT = 14; // px: a label's line

  const number = (value, digits = 0) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const compact = (value) => value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 4 });
  const short = (text, size) => (text.length > size ? text.slice(0, size - 1) + "…" : text);
  const known = (value) => value !== null && value !== undefined;

  // A text is set as text: a name is never read as markup.
  function node(name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) if (known(value)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // --- axes ---------------------------------------------------------------------------------------------------------------------------

  // Multiples of 1, 2 or 5 times a power of ten, at most so many.
  function even(low, high, most) {
    const least = (high - low) / most;
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((size) => size * power).find((size) => size >= least);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const first = Math.ceil(low / step - 1e-9);
    const found = Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
    return found.map((at) => [at, Math.abs(high) >= 1e4 ? compact(at) : number(at, digits).replace("-", "−")]);
  }

  // From a value to px between `start` and `end`, and back.
  function axis({ range, ticks }, values, most) {
    const ends = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
    const air = 0.04 * (ends[1] - ends[0]) || 0.5;
    const [low, high] = range ?? [ends[0] - air, ends[1] + air];
    const found = ticks ?? even(Math.min(low, high), Math.max(low, high), most);
    const made = { ticks: found, start: 0, end: 1 };
    made.at = (value) => made.start + ((value - low) / (high - low)) * (made.end - made.start);
    made.value = (px) => low + ((px - made.start) / (made.end - made.start)) * (high - low);
    return made;
  }

  // --- what is drawn --------------------------------------------------------------------------------------------------------------------

  function pathOf(mark, at) {
    let pen = "M";
    return mark.x.map((x, i) => {
      if (!known(x) || !known(mark.y[i])) return (pen = "M"), "";
      const [px, py] = at(x, mark.y[i]).map((v) => v.toFixed(1));
      const drawn = `${pen}${px} ${py}`;
      pen = "L";
      return drawn;
    }).join("");
  }

  function symbol([px, py], r, [corners, turn]) {
    const angles = Array.from({ length: corners }, (_, i) => 2 * Math.PI * ((i + turn * 2) / corners) - Math.PI / 2);
    const r2 = corners === 40 ? r : 1.2 * r; // so that all seem of one size
    return `M${angles.map((a) => `${(px + r2 * Math.cos(a)).toFixed(1)} ${(py + r2 * Math.sin(a)).toFixed(1)}`).join("L")}Z`;
  }

  // A line, marks, or both. Returns what a pointer and labels find there.
  function draw(into, mark, at) {
    const group = into.appendChild(node("g", { class: "mark", "data-name": mark.name, opacity: mark.opacity, stroke: mark.color }));
    if (mark.width) group.append(node("path", { d: pathOf(mark, at), fill: "none", "stroke-width": mark.width, "stroke-dasharray": mark.dash, "stroke-linejoin": "round" }));
    return mark.x.flatMap((x, i) => {
      if (!known(x) || !known(mark.y[i])) return [];
      const [[px, py], r] = [at(x, mark.y[i]), (mark.size?.[i] ?? mark.size ?? 0) / 2];
      if (r) group.append(node("path", { class: "point", d: symbol([px, py], r, SYMBOLS[mark.symbol ?? 0]), fill: mark.color, stroke: mark.color, "stroke-width": 1.6 }));
      return [{ px, py, r, hover: mark.hover?.[i], label: mark.label?.[i] }];
    });
  }

  // The labels of marks, each in the free place nearest to its mark: none overlaps another, nor, where there is room, a mark.
  function label(into, points, [left, top, right, bottom]) {
    const taken = [];
    const apart = (a, b) => a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
    for (const { px, py, r, label: text } of points.filter((point) => point.label)) {
      const drawn = into.appendChild(node("text", { class: "label" }, text));
      const w = Math.min(drawn.getComputedTextLength(), right - left);
      const places = [];
      for (let y = top; y + TEXT <= bottom; y += 2) {
        for (const wanted of [px + r + 4, px - r - 4 - w, px - w / 2]) {
          const x = Math.max(left, Math.min(right - w, wanted));
          const box = { x, y, w, h: TEXT };
          const far = Math.hypot(Math.max(x - px, 0, px - x - w), Math.max(y - py, 0, py - y - TEXT)) + Math.abs(y + TEXT / 2 - py) / 4;
          const covered = points.filter((o) => !apart(box, { x: o.px - o.r, y: o.py - o.r, w: 2 * o.r, h: 2 * o.r })).length;
          if (taken.every((other) => apart(box, other))) places.push({ ...box, cost: far + 200 * covered });
        }
      }
      const best = places.reduce((a, b) => (b.cost < a.cost ? b : a));
      taken.push(best);
      drawn.setAttribute("x", best.x);
      drawn.setAttribute("y", best.y + TEXT - 3.5);
      const end = [Math.max(best.x, Math.min(px, best.x + w)), Math.max(best.y, Math.min(py, best.y + TEXT))];
      if (Math.hypot(end[0] - px, end[1] - py) > r + 12) into.prepend(node("path", { class: "leader", d: `M${px} ${py}L${end[0]} ${end[1]}` }));
    }
  }

  // The names of lines to the right of where they end, one below another, as many as there is room for.
  function ends(into, marks, at, { left, right, top, bottom, size }) {
    const last = (mark) => mark.x.map((x, i) => (known(x) && known(mark.y[i]) ? at(x, mark.y[i]) : [Infinity])).filter(([px]) => px >= left && px <= right + 1).at(-1);
    const named = marks.filter((mark) => mark.end).map((mark) => ({ mark, point: last(mark) })).filter(({ point }) => point && point[1] >= top && point[1] <= bottom);
    const shown = named.slice(-Math.floor((bottom - top) / TEXT)).sort((a, b) => a.point[1] - b.point[1]);
    const middle = TEXT / 2;
    shown.forEach((one, i) => (one.y = Math.max(one.point[1], i ? shown[i - 1].y + TEXT : top + middle)));
    shown.reduceRight((below, one) => (one.y = Math.min(one.y, below - TEXT)), bottom + middle);
    for (const { mark, point: [px, py], y } of shown) {
      const line = { d: `M${px} ${py}H${right}L${right + 12} ${y}h4`, class: "end", stroke: mark.color, opacity: mark.opacity };
      into.append(node("path", line), node("text", { class: "label", x: right + 19, y: y + 4, opacity: mark.opacity }, short(mark.end, size)));
    }
  }

  // Boxes between values, with words in them where these fit.
  function boxes(into, found, at) {
    return found.map((box) => {
      const [[x0, y0], [x1, y1]] = [at(box.x0, box.y0), at(box.x1, box.y1)];
      const [left, top, width, height] = [Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0), Math.abs(y1 - y0)];
      const drawn = into.appendChild(node("rect", { class: "box", x: left, y: top, width, height, fill: box.color }));
      if (box.click) drawn.addEventListener("click", box.click);
      const fits = Math.floor((width - 8) / 6.6);
      if (box.words && fits > 2) into.append(node("text", { class: "words", x: Math.max(left, 0) + 4, y: top + height / 2 + 4 }, short(box.words, fits)));
      return { left, top, right: left + width, bottom: top + height, hover: box.hover };
    });
  }

  // --- a chart --------------------------------------------------------------------------------------------------------------------------

  const zoomed = {}; // chart → the ranges that were dragged out, while `key` stays what it was

  // In `id`: marks (draw) and boxes over two axes { text, range, ticks }. `rule` is a level with its words.
  function chart(id, chosen) {
    const { height, x, y, marks = [], boxes: found = [], rule } = { ...chosen, ...(zoomed[id]?.key === chosen.key && zoomed[id]) };
    const holder = document.getElementById(id);
    const width = holder.clientWidth || 600;
    const all = (key) => marks.flatMap((mark) => mark[key].filter(known));
    const [ax, ay] = [axis(x, all("x"), width / 90), axis(y, all("y"), height / 50)];
    const wide = Math.max(0, ...ay.ticks.map(([, words]) => words.length));
    const size = Math.min(Math.floor((0.34 * width - 22) / 6.3), Math.max(0, ...marks.map((mark) => mark.end?.length ?? 0)));
    Object.assign(ax, { start: Math.min(0.45 * width, 7 * wide + 12), end: width - (size ? 6.3 * size + 22 : 14) });
    Object.assign(ay, { start: height - (x.text ? 42 : 22), end: y.text ? 24 : 6 });
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": [y.text, x.text].filter(known).join(" over ") });
    for (const [px, words] of ax.ticks.map(([value, words]) => [ax.at(value), words]).filter(([px]) => px >= ax.start - 1 && px <= ax.end + 1)) {
      svg.append(node("path", { class: "grid", d: `M${px} ${ay.start}V${ay.end}` }), node("text", { x: px, y: ay.start + 16, "text-anchor": "middle" }, words));
    }
    for (const [py, words] of ay.ticks.map(([value, words]) => [ay.at(value), words]).filter(([py]) => py <= ay.start + 1 && py >= ay.end - 1)) {
      if (!y.ticks) svg.append(node("path", { class: "grid", d: `M${ax.start} ${py}H${ax.end}` }));
      svg.append(node("text", { x: ax.start - 7, y: py + 4, "text-anchor": "end" }, words));
    }
    if (x.text) svg.append(node("text", { x: (ax.start + ax.end) / 2, y: height - 6, "text-anchor": "middle" }, x.text));
    if (y.text) svg.append(node("text", { x: 2, y: 13 }, y.text));
    const area = [ax.start, ay.end, ax.end - ax.start, ay.start - ay.end];
    const inside = svg.appendChild(node("svg", { x: area[0], y: area[1], width: area[2], height: area[3], viewBox: area.join(" ") }));
    const at = (...point) => [ax.at(point[0]), ay.at(point[1])];
    const covers = boxes(inside, found, at);
    if (rule) inside.append(node("path", { class: "rule", d: `M${ax.start} ${ay.at(rule.y)}H${ax.end}` }), node("text", { x: ax.start + 4, y: ay.at(rule.y) - 4 }, rule.text));
    const points = marks.flatMap((mark) => draw(inside, mark, at));
    ends(svg, marks, at, { left: ax.start, right: ax.end, top: ay.end, bottom: ay.start, size });
    const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
    holder.replaceChildren(svg, tip);
    label(inside, points.filter(({ px, py }) => px >= ax.start && px <= ax.end && py <= ay.start && py >= ay.end), [ax.start, ay.end, ax.end, ay.start]);
    point(svg, tip, points.filter((one) => one.hover), covers);
    if (marks.length) zoom(svg, ax, ay, (ranges) => {
      zoomed[id] = ranges && { key: chosen.key, x: { ...x, range: ranges[0] }, y: { ...y, range: ranges[1] } };
      chart(id, chosen);
    });
  }

  function where(svg, event) {
    const box = svg.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  // The reading at the pointer: of the mark that is nearest, or of the box below it.
  function point(svg, tip, points, covers) {
    svg.addEventListener("pointermove", (event) => {
      const [px, py] = where(svg, event);
      const far = (one) => Math.hypot(one.px - px, one.py - py);
      const near = points.reduce((a, b) => (a && far(a) <= far(b) ? a : b), null);
      const hit = near && far(near) < 40 ? near : covers.find((box) => px >= box.left && px <= box.right && py >= box.top && py <= box.bottom);
      tip.hidden = !hit;
      if (!hit) return;
      tip.textContent = hit.hover;
      const width = svg.clientWidth;
      tip.style.left = `${Math.max(0, Math.min((hit.px ?? px) + 12, width - tip.offsetWidth))}px`;
      tip.style.top = `${(hit.py ?? py) - tip.offsetHeight - 10}px`;
    });
    svg.addEventListener("pointerleave", () => (tip.hidden = true));
  }

  // A mouse drags out a part to see it larger; a double-click returns. On a phone a drag scrolls the page.
  function zoom(svg, ax, ay, change) {
    let from = null;
    svg.addEventListener("pointerdown", (event) => (from = event.pointerType === "mouse" ? where(svg, event) : null));
    svg.addEventListener("pointerup", (event) => {
      const [px, py] = where(svg, event);
      if (from && Math.abs(px - from[0]) > 8 && Math.abs(py - from[1]) > 8) {
        change([[Math.min(px, from[0]), Math.max(px, from[0])].map(ax.value), [Math.max(py, from[1]), Math.min(py, from[1])].map(ay.value)]);
      }
      from = null;
    });
    svg.addEventListener("dblclick", () => change(null));
  }

  // Draw everything now, and again whenever the width changes. Colours are the style's own.
  function start(drawAll) {
    const theme = document.getElementById("theme");
    const { style } = document.documentElement;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (style.colorScheme || (dark.matches ? "dark" : "light")) === "dark";
    function paint(scheme) {
      style.colorScheme = scheme;
      theme.textContent = isDark() ? "Light" : "Dark";
    }
    theme.hidden = false;
    theme.addEventListener("click", () => paint(isDark() ? "light" : "dark"));
    dark.addEventListener("change", () => paint(""));
    let width = innerWidth;
    addEventListener("resize", () => innerWidth === width || ((width = innerWidth), drawAll()));
    paint("");
    drawAll();
  }

  return { data, narrow, number, short, chart, start };
})();
