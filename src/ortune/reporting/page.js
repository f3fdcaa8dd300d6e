"use strict";
// Draws the page's charts, sorts and filters its tables, copies its commands. Asks nothing of any network.
(() => {
  const refuse = () => Promise.reject(new Error("this page loads nothing"));
  const loader = { load: refuse, sanitize: refuse, http: refuse, file: refuse };
  const NARROW = 560;
  // Vega-Lite warns of a fixed height wherever the width alone is fitted.
  const quiet = { level: () => quiet, error: (text) => console.error(text), warn: () => quiet, info: () => quiet, debug: () => quiet };

  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const showTip = (_, event, item, value) => {
    tip.hidden = value == null || value === "";
    if (tip.hidden) return;
    const rows = typeof value === "object" ? Object.entries(value) : [["", value]];
    tip.replaceChildren(...rows.filter(([, text]) => text !== "" && text != null).map(([name, text]) => {
      const line = document.createElement("div");
      const label = document.createElement("span");
      label.textContent = name.trim();
      line.append(label, String(text));
      return line;
    }));
    const { clientWidth, clientHeight } = document.documentElement;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, clientWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, clientHeight - tip.offsetHeight - 4))}px`;
  };

  const draw = async (box) => {
    const width = box.clientWidth;
    if (!width || box.drawnAt === width) return;
    box.drawnAt = width;
    const spec = JSON.parse(box.querySelector("script").textContent);
    spec.width = width;
    spec.autosize = { type: "fit-x", contains: "padding" };
    if (width < NARROW) {
      spec.config.axisY.labelLimit = Math.round(width * 0.38);
      spec.config.legend.columns = 1;
      spec.config.legend.labelLimit = width / 2;
      for (const { mark } of spec.layer ?? []) if (mark.limit) mark.limit = width / 3;
    }
    const target = box.querySelector(".drawn");
    const { spec: full } = vegaLite.compile(spec, { logger: quiet });
    if (width < NARROW) (full.config.legend ??= {}).layout = { top: { direction: "vertical" } };
    box.view?.finalize();
    box.view = new vega.View(vega.parse(full, null, { ast: true }), {
      expr: vegaInterpreter.expressionInterpreter,
      renderer: "svg",
      container: target,
      hover: true,
      loader,
    });
    box.view.tooltip(showTip);
    await box.view.runAsync();
    target.querySelector("svg").setAttribute("aria-hidden", "true"); // the box around it says what it shows
    box.dataset.drawn = "yes";
  };
  const seen = new ResizeObserver((entries) => requestAnimationFrame(() => entries.forEach((e) => draw(e.target))));
  document.querySelectorAll(".chart").forEach((box) => seen.observe(box));

  const numberIn = (cell) => {
    const found = cell.textContent.replace(/,/g, "").match(/-?\d+(\.\d+)?/);
    return found ? Number(found[0]) : NaN;
  };
  document.querySelectorAll("table.sorts").forEach((table) => {
    table.querySelectorAll("thead button").forEach((button) => {
      button.addEventListener("click", () => {
        const head = button.closest("th");
        const place = [...head.parentNode.children].indexOf(head);
        const down = head.getAttribute("aria-sort") === "ascending";
        table.querySelectorAll("thead [aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        const compare = head.classList.contains("num")
          ? (a, b) => numberIn(a.cells[place]) - numberIn(b.cells[place]) || 0
          : (a, b) => a.cells[place].textContent.localeCompare(b.cells[place].textContent);
        rows.sort((a, b) => (down ? -compare(a, b) : compare(a, b)));
        table.tBodies[0].append(...rows);
      });
    });
    const filter = table.parentNode.previousElementSibling;
    if (!filter?.matches("input")) return;
    filter.hidden = false;
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/);
      for (const row of table.tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
  });

  document.querySelectorAll("pre").forEach((block) => {
    if (!navigator.clipboard) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "copy";
    button.setAttribute("aria-label", "copy this command");
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.querySelector("code").textContent);
      button.textContent = "copied";
    });
    block.append(button);
  });

  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target?.scrollIntoView();
  };
  addEventListener("hashchange", open);
  if (location.hash) open();
})();
