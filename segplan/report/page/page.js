"use strict";
/* Draws the charts of the cards that are chosen, and hides the rows of the others. */
(() => {
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const holders = [...document.querySelectorAll("[data-chart]")];
  const boxes = [...document.querySelectorAll("#filters input[name=card]")];
  const pick = document.getElementById("pick-workload");
  const views = new Map();
  const chosen = () => new Set(boxes.filter((box) => box.checked).map((box) => box.value));

  /* A copy of a specification with the rows of the chosen cards only. */
  const keep = (node, cards) => {
    if (Array.isArray(node)) return node.map((part) => keep(part, cards));
    if (node === null || typeof node !== "object") return node;
    const copy = {};
    for (const [key, value] of Object.entries(node)) copy[key] = keep(value, cards);
    if (node.data && Array.isArray(node.data.values)) {
      copy.data = { values: node.data.values.filter((row) => cards.has(row.card)) };
    }
    return copy;
  };

  /* The names in the rows of a specification, and no others in the scales of names. */
  const names = (node, found = new Set()) => {
    if (node === null || typeof node !== "object") return found;
    if (node.data && Array.isArray(node.data.values)) {
      for (const row of node.data.values) found.add(row.name);
    }
    for (const value of Object.values(node)) names(value, found);
    return found;
  };
  const narrow = (node, kept) => {
    if (node === null || typeof node !== "object") return;
    if (node.field === "name" && node.scale && node.scale.domain) {
      node.scale.domain = node.scale.domain.filter((name) => kept.has(name));
    }
    for (const value of Object.values(node)) narrow(value, kept);
  };

  const fitted = (name, width) => {
    const cards = chosen();
    const spec = keep(specs[name], cards);
    narrow(spec, names(spec));
    spec.config = { ...spec.config };
    if (spec.facet) {
      const aside = 34;
      const gap = spec.spacing.column;
      const columns = Math.max(1, Math.min(cards.size, Math.floor((width + gap - aside) / (205 + gap))));
      spec.columns = columns;
      spec.spec.width = Math.floor((width - aside - (columns - 1) * gap) / columns);
      return spec;
    }
    spec.height = (specs[name].height / boxes.length) * cards.size;
    if (width < 560) {
      spec.config.axis = { ...spec.config.axis, labelLimit: 108, labelFontSize: 11 };
      for (const layer of spec.layer) {
        const legend = layer.encoding.color && layer.encoding.color.legend;
        if (legend) legend.columns = 2;
      }
    }
    return spec;
  };

  const draw = async (holder) => {
    const name = holder.dataset.chart;
    const old = views.get(name);
    if (old) old.finalize();
    views.delete(name);
    const width = holder.clientWidth;
    holder.dataset.width = String(width);
    if (!width || !chosen().size) {
      holder.replaceChildren();
      return;
    }
    const made = await vegaEmbed(holder, fitted(name, width), {
      mode: "vega-lite",
      renderer: "svg",
      actions: false,
      ast: true,
      tooltip: { theme: "page", disableDefaultStyle: true },
    });
    views.set(name, made);
  };

  let turn = 0;
  const drawAll = async () => {
    const mine = ++turn;
    document.documentElement.dataset.charts = "drawing";
    for (const holder of holders) {
      try {
        await draw(holder);
      } catch (error) {
        holder.textContent = "This chart could not be drawn; the table holds its numbers.";
        console.error(error);
      }
      if (mine !== turn) return;
      await new Promise((next) => setTimeout(next));
    }
    document.documentElement.dataset.charts = "drawn";
  };

  const apply = () => {
    const cards = chosen();
    for (const row of document.querySelectorAll("tr[data-card]")) {
      row.hidden = !cards.has(row.dataset.card);
    }
    for (const part of document.querySelectorAll("section[data-workload]")) {
      part.hidden = pick.value !== "" && part.dataset.workload !== pick.value;
    }
    const all = cards.size === boxes.length;
    const text = all ? `all ${boxes.length}` : `${cards.size} of ${boxes.length}`;
    document.getElementById("picked").textContent = text;
    const which = pick.selectedOptions[0].textContent;
    document.getElementById("said").textContent = `Shown: workload ${which}, cards ${text}.`;
    drawAll();
  };

  const filters = document.getElementById("filters");
  filters.hidden = false;
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("change", apply);
  for (const [id, on] of [["all-cards", true], ["no-cards", false]]) {
    document.getElementById(id).addEventListener("click", () => {
      for (const box of boxes) box.checked = on;
      apply();
    });
  }
  const menu = filters.querySelector("details");
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && menu.open) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
  document.addEventListener("click", (event) => {
    if (!menu.contains(event.target)) menu.open = false;
  });

  const theme = document.getElementById("theme");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const label = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  dark.addEventListener("change", label);
  label();

  let waiting = 0;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (holders.some((h) => h.clientWidth && String(h.clientWidth) !== h.dataset.width)) drawAll();
    }, 150);
  });
  drawAll();
})();
