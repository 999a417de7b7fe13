// Draws a search: the loss of each trial in turn, what mattered, and the loss over each key, another key as the colour.
(() => {
  const { data, narrow, number, short, chart, start } = page;
  const LOSS = "validation loss (nats per token)";
  const at = (trial, loss, what) => `trial ${trial.trial}${what}: ${number(loss, 4)}\n${trial.overrides.join(" ")}`;

  function points(kind, x, color) {
    const screened = kind === "screened";
    const shown = data.trials.filter((trial) => trial[kind] !== null);
    return {
      x: shown.map(x),
      y: shown.map((trial) => trial[kind]),
      size: 9,
      open: screened,
      color: "var(--hue-1)",
      colors: color && shown.map(color),
      opacity: 0.8,
      hover: shown.map((trial) => at(trial, trial[kind], screened ? `, ${data.screen} of its steps` : "")),
    };
  }
  const both = (x, color) => (data.screen === null ? ["val_loss"] : ["screened", "val_loss"]).map((kind) => points(kind, x, color));

  function drawHistory() {
    const kind = data.screen === null ? "val_loss" : "screened";
    const shown = data.trials.filter((trial) => trial[kind] !== null).sort((a, b) => a.trial - b.trial);
    let low = Infinity;
    const lowest = { x: shown.map((trial) => trial.trial), y: shown.map((trial) => (low = Math.min(low, trial[kind]))), width: 1.5, stairs: true, color: "var(--soft)" };
    chart("history", { height: 380, x: { text: "trial" }, y: { text: LOSS }, marks: [lowest, ...both((trial) => trial.trial)] });
  }

  const value = (i) => (trial) => trial.overrides[i].slice(trial.overrides[i].indexOf("=") + 1);
  const choices = (i) => [...new Set(data.trials.map(value(i)))];
  const HUES = [1, 2, 3, 4, 5, 6, 0].map((hue) => `var(--hue-${hue})`);
  const blend = (share) => `color-mix(in oklab, var(--hue-1) ${100 * share}%, var(--hue-5))`;

  // The colour of a trial by key `i`, and what the colours mean.
  function hues(i) {
    const { name, log, words } = data.keys[i];
    if (words) {
      const all = choices(i);
      return { color: (trial) => HUES[all.indexOf(value(i)(trial)) % HUES.length], told: [[name], ...all.map((word, at) => [word, HUES[at % HUES.length]])] };
    }
    const numbers = data.trials.map(value(i)).map(Number);
    const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    const f = log ? Math.log : (x) => x;
    const color = (trial) => blend(high > low ? (f(Number(value(i)(trial))) - f(low)) / (f(high) - f(low)) : 0.5);
    const scale = `linear-gradient(in oklab to right, ${blend(0)}, ${blend(1)})`;
    return { color, told: [[`${name} ${Number(low.toPrecision(3))}`], [`${Number(high.toPrecision(3))}`, scale, "scale"]] };
  }

  function drawKey(key, i) {
    const words = choices(i);
    const x = (trial) => (key.words ? words.indexOf(value(i)(trial)) : Number(value(i)(trial)));
    const axis = key.words ? { ticks: words.map((word, at) => [at, word]), range: [-0.5, words.length - 0.5] } : { log: key.log };
    const order = data.weights.length ? data.weights.map(([name]) => name) : data.keys.map(({ name }) => name);
    const other = data.keys.findIndex(({ name }) => name === order.find((one) => one !== key.name)); // the one that matters most
    const colours = other < 0 ? null : hues(other);
    chart(`key${i}`, { height: 320, x: { text: key.name, ...axis }, y: { text: LOSS }, marks: both(x, colours?.color) });
    document.getElementById(`hues${i}`)?.replaceChildren(...colours.told.map(([text, background, className = ""]) => {
      const span = document.createElement("span");
      if (background) span.appendChild(Object.assign(document.createElement("i"), { className })).style.background = background;
      span.append(text);
      return span;
    }));
  }

  function drawWeights() {
    const found = data.weights;
    const boxes = found.map(([name, share], row) => ({ x0: 0, x1: share, y0: row - 0.3, y1: row + 0.3, color: "var(--hue-1)", hover: `${name}\n${number(100 * share)}%` }));
    const x = { text: "share of the importance", range: [0, 1.04], ticks: [0, 0.25, 0.5, 0.75, 1].map((at) => [at, `${100 * at}%`]) };
    chart("weights", { height: 62 + 30 * found.length, x, y: { ticks: found.map(([name], row) => [row, short(name, narrow.matches ? 20 : 40)]), range: [found.length - 0.4, -0.6] }, boxes });
  }

  start(() => {
    drawHistory();
    if (document.getElementById("weights")) drawWeights();
    data.keys.forEach(drawKey);
  });
})();
