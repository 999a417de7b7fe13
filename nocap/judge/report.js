// Draws the comparison's plots and keeps them in step with the page: which arms are shown, which axes.
(() => {
  const { data, narrow, number, plain, short, tint, draw, start } = page;
  const hidden = new Set();
  const view = { x: "step", y: "val_loss", rel: "own", span: "most", focus: null };
  const SHARE = { all: 0, most: 0.1, end: 0.75 }; // of the run that is left out of sight
  const AXIS = { step: "training steps", tokens: "tokens seen", train_s: "training time (s)", val_loss: "validation loss (nats per token)", val_bpb: "validation loss (bits per byte)" };
  const UNIT = { val_loss: "nats/token", val_bpb: "bits/byte" };
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon"];
  const shown = () => data.arms.filter((_, index) => !hidden.has(index));
  const dashed = (arm) => (data.dashes[arm.dash] ? data.dashes[arm.dash].replace(/(\d+)/g, "$1px") : "solid");

  function readings(arm, curve, who, y) {
    return curve.step.map((step, i) => {
      const losses = ["val_loss", "val_bpb"].filter((key) => curve[key][i] !== null).map((key) => `${number(curve[key][i], 4)} ${UNIT[key]}`);
      const at = [`step ${number(step)}`];
      if (curve.tokens[i] !== null) at.push(`${number(curve.tokens[i])} tokens`);
      if (curve.train_s[i] !== null) at.push(`${number(curve.train_s[i], 1)} s`);
      if (view.rel === "base" && y[i] !== null) losses.push(`${y[i] < 0 ? "−" : "+"}${number(Math.abs(y[i]), 4)} against the baseline`);
      return `<b>${plain(arm.label)}</b>, ${who}<br>${losses.join(", ")}<br>${at.join(", ")}`;
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
    const few = curve.step.length <= 30;
    const y = height(curve);
    return {
      x: curve[view.x],
      y,
      hovertext: readings(arm, curve, who, y),
      hoverinfo: "text",
      mode: strong && few ? "lines+markers" : "lines",
      marker: { size: 4, symbol: SYMBOLS[arm.dash] },
      line: { color: tint(`hue-${arm.hue}`), width: strong ? (arm === data.arms[0] ? 3 : 2) : 1, dash: dashed(arm) },
      opacity: (strong ? 1 : 0.3) * (view.focus === null || data.arms[view.focus] === arm ? 1 : 0.15),
      name: plain(arm.label),
    };
  }

  const aimed = () => data.target !== null && view.y === "val_loss" && view.rel === "own";

  // The first steps fall so far that nothing later could be told apart: the picture is fitted to the part that is asked for.
  function fit(traces) {
    const points = traces.flatMap((trace) => trace.x.map((x, i) => [x, trace.y[i]])).filter(([x, y]) => x !== null && y !== null);
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
    const faint = shown().flatMap((arm) => (arm.seeds.length > 1 ? arm.seeds.map((seed) => line(arm, seed, `seed ${seed.seed}${seed.status === "finished" ? "" : `, ${seed.status}`}`, false)) : []));
    const strong = shown().map((arm) => line(arm, arm.mean, arm.averaged > 1 ? `mean of ${arm.averaged} seeds` : "one seed", true)).reverse();
    const traces = [...faint, ...strong];
    const [x, y] = fit(traces);
    const target = { type: "line", xref: "paper", x0: 0, x1: 1, y0: data.target, y1: data.target, line: { color: tint("soft"), width: 1, dash: "3px,3px" } };
    const words = { xref: "paper", x: 0, xanchor: "left", y: data.target, yanchor: "bottom", showarrow: false, text: `target ${data.target}` };
    draw("curves", traces, {
      height: narrow.matches ? 340 : 500,
      xaxis: { text: AXIS[view.x], range: x },
      yaxis: { text: view.rel === "own" ? AXIS[view.y] : `loss minus the baseline's (${UNIT[view.y]})`, range: y },
      shapes: aimed() ? [target] : [],
      annotations: aimed() ? [words] : [],
    });
  }

  function drawClock() {
    const arms = shown();
    const totals = arms.map((arm) => arm.clock_s.reduce((sum, seconds) => sum + seconds, 0));
    const traces = data.clock.map((name, part) => ({
      type: "bar",
      orientation: "h",
      name,
      x: arms.map((arm) => arm.clock_s[part]),
      y: arms.map((_, row) => row),
      hovertext: arms.map((arm, row) => {
        const share = totals[row] ? (100 * arm.clock_s[part]) / totals[row] : 0;
        return `<b>${plain(arm.label)}</b><br>${name}: ${number(arm.clock_s[part], 2)} s, ${number(share, 1)}% of ${number(totals[row], 1)} s`;
      }),
      hoverinfo: "text",
      marker: { color: tint(`clock-${part}`) },
    }));
    const labels = arms.map((arm) => short(arm.label, narrow.matches ? 16 : 30));
    draw("clock", traces, {
      barmode: "stack",
      bargap: 0.3,
      height: Math.max(160, 70 + 29 * arms.length),
      xaxis: { text: "seconds" },
      yaxis: { tickvals: labels.map((_, row) => row), ticktext: labels, range: [arms.length - 0.4, -0.6], showgrid: false, ticks: "", fixedrange: true },
    });
  }

  function disc(arm, size, middle) {
    const loss = arm[view.y];
    const color = tint(`hue-${arm.hue}`);
    const bars = loss.low !== null && loss.low !== undefined && loss.high !== null && loss.high !== undefined;
    const memory = arm.memory_mib === null ? "" : `<br>${number(arm.memory_mib)} MiB peak memory`;
    return {
      x: [arm.train_s],
      y: [loss.mean],
      error_y: { type: "data", symmetric: false, array: [bars ? loss.high - loss.mean : 0], arrayminus: [bars ? loss.mean - loss.low : 0], visible: bars, color, thickness: 1, width: 0 },
      mode: arm.pareto && !narrow.matches ? "markers+text" : "markers",
      text: [short(arm.label, 24)],
      textposition: arm.train_s > middle ? "middle left" : "middle right",
      textfont: { size: 11 },
      marker: { size, symbol: SYMBOLS[arm.dash] + (arm.pareto ? "" : "-open"), color, line: { width: 1.8, color } },
      opacity: arm.pareto || !arm.tied ? 1 : 0.5,
      hovertext: [`<b>${plain(arm.label)}</b>${arm.pareto ? ", on the front" : arm.tied ? ", beaten, but within the intervals" : ", beaten"}<br>${number(loss.mean, 4)} ${UNIT[view.y]}<br>${number(arm.train_s, 1)} s of training${memory}`],
      hoverinfo: "text",
      name: plain(arm.label),
    };
  }

  function drawPareto() {
    const arms = shown().filter((arm) => arm.placed && arm.train_s !== null && arm[view.y] && arm[view.y].mean !== null);
    const most = Math.max(...arms.map((arm) => arm.memory_mib || 0));
    const seconds = arms.map((arm) => arm.train_s);
    const middle = (Math.min(...seconds) + Math.max(...seconds)) / 2; // names are written towards the middle, where there is room
    const traces = arms.map((arm) => disc(arm, most && arm.memory_mib ? 20 * Math.sqrt(arm.memory_mib / most) : 12, middle));
    const losses = arms.map((arm) => arm[view.y].mean);
    const air = 0.3 * (Math.max(...losses) - Math.min(...losses)) || 0.01;
    draw("pareto", traces, {
      height: narrow.matches ? 320 : 420,
      xaxis: { text: "training time (s)" },
      yaxis: { text: AXIS[view.y], range: arms.length ? [Math.min(...losses) - air, Math.max(...losses) + air] : undefined },
    });
  }

  function drawAll() {
    drawCurves();
    drawClock();
    drawPareto();
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
