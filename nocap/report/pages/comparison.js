// Draws the comparison's plots and keeps them in step with the page: which arms are shown, which axes.
(() => {
  const { data, narrow, number, known, least, most, fitted, room, chart } = page;
  // A column that is the baseline's, as the steps are, is there once; and so is one of a seed that is its arm's mean.
  // Bits per byte that are everywhere so many times the loss are not there at all.
  const base = data.arms[0].mean;
  const columns = Object.keys(base);
  for (const { mean, seeds } of data.arms) {
    for (const curve of [mean, ...seeds]) {
      for (const key of columns) curve[key] ??= (curve === mean ? base : mean)[key];
      curve.val_bpb ??= curve.val_loss.map((loss) => known(loss) ? loss * data.bits : null);
    }
  }
  const hidden = new Set();
  const view = { x: "step", y: "val_loss", rel: data.view.relative ? "base" : "own", span: data.view.span };
  const AXIS = { step: "training steps", tokens: "tokens seen", train_s: "training time (s)", val_loss: "validation loss (nats per token)", val_bpb: "validation loss (bits per byte)" };
  const UNIT = { val_loss: "nats/token", val_bpb: "bits/byte" };
  const KEYS = { h: (hit) => hit && toggle(hit.of), a: () => showAll() }; // on a chart, of what is read
  const each = (selector) => document.querySelectorAll(selector);
  const shown = () => data.arms.filter((_, index) => !hidden.has(index));

  function reading(arm, curve, who, y, i) {
    const losses = ["val_loss", "val_bpb"].filter((key) => known(curve[key][i])).map((key) => `${number(curve[key][i], 4)} ${UNIT[key]}`);
    const at = [`step ${number(curve.step[i])}`];
    if (known(curve.tokens[i])) at.push(`${number(curve.tokens[i])} tokens`);
    if (known(curve.train_s[i])) at.push(`${number(curve.train_s[i], 1)} s`);
    if (view.rel === "base" && known(y[i])) losses.push(`${y[i] < 0 ? "" : "+"}${number(y[i], 4)} against the baseline`);
    return `${arm.label}, ${who}\n${losses.join(", ")}\n${at.join(", ")}`;
  }

  // The baseline's mean loss at x, by a straight line between its validations; null before the first and after the last.
  function baselineAt(x) {
    const mean = data.arms[0].mean;
    const [xs, ys] = [mean[view.x], mean[view.y]];
    const right = xs.findIndex((at) => at >= x);
    if (right < 0 || !known(ys[right])) return null;
    if (xs[right] === x) return ys[right];
    if (right === 0 || !known(ys[right - 1])) return null;
    return ys[right - 1] + ((x - xs[right - 1]) / (xs[right] - xs[right - 1])) * (ys[right] - ys[right - 1]);
  }

  function height(curve) {
    if (view.rel === "own") return curve[view.y];
    return curve[view.x].map((x, i) => {
      const base = known(x) ? baselineAt(x) : null;
      return known(base) && known(curve[view.y][i]) ? curve[view.y][i] - base : null;
    });
  }

  // Between the lowest and the highest seed, at the steps of the mean.
  function band(arm) {
    const finished = arm.seeds.filter((seed) => seed.status === "finished");
    if (finished.length < 2) return null;
    const ats = finished.map((seed) => new Map(height(seed).map((y, i) => [seed.step[i], y])));
    const values = arm.mean.step.map((step) => ats.map((at) => at.get(step)).filter(known));
    const edge = (pick) => values.map((some) => (some.length ? pick(some) : null));
    return { x: arm.mean[view.x], low: edge(least), high: edge(most) };
  }

  function line(arm, curve, who, strong) {
    const y = height(curve);
    const thin = shown().length > data.few ? 1.2 : 2;
    return {
      x: curve[view.x],
      y,
      hover: (i) => reading(arm, curve, who, y, i),
      size: strong && curve.step.length <= 30 ? 7 : 0,
      symbol: arm.symbol,
      hollow: arm.hollow,
      color: `var(--hue-${arm.hue})`,
      width: strong ? (arm === data.arms[0] ? 3 : thin) : 1,
      dash: data.dashes[arm.dash],
      opacity: strong ? null : 0.4,
      band: strong && view.rel === "base" && shown().length <= data.banded ? band(arm) : null,
      name: arm.label,
      who,
      of: data.arms.indexOf(arm),
    };
  }

  const aimed = () => known(data.target) && view.y === "val_loss" && view.rel === "own";

  // The first steps fall so far that nothing later could be told apart: the picture is fitted to the part that is asked for.
  function fit(marks) {
    const points = marks.flatMap((mark) => mark.x.map((x, i) => [x, mark.y[i]])).filter(([x, y]) => known(x) && known(y));
    if (!points.length || view.span === "all") return [undefined, undefined];
    const last = most(points.map(([x]) => x));
    const first = last * data.shares[view.span];
    const losses = points.filter(([x]) => x >= first).map(([, y]) => y);
    let [low, high] = [least(losses), most(losses)];
    const near = aimed() && Math.abs(data.target - low) < 0.4 * (high - low);
    if (near) low = Math.min(low, data.target);
    const air = 0.06 * (high - low);
    return [[first, last + 0.02 * (last - first)], [low - air, high + air]];
  }

  function drawCurves() {
    const names = fitted(data.arms, room("curves"));
    const seeds = (arm) => (arm.seeds.length > 1 && view.rel === "own" && shown().length <= data.few ? arm.seeds : []);
    const who = (seed) => `${seed.seed < 0 ? "one run" : `seed ${seed.seed}`}${seed.status === "finished" ? "" : `, ${seed.status}`}`;
    const faint = shown().flatMap((arm) => seeds(arm).map((seed) => line(arm, seed, who(seed), false)));
    const mean = (arm) => line(arm, arm.mean, arm.averaged > 1 ? `mean of ${arm.averaged} seeds` : "one seed", true);
    const strong = shown().map((arm) => ({ ...mean(arm), end: names[data.arms.indexOf(arm)] })).reverse();
    const marks = [...faint, ...strong];
    const [x, y] = fit(marks);
    chart("curves", {
      keys: KEYS,
      key: [view.x, view.y, view.rel, view.span].join(),
      height: narrow.matches ? 340 : 500,
      x: { text: AXIS[view.x], range: x },
      y: { text: view.rel === "own" ? AXIS[view.y] : `loss minus the baseline's (${UNIT[view.y]})`, range: y },
      marks,
      rule: aimed() ? { y: data.target, text: `target ${data.target}` } : null,
    });
  }

  function disc(arm, label, size) {
    const memory = known(arm.model_mib) ? `\n${number(arm.model_mib)} MiB` : "";
    return {
      x: [arm.train_s],
      y: [arm[view.y]],
      label,
      size,
      symbol: arm.symbol,
      hollow: arm.hollow,
      color: `var(--hue-${arm.hue})`,
      hover: () => `${arm.label}\n${number(arm[view.y], 4)} ${UNIT[view.y]}\n${number(arm.train_s, 1)} s of training${memory}`,
      name: arm.label,
      of: data.arms.indexOf(arm),
    };
  }

  function drawTimes() {
    const names = fitted(data.arms, room("times"));
    const arms = shown().filter((arm) => arm.placed && known(arm.train_s) && known(arm[view.y]));
    const largest = most([0, ...arms.map((arm) => arm.model_mib || 0)]);
    const losses = arms.map((arm) => arm[view.y]);
    const air = 0.3 * (most(losses) - least(losses));
    chart("times", {
      keys: KEYS,
      height: Math.min(900, Math.max(narrow.matches ? 320 : 420, 100 + 28 * arms.length)),
      x: { text: "training time (s)" },
      y: { text: AXIS[view.y], range: arms.length ? [least(losses) - air, most(losses) + air] : undefined },
      marks: arms.map((arm) => disc(arm, names[data.arms.indexOf(arm)], largest && arm.model_mib ? 20 * Math.sqrt(arm.model_mib / largest) : 12)),
    });
  }

  function drawAll() {
    drawCurves();
    drawTimes();
  }

  // The arm whose lines stand out; null: all do.
  function focus(index) {
    for (const one of each(".plot [data-of]")) one.classList.toggle("faded", index !== null && one.dataset.of !== index);
  }

  function press() {
    for (const button of each("button[data-arm]")) button.setAttribute("aria-pressed", String(!hidden.has(Number(button.dataset.arm))));
    for (const row of each("tr[data-arm], g[data-arm]")) row.classList.toggle("off", hidden.has(Number(row.dataset.arm)));
    document.getElementById("all").disabled = hidden.size === 0;
    drawAll();
  }

  function toggle(index) {
    if (!hidden.delete(index)) hidden.add(index);
    press();
  }

  function showAll() {
    hidden.clear();
    press();
  }

  for (const button of each("button[data-arm]")) {
    const index = Number(button.dataset.arm);
    button.disabled = false;
    button.addEventListener("click", () => toggle(index));
    button.addEventListener("dblclick", () => {
      data.arms.forEach((_, other) => (other === index ? hidden.delete(other) : hidden.add(other)));
      press();
    });
    // Pointing at an arm's name finds its lines among the others; a finger only hides and shows.
    if (matchMedia("(hover: hover)").matches) {
      button.addEventListener("mouseenter", () => focus(hidden.has(index) ? null : button.dataset.arm));
      button.addEventListener("mouseleave", () => focus(null));
    }
  }
  // What shows all arms is off then: the keyboard's place is the first name.
  document.getElementById("all").addEventListener("click", () => {
    showAll();
    document.querySelector(".legend .arm").focus();
  });
  for (const key of ["x", "y", "rel", "span"]) {
    for (const button of each(`[data-${key}]`)) {
      button.addEventListener("click", () => {
        view[key] = button.dataset[key];
        for (const other of each(`[data-${key}]`)) other.setAttribute("aria-pressed", String(other === button));
        drawAll();
      });
    }
  }

  const help = document.getElementById("keys");
  document.getElementById("help").addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.key === "?" && !help.open && !event.target.closest("input")) help.showModal();
  });

  start(drawAll);
})();
