// Draws the profile: nested bars, roofline.
(() => {
  const { data, narrow, number, chart, start } = page;
  const ms = (value) => `${number(value, value >= 100 ? 0 : value >= 1 ? 1 : 3)} ms`;
  const whole = data.tree[0];
  let top = whole; // the bar that fills the width

  // A level for each depth below `top`, whose bars stand on what they belong to.
  function drawTree() {
    const boxes = [];
    const deep = narrow.matches ? 4 : 7;
    const hue = (node) => 1 + (((node.id.split("/")[1] === "model" ? 0 : -1) + node.id.split("/").length + 5) % 6);
    function add(node, x0, level) {
      const hover = `${node.name}\n${ms(node.ms)}, ${number((100 * node.ms) / whole.ms, 1)}% of the step`;
      const color = node === whole ? "var(--grid)" : `color-mix(in srgb, var(--hue-${hue(node)}) 55%, var(--card))`; // so that words can be read on it
      const parent = data.tree.find((other) => other.id === node.parent);
      const click = () => {
        top = node === top ? parent ?? whole : node;
        drawTree();
      };
      boxes.push({ x0, x1: x0 + node.ms, y0: level, y1: level + 1, words: node.name, color, hover, click });
      if (level + 1 >= deep) return;
      for (const child of data.tree.filter((other) => other.parent === node.id)) {
        add(child, x0, level + 1);
        x0 += child.ms;
      }
    }
    add(top, 0, 0);
    chart("tree", { height: narrow.matches ? 380 : 520, x: { bare: true, range: [0, top.ms] }, y: { bare: true, range: [deep, 0] }, boxes });
  }

  function drawRoofline() {
    const at = data.points.map((point) => point.intensity);
    const [low, high] = [Math.min(1, ...at) / 4, Math.max(1, ...at) * 16];
    const peaks = data.peaks.map((peak, i) => {
      const ridge = peak.flops / data.bytes_per_s;
      const x = [low, ridge, Math.max(high, 2 * ridge)];
      const hover = x.map(() => `${peak.name}: ${number(peak.flops / 1e9, 1)} GFLOP/s`);
      return { x, y: x.map((v) => Math.min(peak.flops, v * data.bytes_per_s) / 1e9), width: 1.5, color: "var(--soft)", dash: i ? "6 4" : undefined, hover };
    });
    const points = {
      x: at,
      y: data.points.map((point) => point.flop_s / 1e9),
      label: data.points.map((point) => point.name),
      size: data.points.map((point) => 7 + 60 * point.share),
      color: "var(--hue-1)",
      opacity: 0.75,
      hover: data.points.map((point) => `${point.name}\n${number(point.flop_s / 1e9, 1)} GFLOP/s at ${number(point.intensity, 1)} FLOPs a byte`),
    };
    chart("roofline", { height: Math.max(420, 100 + 28 * at.length), x: { log: true, text: "FLOPs a byte moved" }, y: { log: true, text: "GFLOP/s" }, marks: [...peaks, points] });
  }

  start(() => {
    drawTree();
    drawRoofline();
  });
})();
