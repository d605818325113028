"use strict";
document.querySelectorAll("input[data-rows]").forEach((field) => {
  const rows = [...document.getElementById(field.dataset.rows).querySelectorAll("tbody tr")];
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row) => { row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word)); });
  });
});
