// Draws the profile: nested bars, roofline, curve.
(() => {
  const { data, narrow, number, plain, tint, draw, start } = page;
  const COLORS = 6; // hue-1 … hue-6
  const ms = (value) => `${number(value, value >= 100 ? 0 : value >= 1 ? 1 : 3)} ms`;

  function drawTree() {
    const whole = data.tree[0].ms;
    const own = data.tree.map((node) => tint(node.parent === "" ? "grid" : `hue-${1 + (["model", "optimizer", "data"].indexOf(node.id.split("/")[0]) + node.id.split("/").length) % COLORS}`));
    draw(
      "tree",
      [
        {
          type: "icicle",
          ids: data.tree.map((node) => node.id),
          parents: data.tree.map((node) => node.parent),
          labels: data.tree.map((node) => plain(node.name)),
          values: data.tree.map((node) => node.ms),
          branchvalues: "total",
          sort: false,
          tiling: { orientation: "v" },
          pathbar: { visible: true },
          maxdepth: narrow.matches ? 4 : 7,
          marker: { colors: own, line: { color: tint("card"), width: 1 } },
          hovertext: data.tree.map((node) => `<b>${plain(node.name)}</b><br>${ms(node.ms)}, ${number((100 * node.ms) / whole, 1)}% of the step`),
          hoverinfo: "text",
        },
      ],
      { height: narrow.matches ? 380 : 520, margin: { l: 0, r: 0, t: 4, b: 4 }, xaxis: { visible: false }, yaxis: { visible: false } },
    );
  }

  function drawRoofline() {
    const at = data.points.map((point) => point.intensity);
    const [low, high] = [Math.min(1, ...at) / 4, Math.max(1, ...at) * 16];
    const peaks = data.peaks.map((peak, i) => {
      const ridge = peak.flops / data.bytes_per_s;
      const x = [low, ridge, Math.max(high, 2 * ridge)];
      return { x, y: x.map((v) => Math.min(peak.flops, v * data.bytes_per_s)), mode: "lines", line: { color: tint("soft"), width: 1.5, dash: i ? "6px,4px" : "solid" }, hovertext: `${plain(peak.name)}: ${number(peak.flops / 1e9, 1)} GFLOP/s`, hoverinfo: "text" };
    });
    const points = {
      x: at,
      y: data.points.map((point) => point.flop_s),
      mode: narrow.matches ? "markers" : "markers+text",
      text: data.points.map((point) => plain(point.name)),
      textposition: "top center",
      textfont: { size: 11 },
      marker: { size: data.points.map((point) => 7 + 60 * point.share), color: tint("hue-1"), opacity: 0.75 },
      hovertext: data.points.map((point) => `<b>${plain(point.name)}</b><br>${number(point.flop_s / 1e9, 1)} GFLOP/s at ${number(point.intensity, 1)} FLOPs a byte`),
      hoverinfo: "text",
    };
    draw("roofline", [...peaks, points], { height: 420, xaxis: { type: "log", text: "FLOPs a byte moved" }, yaxis: { type: "log", text: "FLOP/s", exponentformat: "SI" } });
  }

  function drawCurve() {
    if (!data.curve.length) return;
    const traces = data.curve.flatMap((row, i) =>
      [["attention", "solid", "scores and weighted sum"], ["step", "dot", "step"]].map(([key, dash, what]) => ({
        x: row.T,
        y: row[`${key}_ms`],
        mode: "lines+markers",
        name: plain(row.name),
        line: { color: tint(`hue-${i % 7}`), dash, width: 2 },
        hovertext: row.T.map((T, at) => `<b>${plain(row.name)}</b>, ${what}<br>T=${T}: ${ms(row[`${key}_ms`][at])}<br>T^${number(row[key].exponent, 2)}`),
        hoverinfo: "text",
      })),
    );
    draw("curve", traces, { height: 460, xaxis: { type: "log", text: "sequence length (tokens)", tickvals: data.curve[0].T, ticktext: data.curve[0].T.map(String) }, yaxis: { type: "log", text: "ms: solid, scores and weighted sum of one layer; dotted, the step" } });
  }

  start(() => {
    drawTree();
    drawRoofline();
    drawCurve();
  });
})();
