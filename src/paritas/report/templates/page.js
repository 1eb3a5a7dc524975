"use strict";
// The value under the pointer, or under the arrow keys, of a strip. Without this script the page says the same in its tables.
const readout = document.querySelector(".readout");
const words = (cell) =>
  cell === undefined ? "not asked"
  : cell === "-" ? "no difference"
  : cell === "x" ? "not finite"
  : `${Number((10 ** (Number(cell) / 100)).toPrecision(2)).toLocaleString("en")} floors`;

for (const strip of document.querySelectorAll("[data-cells]")) {
  const cells = strip.dataset.cells.split(" ");
  const length = Number(strip.dataset.length);
  const width = Number(strip.dataset.cell);
  const summary = strip.getAttribute("aria-label");
  const cursor = document.createElement("i");
  cursor.hidden = true;
  strip.append(cursor);

  const show = (index) => {
    const first = index * width;
    const place = width > 1 ? `${first} to ${first + width - 1}` : `${first}`;
    const text = `${strip.dataset.axis} ${place}: ${words(cells[index])}`;
    cursor.hidden = false;
    cursor.style.left = `${(100 * (index + 0.5)) / length}%`;
    readout.hidden = false;
    readout.textContent = `${summary.split(":")[0]}, ${text}`;
    strip.setAttribute("aria-valuenow", index);
    strip.setAttribute("aria-valuetext", text);
  };
  const hide = () => {
    cursor.hidden = true;
    readout.hidden = true;
  };

  const panel = [...strip.closest("table").querySelectorAll("[data-cells]")];
  const row = panel.indexOf(strip);
  strip.tabIndex = row ? -1 : 0; // one stop of the Tab key for each panel; arrows go on from there
  strip.setAttribute("role", "slider");
  strip.setAttribute("aria-valuemin", 0);
  strip.setAttribute("aria-valuemax", cells.length - 1);
  strip.setAttribute("aria-valuenow", 0);
  strip.setAttribute("aria-valuetext", summary);
  strip.addEventListener("pointermove", (event) => {
    const box = strip.getBoundingClientRect();
    const at = Math.floor((length * (event.clientX - box.left)) / box.width);
    if (at >= 0 && at < length) show(at);
  });
  strip.addEventListener("pointerleave", hide);
  strip.addEventListener("blur", hide);
  strip.addEventListener("focus", () => {
    for (const each of panel) each.tabIndex = each === strip ? 0 : -1;
  });
  strip.addEventListener("keydown", (event) => {
    const other = { ArrowUp: panel[row - 1], ArrowDown: panel[row + 1] }[event.key];
    if (other) {
      event.preventDefault();
      other.focus();
      return;
    }
    const now = Number(strip.getAttribute("aria-valuenow"));
    const last = cells.length - 1;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last, PageUp: now - 10, PageDown: now + 10 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(Math.min(Math.max(to, 0), last));
  });
}

// What is folded on the screen is open on paper.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const each of folded) each.open = true;
});
addEventListener("afterprint", () => {
  for (const each of folded) each.open = false;
});
