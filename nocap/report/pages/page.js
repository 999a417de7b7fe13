// What every page of ours does: light and dark, find, sort, and copy a cell.
"use strict";
document.documentElement.className = "live";

const start = (() => {
  const all = (selector) => [...document.querySelectorAll(selector)];

  // A text that is typed leaves what holds it; what is found stays a table or a list.
  for (const input of all("input[data-find]")) {
    input.closest("label").hidden = false;
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      for (const one of all(input.dataset.find)) one.classList.toggle("unfound", !one.textContent.toLowerCase().includes(wanted));
    });
  }

  // Rows by a column: numbers by their size, words by the alphabet; the other way at the next click.
  function sort(table, column, up) {
    const size = (row) => Number(row.cells[column].dataset.v);
    const words = (row) => row.cells[column].textContent;
    const order = (a, b) => size(a) - size(b) || words(a).localeCompare(words(b), "en", { numeric: true });
    const rows = [...table.tBodies[0].rows].sort((a, b) => (up ? order(a, b) : order(b, a)));
    table.tBodies[0].append(...rows);
  }
  for (const table of all("table.sorted")) {
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: cell.textContent });
      cell.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = cell.getAttribute("aria-sort") !== "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        cell.setAttribute("aria-sort", up ? "ascending" : "descending");
        sort(table, column, up);
      });
    });
  }

  // A double-click takes the whole cell, not the digits up to a point.
  document.addEventListener("dblclick", (event) => {
    const cell = event.target.closest("td");
    if (!cell) return;
    getSelection().selectAllChildren(cell);
    document.execCommand("copy");
  });

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
    paint("");
    drawAll();
  };
})();
if (!document.getElementById("data")) start(() => {});
