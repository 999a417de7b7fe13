// Charts as SVG in the page's colours, which a pointer, a finger and the arrow keys read.
const page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const narrow = matchMedia("(max-width: 640px)");
  const TEXT = 16; // px: a label's line
  const LETTER = 6.8; // px: about a label's letter
  const SPARE = 22; // px: between a line's end and its name
  const NAMES = 0.42; // of the width: the names of lines are cut to this room
  const MOST = 0.5; // of the width: names whose letters are wide have this room at the most
  const FAR = 4 * TEXT; // px: a name that lies farther from its line's end tells nobody which line it is
  const GREAT = 1e6; // from here on a number is written with a power of ten

  const formats = {};
  function number(value, digits = 0) {
    if (Math.abs(value) >= GREAT && digits) return value.toExponential(3).replace("e+", "e").replace("-", "−");
    formats[digits] ??= new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    return formats[digits].format(value).replace("-", "−");
  }
  const inWords = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
  const compact = (value) => (Math.abs(value) >= GREAT ** 2 ? value.toExponential(1).replace("e+", "e") : inWords.format(value)).replace("-", "−");
  const known = (value) => value !== null && value !== undefined;
  // Of arrays that are too long for arguments of a call.
  const least = (values) => values.reduce((a, b) => (b < a ? b : a), Infinity);
  const most = (values) => values.reduce((a, b) => (b > a ? b : a), -Infinity);

  // Names in room for so many letters: as they are where all fit, else without what all begin with, and cut in the middle.
  function fitted(arms, most) {
    const cut = (text) => (text.length <= most ? text : `${text.slice(0, most >> 1)}…${text.slice(text.length + 1 - ((most + 1) >> 1))}`);
    const fit = arms.every(({ label }) => label.length <= most);
    return arms.map(({ label, own }) => (fit ? label : cut(own ?? label)));
  }
  const room = (id) => Math.floor((NAMES * (document.getElementById(id).clientWidth || 600) - 23) / LETTER);

  // A text is set as text: a name is never read as markup.
  function node(name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) if (known(attributes[key])) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // The widest of these texts, in px, as a chart draws them.
  function widest(holder, texts) {
    const svg = holder.appendChild(node("svg", {}));
    const widths = texts.map((text) => svg.appendChild(node("text", {}, text)).getComputedTextLength());
    svg.remove();
    return most([0, ...widths]);
  }

  // --- axes ---------------------------------------------------------------------------------------------------------------------------

  // Multiples of 1, 2 or 5 times a power of ten, at most so many.
  function even(low, high, limit) {
    const smallest = (high - low) / limit;
    const power = 10 ** Math.floor(Math.log10(smallest));
    const step = [1, 2, 5, 10].map((size) => size * power).find((size) => size >= smallest);
    const digits = Math.min(20, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
    const first = Math.ceil(low / step - 1e-9);
    const found = Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
    return found.map((at) => [at, Math.abs(high) >= 1e4 ? compact(at) : number(at, digits)]);
  }

  // From a value to px between `start` and `end`, and back. Its ends are never the same.
  function axis(range, values, limit) {
    let [low, high] = range ?? (values.length ? [least(values), most(values)] : [0, 1]);
    const air = low === high ? 0.05 * Math.abs(low) || 0.5 : range ? 0 : 0.04 * (high - low);
    [low, high] = [low - air, high + air];
    const made = { ticks: even(low, high, Math.max(2, limit)), start: 0, end: 1 };
    made.at = (value) => made.start + ((value - low) / (high - low)) * (made.end - made.start);
    made.value = (px) => low + ((px - made.start) / (made.end - made.start)) * (high - low);
    return made;
  }

  // --- what is drawn --------------------------------------------------------------------------------------------------------------------

  function pathOf(xs, ys, at) {
    let pen = "M";
    let path = "";
    xs.forEach((x, i) => {
      if (known(x) && known(ys[i])) {
        const [px, py] = at(x, ys[i]);
        path += `${pen}${px.toFixed(1)} ${py.toFixed(1)}`;
        pen = "L";
      } else pen = "M";
    });
    return path;
  }

  // A band, a line, marks, or all of them. Returns what a pointer and labels find there.
  function draw(into, mark, at) {
    const group = into.appendChild(node("g", { class: "mark", "data-name": mark.name, "data-of": mark.of, opacity: mark.opacity, stroke: mark.color }));
    if (mark.band) {
      const there = mark.band.x.map((_, i) => i);
      const back = [...there].reverse();
      const d = pathOf(there.concat(back).map((i) => mark.band.x[i]), there.map((i) => mark.band.low[i]).concat(back.map((i) => mark.band.high[i])), at);
      if (d) group.append(node("path", { class: "band", d: `${d}Z`, fill: mark.color }));
    }
    if (mark.width) group.append(node("path", { class: "line", d: pathOf(mark.x, mark.y, at), fill: "none", "stroke-width": mark.width, "stroke-dasharray": mark.dash || null, "stroke-linejoin": "round" }));
    const r = (mark.size ?? 0) / 2;
    return mark.x.flatMap((x, i) => {
      if (!known(x) || !known(mark.y[i])) return [];
      const [px, py] = at(x, mark.y[i]);
      if (r) group.append(node("path", { class: "point", d: data.symbols[mark.symbol], transform: `translate(${px.toFixed(1)} ${py.toFixed(1)}) scale(${r.toFixed(1)})`, fill: mark.hollow ? "var(--card)" : mark.color }));
      return [{ px, py, r, mark, of: mark.of, key: `${mark.of} ${mark.who} ${i}`, label: mark.label, hover: mark.hover && (() => mark.hover(i)) }];
    });
  }

  // The labels of marks, each in a free place beside its mark; one that has none is left to the list of arms.
  function label(into, points, [left, top, right, bottom]) {
    const apart = (a, b) => a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
    const taken = points.map((point) => ({ x: point.px - point.r, y: point.py - point.r, w: 2 * point.r, h: 2 * point.r }));
    for (const { px, py, r, of, label: text } of points) {
      const w = Math.min(LETTER * text.length, right - left);
      let best = null;
      for (let y = Math.max(top, py - FAR); y + TEXT <= Math.min(bottom, py + FAR); y += TEXT / 4) {
        for (const wanted of [px + r + 4, px - r - 4 - w, px - w / 2]) {
          const x = Math.max(left, Math.min(right - w, wanted));
          const box = { x, y, w, h: TEXT };
          const cost = Math.hypot(Math.max(x - px, 0, px - x - w), y + TEXT / 2 - py);
          if ((!best || cost < best.cost) && taken.every((other) => apart(box, other))) best = { ...box, cost };
        }
      }
      if (!best) continue;
      taken.push(best);
      const end = [Math.max(best.x, Math.min(px, best.x + w)), Math.max(best.y, Math.min(py, best.y + TEXT))];
      if (Math.hypot(end[0] - px, end[1] - py) > r + 12) into.append(node("path", { class: "leader", d: `M${px} ${py}L${end[0]} ${end[1]}` }));
      into.append(node("text", { class: "label", "data-of": of, x: best.x, y: best.y + TEXT - 4 }, text));
    }
  }

  // The names of lines beside where these end; none where a name would lie so far off that it tells nothing.
  function placed(marks, at, { left, right, top, bottom }) {
    const last = (mark) => mark.x.map((x, i) => (known(x) && known(mark.y[i]) ? at(x, mark.y[i]) : [Infinity])).filter(([px]) => px >= left && px <= right + 1).at(-1);
    const shown = marks.filter((mark) => mark.end).map((mark) => ({ mark, point: last(mark) }))
      .filter(({ point }) => point && point[1] >= top && point[1] <= bottom).sort((a, b) => a.point[1] - b.point[1]);
    shown.forEach((one, i) => (one.y = Math.max(one.point[1], i ? shown[i - 1].y + TEXT : top + TEXT / 2)));
    shown.reduceRight((below, one) => (one.y = Math.min(one.y, below - TEXT)), bottom + TEXT / 2);
    return shown.some(({ point, y }) => Math.abs(y - point[1]) > FAR) ? [] : shown;
  }

  function ends(svg, shown, right) {
    for (const { mark, point: [px, py], y } of shown) {
      svg.append(node("path", { d: `M${px} ${py}H${right}L${right + 12} ${y}h4`, class: "end", stroke: mark.color, "data-of": mark.of }),
        node("text", { class: "label", x: right + 19, y: y + 4, "data-of": mark.of }, mark.end));
    }
  }

  // --- a chart --------------------------------------------------------------------------------------------------------------------------

  const zoomed = {}; // chart → the ranges that were dragged out, while `key` stays what it was
  const places = {}; // chart → the mark whose reading stays
  const pressed = {}; // chart → what each key does with that mark

  // In `id`: marks (draw) over two axes { text, range }. `rule` is a level with its words.
  function chart(id, chosen) {
    const { height, x, y, marks, rule } = { ...chosen, ...(zoomed[id]?.key === chosen.key && zoomed[id]) };
    const holder = document.getElementById(id);
    const width = holder.clientWidth || 600;
    const all = (key) => (chosen[key].range ? [] : marks.flatMap((mark) => mark[key].filter(known)));
    const [ax, ay] = [axis(x.range, all("x"), width / 90), axis(y.range, all("y"), height / 50)];
    const wide = most([0, ...ay.ticks.map(([, words]) => words.length)]);
    Object.assign(ax, { start: Math.min(0.45 * width, 7.5 * wide + 12), end: width - 14 });
    Object.assign(ay, { start: height - 42, end: 24 });
    const at = (vx, vy) => [ax.at(vx), ay.at(vy)];
    const room = widest(holder, marks.flatMap((mark) => mark.end ?? [])) + SPARE;
    if (room < MOST * width) ax.end = width - room;
    const named = room < MOST * width ? placed(marks, at, { left: ax.start, right: ax.end, top: ay.end, bottom: ay.start }) : [];
    if (!named.length) ax.end = width - 14;
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${y.text} over ${x.text}` });
    for (const [px, words] of ax.ticks.map(([value, words]) => [ax.at(value), words]).filter(([px]) => px >= ax.start - 1 && px <= ax.end + 1)) {
      svg.append(node("path", { class: "grid", d: `M${px} ${ay.start}V${ay.end}` }), node("text", { x: px, y: ay.start + 16, "text-anchor": "middle" }, words));
    }
    for (const [py, words] of ay.ticks.map(([value, words]) => [ay.at(value), words]).filter(([py]) => py <= ay.start + 1 && py >= ay.end - 1)) {
      svg.append(node("path", { class: "grid", d: `M${ax.start} ${py}H${ax.end}` }), node("text", { x: ax.start - 7, y: py + 4, "text-anchor": "end" }, words));
    }
    svg.append(node("text", { x: (ax.start + ax.end) / 2, y: height - 6, "text-anchor": "middle" }, x.text), node("text", { x: 2, y: 13 }, y.text));
    const area = [ax.start, ay.end, ax.end - ax.start, ay.start - ay.end];
    const inside = svg.appendChild(node("svg", { x: area[0], y: area[1], width: area[2], height: area[3], viewBox: area.join(" ") }));
    if (rule) inside.append(node("path", { class: "rule", d: `M${ax.start} ${ay.at(rule.y)}H${ax.end}` }), node("text", { x: ax.start + 4, y: ay.at(rule.y) - 4 }, rule.text));
    const points = marks.flatMap((mark) => draw(inside, mark, at));
    ends(svg, named, ax.end);
    const seen = points.filter(({ px, py }) => px >= ax.start - 1 && px <= ax.end + 1 && py <= ay.start + 1 && py >= ay.end - 1);
    label(inside, seen.filter((one) => one.label), [ax.start, ay.end, ax.end, ay.start]);
    // What says a reading stays in the page, so that it is heard.
    const tip = holder.querySelector(".tip") ?? Object.assign(document.createElement("div"), { className: "tip", role: "status" });
    Object.assign(holder, { tabIndex: 0, ariaLabel: `${y.text} over ${x.text}. Arrow keys read it: left and right along a line, up and down from arm to arm. Plus and minus zoom.` });
    holder.setAttribute("role", "group");
    if (tip.isConnected) holder.firstChild.replaceWith(svg);
    else holder.replaceChildren(svg, tip);
    const change = (ranges) => {
      zoomed[id] = ranges && { key: chosen.key, x: { ...x, range: ranges[0] }, y: { ...y, range: ranges[1] } };
      chart(id, chosen);
    };
    // So many times the ranges, around what is read or the middle, and never beyond the data.
    function scale(times, hit) {
      const part = (axis, px, key) => {
        const values = marks.flatMap((mark) => mark[key].filter(known));
        return [-1, 1].map((side) => Math.max(least(values), Math.min(most(values), axis.value(px + (side * times * (axis.end - axis.start)) / 2))));
      };
      change([part(ax, hit ? hit.px : (ax.start + ax.end) / 2, "x"), part(ay, hit ? hit.py : (ay.start + ay.end) / 2, "y")]);
    }
    pressed[id] = { "+": (hit) => scale(0.5, hit), "=": (hit) => scale(0.5, hit), "-": (hit) => scale(2, hit), "0": () => change(null), ...chosen.keys };
    read(id, holder, svg, tip, seen.filter((one) => one.hover));
    zoom(svg, ax, ay, change);
  }

  function where(svg, event) {
    const box = svg.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  // The reading of the mark that is nearest: a mouse shows it while it is there, a tap pins it, arrow keys walk on from it. What is drawn anew keeps its place.
  function read(id, holder, svg, tip, points) {
    let at = null;
    let pinned = false;
    const ring = svg.appendChild(node("circle", { class: "ring", r: 0 }));
    // A reading stands above its mark, or below where there is no room, and covers neither that nor the finger.
    function place(hit, finger) {
      const heights = [hit.py, finger ?? hit.py];
      const top = least(heights) - hit.r - 10 - tip.offsetHeight;
      tip.style.left = `${Math.max(0, Math.min(hit.px + 12, svg.clientWidth - tip.offsetWidth))}px`;
      tip.style.top = `${top < 0 ? most(heights) + hit.r + 14 : top}px`;
    }
    function show(hit, pin, finger) {
      [at, pinned, tip.hidden] = [hit, pin && Boolean(hit), !hit];
      places[id] = pinned ? hit : null;
      ring.setAttribute("r", hit ? hit.r + 4 : 0);
      if (!hit) return;
      ring.setAttribute("cx", hit.px);
      ring.setAttribute("cy", hit.py);
      tip.textContent = hit.hover();
      place(hit, finger);
    }
    function nearest([px, py], within) {
      const far = (one) => Math.hypot(one.px - px, one.py - py);
      const near = points.reduce((a, b) => (a && far(a) <= far(b) ? a : b), null);
      return near && far(near) < within ? near : null;
    }
    const pointed = (event) => nearest(where(svg, event), 40);
    svg.addEventListener("pointermove", (event) => pinned || event.pointerType === "touch" || show(pointed(event), false));
    svg.addEventListener("pointerleave", (event) => pinned || event.pointerType === "touch" || show(null, false));
    svg.addEventListener("click", (event) => show(pointed(event), true, where(svg, event)[1]));
    const arms = [...new Set(points.map((one) => one.of))];
    function step(key) {
      if (!at) return points[0];
      const own = points.filter((one) => one.mark === at.mark);
      const place = own.indexOf(at);
      if (key === "ArrowRight") return own[Math.min(place + 1, own.length - 1)];
      if (key === "ArrowLeft") return own[Math.max(place - 1, 0)];
      const next = arms[(arms.indexOf(at.of) + (key === "ArrowDown" ? 1 : arms.length - 1)) % arms.length];
      return points.filter((one) => one.of === next).reduce((a, b) => (Math.abs(b.px - at.px) < Math.abs(a.px - at.px) ? b : a));
    }
    holder.onkeydown = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      pressed[id][event.key]?.(at);
      if (event.key === "Escape") show(null, false);
      if (!event.key.startsWith("Arrow") || !points.length) return;
      event.preventDefault();
      show(step(event.key), true);
    };
    const last = places[id];
    const beside = () => (document.activeElement === holder ? nearest([last.px, last.py], Infinity) : null);
    show(last && (points.find((one) => one.key === last.key) ?? beside()), true);
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

  for (const button of document.querySelectorAll("[data-key]")) {
    const { chart: id, key } = button.dataset;
    button.addEventListener("click", () => pressed[id]?.[key](places[id]));
  }

  return { data, narrow, number, known, least, most, fitted, room, chart };
})();
