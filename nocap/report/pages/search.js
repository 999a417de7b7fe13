// Draws a search: the loss of each trial in turn, what mattered, and the loss over each key, another key as the colour.
(() => {
  const { data, narrow, number, short, chart, start } = page;
  const LOSS = "validation loss (nats per token)";

  const ended = data.trials.filter((trial) => trial.val_loss !== null).sort((a, b) => a.trial - b.trial);

  function points(x, color) {
    return {
      x: ended.map(x),
      y: ended.map((trial) => trial.val_loss),
      size: 9,
      color: "var(--hue-1)",
      colors: color && ended.map(color),
      opacity: 0.8,
      hover: ended.map((trial) => `trial ${trial.trial}: ${number(trial.val_loss, 4)}\n${trial.overrides.join(" ")}`),
    };
  }

  function drawHistory() {
    let low = Infinity;
    const y = ended.map((trial) => (low = Math.min(low, trial.val_loss)));
    const lowest = { x: ended.map((trial) => trial.trial), y, width: 1.5, stairs: true, color: "var(--soft)" };
    chart("history", { height: 380, x: { text: "trial" }, y: { text: LOSS }, marks: [lowest, points((trial) => trial.trial)] });
  }

  function drawWeights() {
    const boxes = data.weights.map(([name, share], row) => (
      { x0: 0, x1: share, y0: row - 0.3, y1: row + 0.3, color: "var(--hue-1)", hover: `${name}\n${number(100 * share)}%` }
    ));
    const x = { text: "share of the importance", range: [0, 1.04], ticks: [0, 0.25, 0.5, 0.75, 1].map((at) => [at, `${100 * at}%`]) };
    const ticks = data.weights.map(([name], row) => [row, short(name, narrow.matches ? 20 : 40)]);
    chart("weights", { height: 62 + 30 * boxes.length, x, y: { ticks, range: [boxes.length - 0.4, -0.6] }, boxes });
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
    const other = data.keys.findIndex(({ name }) => name !== key.name);
    const colours = other < 0 ? null : hues(other);
    chart(`key${i}`, { height: 320, x: { text: key.name, ...axis }, y: { text: LOSS }, marks: [points(x, colours?.color)] });
    document.getElementById(`hues${i}`)?.replaceChildren(...colours.told.map(([text, background, className = ""]) => {
      const span = document.createElement("span");
      if (background) span.appendChild(Object.assign(document.createElement("i"), { className })).style.background = background;
      span.append(text);
      return span;
    }));
  }

  start(() => {
    drawHistory();
    if (data.weights.length) drawWeights();
    data.keys.forEach(drawKey);
  });
})();
