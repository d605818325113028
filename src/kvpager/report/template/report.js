"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const themes = JSON.parse(document.getElementById("themes").textContent);
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null; // null: as the system says
  let drawn = [];

  const theme = () => chosen ?? (dark.matches ? "dark" : "light");

  async function draw() {
    const now = theme();
    root.dataset.theme = now;
    root.dataset.drawn = "no";
    drawn.forEach((result) => result.finalize());
    const places = [...document.querySelectorAll(".chart")];
    drawn = await Promise.all(places.map((place) => vegaEmbed(place, specs[place.dataset.chart], {
      mode: "vega-lite", renderer: "svg", actions: false, config: themes[now], tooltip: { theme: now },
    })));
    root.dataset.drawn = now;
  }

  document.getElementById("theme").addEventListener("click", () => {
    chosen = theme() === "dark" ? "light" : "dark";
    draw();
  });
  dark.addEventListener("change", () => { if (chosen === null) draw(); });
  draw();
})();
