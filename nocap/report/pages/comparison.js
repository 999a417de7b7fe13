// Draws the comparison's plots and keeps them in step with the page: which arms are shown, which axes.
(() => {
  const { data, narrow, number, short, chart, start } = page;
  const hidden = new Set();
  const view = { x: "step", y: "val_loss", rel: "own", span: "most", focus: null };
  const SHARE = { all: 0, most: 0.1, end: 0.75 }; // of the run that is left out of sight
  const AXIS = { step: "training steps", tokens: "tokens seen", train_s: "training time (s)", val_loss: "validation loss (nats per token)", val_bpb: "validation loss (bits per byte)" };
  const UNIT = { val_loss: "nats/token", val_bpb: "bits/byte" };
  const shown = () => data.arms.filter((_, index) => !hidden.has(index));

  function readings(arm, curve, who, y) {
    return curve.step.map((step, i) => {
      const losses = ["val_loss", "val_bpb"].filter((key) => curve[key][i] !== null).map((key) => `${number(curve[key][i], 4)} ${UNIT[key]}`);
      const at = [`step ${number(step)}`];
      if (curve.tokens[i] !== null) at.push(`${number(curve.tokens[i])} tokens`);
      if (curve.train_s[i] !== null) at.push(`${number(curve.train_s[i], 1)} s`);
      if (view.rel === "base" && y[i] !== null) losses.push(`${y[i] < 0 ? "−" : "+"}${number(Math.abs(y[i]), 4)} against the baseline`);
      return `${arm.label}, ${who}\n${losses.join(", ")}\n${at.join(", ")}`;
    });
  }

  // The baseline's mean loss at x, by a straight line between its validations; null before the first and after the last.
  function baselineAt(x) {
    const mean = data.arms[0].mean;
    const [xs, ys] = [mean[view.x], mean[view.y]];
    const right = xs.findIndex((at) => at >= x);
    if (right < 0 || ys[right] === null) return null;
    if (xs[right] === x) return ys[right];
    if (right === 0 || ys[right - 1] === null) return null;
    return ys[right - 1] + ((x - xs[right - 1]) / (xs[right] - xs[right - 1])) * (ys[right] - ys[right - 1]);
  }

  function height(curve) {
    if (view.rel === "own") return curve[view.y];
    return curve[view.x].map((x, i) => {
      const base = x === null ? null : baselineAt(x);
      return base === null || curve[view.y][i] === null ? null : curve[view.y][i] - base;
    });
  }

  function line(arm, curve, who, strong) {
    const y = height(curve);
    return {
      x: curve[view.x],
      y,
      hover: readings(arm, curve, who, y),
      size: strong && curve.step.length <= 30 ? 4 : 0,
      symbol: arm.dash,
      color: `var(--hue-${arm.hue})`,
      width: strong ? (arm === data.arms[0] ? 3 : 2) : 1,
      dash: data.dashes[arm.dash],
      opacity: (strong ? 1 : 0.3) * (view.focus === null || data.arms[view.focus] === arm ? 1 : 0.15),
      name: arm.label,
      end: strong ? arm.label : undefined,
    };
  }

  const aimed = () => data.target !== null && view.y === "val_loss" && view.rel === "own";

  // The first steps fall so far that nothing later could be told apart: the picture is fitted to the part that is asked for.
  function fit(marks) {
    const points = marks.flatMap((mark) => mark.x.map((x, i) => [x, mark.y[i]])).filter(([x, y]) => x !== null && y !== null);
    if (!points.length || view.span === "all") return [undefined, undefined];
    const last = Math.max(...points.map(([x]) => x));
    const first = last * SHARE[view.span];
    const losses = points.filter(([x]) => x >= first).map(([, y]) => y);
    let [low, high] = [Math.min(...losses), Math.max(...losses)];
    const near = aimed() && Math.abs(data.target - low) < 0.4 * (high - low);
    if (near) low = Math.min(low, data.target);
    const air = 0.06 * (high - low) || 0.01;
    return [[first, last + 0.02 * (last - first)], [low - air, high + air]];
  }

  function drawCurves() {
    const faint = shown().flatMap((arm) => (arm.seeds.length > 1 ? arm.seeds.map((seed) => line(arm, seed, `${seed.seed < 0 ? "one run" : `seed ${seed.seed}`}${seed.status === "finished" ? "" : `, ${seed.status}`}`, false)) : []));
    const strong = shown().map((arm) => line(arm, arm.mean, arm.averaged > 1 ? `mean of ${arm.averaged} seeds` : "one seed", true)).reverse();
    const marks = [...faint, ...strong];
    const [x, y] = fit(marks);
    chart("curves", {
      key: [view.x, view.y, view.rel, view.span].join(),
      height: narrow.matches ? 340 : 500,
      x: { text: AXIS[view.x], range: x },
      y: { text: view.rel === "own" ? AXIS[view.y] : `loss minus the baseline's (${UNIT[view.y]})`, range: y },
      marks,
      rule: aimed() ? { y: data.target, text: `target ${data.target}` } : null,
    });
  }

  function drawClock() {
    const arms = shown();
    const boxes = arms.flatMap((arm, row) => {
      const total = arm.clock_s.reduce((sum, seconds) => sum + seconds, 0);
      let x0 = 0;
      return arm.clock_s.map((seconds, part) => {
        const hover = `${arm.label}\n${data.clock[part]}: ${number(seconds, 2)} s, ${number(total ? (100 * seconds) / total : 0, 1)}% of ${number(total, 1)} s`;
        return { x0, x1: (x0 += seconds), y0: row - 0.35, y1: row + 0.35, color: `var(--clock-${part})`, hover };
      });
    });
    chart("clock", {
      height: Math.max(160, 70 + 29 * arms.length),
      x: { text: "seconds", range: [0, 1.02 * Math.max(...boxes.map((box) => box.x1), 1e-9)] },
      y: { ticks: arms.map((arm, row) => [row, short(arm.label, narrow.matches ? 16 : 30)]), range: [arms.length - 0.4, -0.6] },
      boxes,
    });
  }

  function disc(arm, size) {
    const memory = arm.model_mib === null ? "" : `\n${number(arm.model_mib)} MiB`;
    return {
      x: [arm.train_s],
      y: [arm[view.y]],
      label: [short(arm.label, 24)],
      size,
      symbol: arm.dash,
      color: `var(--hue-${arm.hue})`,
      hover: [`${arm.label}\n${number(arm[view.y], 4)} ${UNIT[view.y]}\n${number(arm.train_s, 1)} s of training${memory}`],
      name: arm.label,
    };
  }

  function drawTimes() {
    const arms = shown().filter((arm) => arm.placed && arm.train_s !== null && arm[view.y] !== null);
    const most = Math.max(...arms.map((arm) => arm.model_mib || 0));
    const losses = arms.map((arm) => arm[view.y]);
    const air = 0.3 * (Math.max(...losses) - Math.min(...losses)) || 0.01;
    chart("times", {
      height: Math.max(narrow.matches ? 320 : 420, 100 + 28 * arms.length), // so that every label has a line of its own
      x: { text: "training time (s)" },
      y: { text: AXIS[view.y], range: arms.length ? [Math.min(...losses) - air, Math.max(...losses) + air] : undefined },
      marks: arms.map((arm) => disc(arm, most && arm.model_mib ? 20 * Math.sqrt(arm.model_mib / most) : 12)),
    });
  }

  function drawAll() {
    drawCurves();
    drawClock();
    drawTimes();
  }

  function press() {
    for (const button of document.querySelectorAll("button[data-arm]")) button.setAttribute("aria-pressed", String(!hidden.has(Number(button.dataset.arm))));
    for (const row of document.querySelectorAll("tr[data-arm]")) row.classList.toggle("off", hidden.has(Number(row.dataset.arm)));
    document.getElementById("all").disabled = hidden.size === 0;
    drawAll();
  }

  function only(index) {
    data.arms.forEach((_, other) => (other === index ? hidden.delete(other) : hidden.add(other)));
    press();
  }

  document.addEventListener("click", (event) => {
    const hit = event.target.closest("[data-arm]");
    if (!hit || String(getSelection())) return; // who marks text to copy it hides nothing
    const index = Number(hit.dataset.arm);
    if (!hidden.delete(index)) hidden.add(index);
    press();
  });
  document.addEventListener("dblclick", (event) => {
    const hit = event.target.closest("button[data-arm]");
    if (hit) only(Number(hit.dataset.arm));
  });
  // Pointing at an arm's name finds its lines among the others.
  document.addEventListener("mouseover", (event) => {
    const hit = event.target.closest("button[data-arm]");
    const focus = hit && !hidden.has(Number(hit.dataset.arm)) ? Number(hit.dataset.arm) : null;
    if (focus === view.focus) return;
    view.focus = focus;
    drawCurves();
  });
  document.getElementById("all").addEventListener("click", () => {
    hidden.clear();
    press();
  });
  for (const key of ["x", "y", "rel", "span"]) {
    for (const button of document.querySelectorAll(`[data-${key}]`)) {
      button.disabled = key in { x: 1, y: 1 } && !data.arms.some((arm) => arm.seeds.some((seed) => seed[button.dataset[key]].some((value) => value !== null)));
      button.addEventListener("click", () => {
        view[key] = button.dataset[key];
        for (const other of document.querySelectorAll(`[data-${key}]`)) other.setAttribute("aria-pressed", String(other === button));
        drawAll();
      });
    }
  }

  start(drawAll);
})();
