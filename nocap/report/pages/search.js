// Draws a search: the loss of each trial in turn, and over each key.
(() => {
  const { data, number, chart, start } = page;
  const LOSS = "validation loss (nats per token)";
  const at = (trial, loss, what) => `trial ${trial.trial}${what}: ${number(loss, 4)}\n${trial.overrides.join(" ")}`;

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
    const shown = data.trials.filter((trial) => trial[kind] !== null).sort((a, b) => a.trial - b.trial);
    let low = Infinity;
    const lowest = { x: shown.map((trial) => trial.trial), y: shown.map((trial) => (low = Math.min(low, trial[kind]))), width: 1.5, stairs: true, color: "var(--soft)" };
    chart("history", { height: 380, x: { text: "trial" }, y: { text: LOSS }, marks: [lowest, ...both((trial) => trial.trial)] });
  }

  function drawKey(key, i) {
    const value = (trial) => trial.overrides[i].slice(trial.overrides[i].indexOf("=") + 1);
    const words = [...new Set(data.trials.map(value))];
    const x = (trial) => (key.words ? words.indexOf(value(trial)) : Number(value(trial)));
    const axis = key.words ? { ticks: words.map((word, at) => [at, word]), range: [-0.5, words.length - 0.5] } : { log: key.log };
    chart(`key${i}`, { height: 320, x: { text: key.name, ...axis }, y: { text: LOSS }, marks: both(x) });
  }

  start(() => {
    drawHistory();
    data.keys.forEach(drawKey);
  });
})();
