// What every page of ours does: light and dark, find, sort, fold, copy a cell, and one stop of the Tab key for a widget.
"use strict";
document.documentElement.className = "live";

const start = (() => {
  const all = (selector) => [...document.querySelectorAll(selector)];

  // Where rows are cards, long tables are shut until somebody opens them, or looks for a word in them.
  const folds = all(".fold");
  const cards = matchMedia("(max-width: 740px)");
  const fold = (open) => folds.forEach((one) => (one.open = open));
  cards.addEventListener("change", () => fold(!cards.matches));
  fold(!cards.matches);
  document.addEventListener("input", ({ target }) => target.closest("select") || fold(true));

  // A text that is typed leaves what holds it: an arm where any of its rows does. What is found stays a table or a list, and is counted.
  for (const input of all("input[data-find]")) {
    const box = input.closest(".search");
    const key = (one) => one.dataset.arm ?? one;
    box.hidden = false;
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      const every = all(input.dataset.find);
      const found = new Set(every.filter((one) => one.textContent.toLowerCase().includes(wanted)).map(key));
      for (const one of every) one.classList.toggle("unfound", !found.has(key(one)));
      box.querySelector("output").textContent = wanted && `${found.size} of ${new Set(every.map(key)).size} match`;
    });
  }

  // Rows by a column: numbers by their size, words by the alphabet; the other way at the next click.
  function sort(table, column, up) {
    const size = (row) => Number(row.cells[column].dataset.v ?? 1e99);
    const words = (row) => row.cells[column].textContent;
    const order = (a, b) => size(a) - size(b) || words(a).localeCompare(words(b), "en", { numeric: true });
    const rows = [...table.tBodies[0].rows].sort((a, b) => (up ? order(a, b) : order(b, a)));
    table.tBodies[0].append(...rows);
  }
  for (const table of all("table.sorted")) {
    const head = [...table.tHead.rows[0].cells];
    const first = [...table.tBodies[0].rows];
    // Column −1: as the page had them.
    function show(column, up) {
      head.forEach((cell, i) => (i === column ? cell.setAttribute("aria-sort", up ? "ascending" : "descending") : cell.removeAttribute("aria-sort")));
      if (column < 0) table.tBodies[0].append(...first);
      else sort(table, column, up);
    }
    // Cards have no heads to click: a list of all orders stands above them.
    const select = document.createElement("select");
    select.append(new Option("the page's order", "-1"));
    head.forEach((cell, column) => {
      const title = cell.textContent;
      for (const [words, up] of [["rising", 1], ["falling", 0]]) select.append(new Option(`${title}, ${words}`, `${column} ${up}`));
      const button = Object.assign(document.createElement("button"), { type: "button", title: "Sort by this", textContent: title });
      cell.replaceChildren(button);
      button.addEventListener("click", () => show(column, cell.getAttribute("aria-sort") !== "ascending"));
    });
    select.addEventListener("change", () => show(...select.value.split(" ").map(Number)));
    const label = Object.assign(document.createElement("label"), { className: "sort", textContent: "Sort by " });
    label.append(select);
    table.closest(".scroll").before(label);
  }

  // A double-click takes the whole cell, not the digits up to a point.
  document.addEventListener("dblclick", (event) => {
    const cell = event.target.closest("td");
    if (!cell) return;
    getSelection().selectAllChildren(cell);
    document.execCommand("copy");
  });

  // The Tab key stops at one button of a widget, the one that was last in use; arrow keys, Home and End go on from it.
  function rove(widget) {
    const buttons = () => [...widget.querySelectorAll("button:enabled")];
    const seen = () => buttons().filter((one) => one.checkVisibility());
    const stop = (at) => buttons().forEach((one) => (one.tabIndex = one === at ? 0 : -1));
    const begin = () => stop(seen()[0] ?? buttons()[0]);
    widget.addEventListener("focusin", ({ target }) => stop(target));
    widget.addEventListener("keydown", (event) => {
      const every = seen();
      const at = every.indexOf(event.target);
      const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      every.at(next % every.length).focus();
    });
    document.addEventListener("input", begin);
    begin();
  }

  // Draw everything now, and again whenever the width changes. Colours are the style's own.
  return (drawAll) => {
    const theme = document.getElementById("theme");
    const { style } = document.documentElement;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (style.colorScheme || (dark.matches ? "dark" : "light")) === "dark";
    function paint(scheme) {
      style.colorScheme = scheme;
      theme.textContent = isDark() ? "Light" : "Dark";
    }
    theme.hidden = false;
    theme.addEventListener("click", () => paint(isDark() ? "light" : "dark"));
    dark.addEventListener("change", () => paint(""));
    let width = innerWidth;
    addEventListener("resize", () => innerWidth === width || ((width = innerWidth), drawAll()));
    all("[role=toolbar], .sorted thead").forEach(rove);
    paint("");
    drawAll();
  };
})();
if (!document.getElementById("data")) start(() => {});
