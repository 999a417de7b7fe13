// What every page of ours does: draw with Plotly in the page's colours, and change between light and dark.
"use strict";
const page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 640px)");
  const config = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], toImageButtonOptions: { format: "svg" } };

  const number = (value, digits = 0) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  // Plotly reads a little HTML in its texts; a label is never meant as any.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, size) => plain(text.length > size ? text.slice(0, size - 1) + "…" : text);

  // Plotly needs colours that are already resolved: a hidden element resolves them.
  const probe = document.body.appendChild(document.createElement("i"));
  probe.hidden = true;
  const tint = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };

  function layout(more) {
    const soft = tint("soft");
    const family = getComputedStyle(document.body).fontFamily;
    const axis = { gridcolor: tint("grid"), zeroline: false, linecolor: tint("line"), automargin: true, exponentformat: "B", title: { standoff: 10 } };
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family, size: narrow.matches ? 11 : 13, color: soft },
      margin: { l: narrow.matches ? 44 : 60, r: 12, t: 12, b: 46 },
      hoverlabel: { bgcolor: tint("card"), bordercolor: soft, font: { color: tint("ink"), family, size: 13 }, align: "left" },
      modebar: { color: tint("line"), activecolor: soft, bgcolor: "rgba(0,0,0,0)" },
      showlegend: false,
      hovermode: "closest",
      dragmode: narrow.matches ? false : "zoom", // on a phone a drag scrolls the page
      ...more,
      xaxis: { ...axis, ...more.xaxis, title: { ...axis.title, text: more.xaxis.text } },
      yaxis: { ...axis, ...more.yaxis, title: { ...axis.title, text: more.yaxis.text } },
    };
  }

  const draw = (id, traces, more) => Plotly.react(id, traces, layout(more), { ...config, displayModeBar: narrow.matches ? false : "hover" });

  // Draw everything now, and again whenever colours or room change.
  function start(drawAll) {
    const theme = document.getElementById("theme");
    const isDark = () => (root.style.colorScheme || (dark.matches ? "dark" : "light")) === "dark";
    function paint(scheme) {
      root.style.colorScheme = scheme;
      theme.textContent = isDark() ? "Light" : "Dark";
      drawAll();
    }
    theme.hidden = false;
    theme.addEventListener("click", () => paint(isDark() ? "light" : "dark"));
    dark.addEventListener("change", () => paint(""));
    narrow.addEventListener("change", drawAll);
    let chosen = "";
    addEventListener("beforeprint", () => {
      chosen = root.style.colorScheme;
      paint("light"); // paper is white
    });
    addEventListener("afterprint", () => paint(chosen));
    paint("");
  }

  return { data, narrow, number, plain, short, tint, draw, start };
})();
