"use strict";
// Wakes the page: the theme, the tables that stand in it, the sections that are drawn.

const theme = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
const nameTheme = () => (theme.textContent = isDark() ? "Light" : "Dark");
theme.title = "Change between light and dark";
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
system.addEventListener("change", nameTheme);
nameTheme();
theme.hidden = false;

for (const box of document.querySelectorAll("[data-table]")) liveTable(box, box.dataset.table, data.name);
for (const box of document.querySelectorAll("[data-draw]")) DRAW[box.dataset.draw](box);

addEventListener("scroll", () => Plot.active?.placeTooltip(), { passive: true });
document.documentElement.dataset.ready = Math.round(performance.now());
