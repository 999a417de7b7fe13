// Draws a search: the loss of each trial in turn, and over each key.
(() => {
  const { data, number, chart, start } = page;
  const LOSS = "validation loss (nats per token)";
  const at = (trial, loss, what) => `trial ${trial.number}${what}: ${number(loss, 4)}\n${trial.words}`;

  function points(kind, x) {
    const short = kind === "screened";
    const shown = data.trials.filter((trial) => trial[kind] !== null);
    return {
      x: shown.map(x),
      y: shown.map((trial) => trial[kind]),
      size: 9,
      open: short,
      color: "var(--hue-1)",
      opacity: 0.8,
      hover: shown.map((trial) => at(trial, trial[kind], short ? `, ${data.screen} of its steps` : "")),
    };
  }
  const both = (x) => (data.screen === null ? [points("val_loss", x)] : [points("screened", x), points("val_loss", x)]);

  function drawHistory() {
    const kind = data.screen === null ? "val_loss" : "screened";
    const shown = data.trials.filter((trial) => trial[kind] !== null).sort((a, b) => a.number - b.number);
    let low = Infinity;
    const lowest = { x: shown.map((trial) => trial.number), y: shown.map((trial) => (low = Math.min(low, trial[kind]))), width: 1.5, stairs: true, color: "var(--soft)" };
    chart("history", { height: 380, x: { text: "trial" }, y: { text: LOSS }, marks: [lowest, ...both((trial) => trial.number)] });
  }

  function drawKey(key, i) {
    const words = [...new Set(data.trials.map((trial) => trial.values[i]))];
    const x = (trial) => (key.words ? words.indexOf(trial.values[i]) : Number(trial.values[i]));
    const axis = key.words ? { ticks: words.map((word, at) => [at, word]), range: [-0.5, words.length - 0.5] } : { log: key.log };
    chart(`key${i}`, { height: 320, x: { text: key.name, ...axis }, y: { text: LOSS }, marks: both(x) });
  }

  start(() => {
    drawHistory();
    data.keys.forEach(drawKey);
  });
})();
