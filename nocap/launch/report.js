// Draws a search: the loss of each trial in turn, and over each key.
(() => {
  const { data, number, plain, tint, draw, start } = page;
  const LOSS = "validation loss (nats per token)";
  const at = (trial, loss, what) => `<b>trial ${trial.number}</b>${what}: ${number(loss, 4)}<br>${plain(trial.words)}`;

  function points(kind, x) {
    const short = kind === "screened";
    const shown = data.trials.filter((trial) => trial[kind] !== null);
    return {
      x: shown.map(x),
      y: shown.map((trial) => trial[kind]),
      mode: "markers",
      marker: { size: 9, color: tint("hue-1"), symbol: short ? "circle-open" : "circle", opacity: 0.8 },
      hovertext: shown.map((trial) => at(trial, trial[kind], short ? `, ${data.screen} of its steps` : "")),
      hoverinfo: "text",
    };
  }
  const both = (x) => (data.screen === null ? [points("val_loss", x)] : [points("screened", x), points("val_loss", x)]);

  function drawHistory() {
    const kind = data.screen === null ? "val_loss" : "screened";
    const shown = data.trials.filter((trial) => trial[kind] !== null).sort((a, b) => a.number - b.number);
    let low = Infinity;
    const lowest = { x: shown.map((trial) => trial.number), y: shown.map((trial) => (low = Math.min(low, trial[kind]))), mode: "lines", line: { color: tint("soft"), width: 1.5, shape: "hv" }, hoverinfo: "skip" };
    draw("history", [lowest, ...both((trial) => trial.number)], { height: 380, xaxis: { text: "trial", dtick: data.trials.length < 30 ? 1 : undefined }, yaxis: { text: LOSS } });
  }

  function drawKey(key, i) {
    const x = (trial) => (key.words ? plain(trial.values[i]) : Number(trial.values[i]));
    draw(`key${i}`, both(x), { height: 320, xaxis: { text: plain(key.name), type: key.words ? "category" : key.log ? "log" : "linear" }, yaxis: { text: LOSS } });
  }

  start(() => {
    drawHistory();
    data.keys.forEach(drawKey);
  });
})();
