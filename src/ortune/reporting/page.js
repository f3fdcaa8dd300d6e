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
      spec.config.legend.labelLimit = Math.round(width * 0.6);
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

  // Two graphs, a row a step: names, what became of it, widths; arcs beside them say what reads what.
  const make = (tag, name, ...inside) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    element.append(...inside);
    return element;
  };
  const ROW = 40, GUTTER = 26, SHOWN = 200;
  const drawArcs = (rows, side) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const place = new Map(rows.map(([index], row) => [index, row]));
    const middle = (row) => row * ROW + ROW / 2;
    let d = "", dots = "";
    rows.forEach(([, step], row) => {
      if (!step[side]) return;
      dots += `M${GUTTER - 3},${middle(row)}h.1`;
      for (const read of step[side][4]) {
        const from = place.get(read);
        if (from === undefined) continue;
        const bend = Math.max(2, GUTTER - 3 - 5 * Math.log2(Math.abs(row - from)) - 4 * (Math.abs(row - from) > 1));
        d += `M${GUTTER - 3},${middle(from)}C${bend},${middle(from)} ${bend},${middle(row)} ${GUTTER - 3},${middle(row)}`;
      }
    });
    for (const [line, name] of [[d, "edge"], [dots, "dot"]]) {
      const path = document.createElementNS(svg.namespaceURI, "path");
      path.setAttribute("d", line);
      path.setAttribute("class", name);
      svg.append(path);
    }
    svg.setAttribute("class", `arcs of-side-${side}`);
    svg.setAttribute("aria-hidden", "true");
    svg.setAttribute("height", rows.length * ROW);
    return svg;
  };
  const drawGraph = (box) => {
    const { timed, words, precisions, regions, steps } = JSON.parse(box.querySelector("script").textContent);
    const text = (width) => String(timed && width < 100 ? Number(width.toPrecision(width < 10 ? 2 : 3)) : Math.round(width));
    const tone = (precision) => precision < 0 ? "other" : precisions[precision].replace(/[^a-z0-9]+/g, "-");
    const sums = (places, side) => {
      const found = new Map();
      for (const place of places) {
        const [, , width, precision] = steps[place][side] || [0, 0, 0, -1];
        if (width) found.set(precision, (found.get(precision) ?? 0) + width);
      }
      return [...found].sort((a, b) => b[1] - a[1]);
    };
    const total = (parts) => parts.reduce((sum, [, width]) => sum + width, 0);
    const bar = (parts, longest, side) => make("span", `bar of-side-${side}`, ...parts.map(([precision, width]) => {
      const part = make("i", `p-${tone(precision)}`);
      part.style.width = `${(100 * width) / longest}%`;
      part.title = `${precisions[precision] ?? "no precision of its own"}: ${text(width)}${timed ? " ms" : ""}`;
      return part;
    }));
    const bars = (places, longest) => {
      const [before, after] = [1, 2].map((side) => sums(places, side));
      const change = before.length || after.length ? `${text(total(before))} \u2192 ${text(total(after))}` : "";
      return [bar(before, longest, 1), make("span", "change", change), bar(after, longest, 2)];
    };
    const longestOf = (lists) => Math.max(1e-9, ...lists.flatMap((places) => [1, 2].map((side) => total(sums(places, side)))));
    const tell = (places) => {
      const counts = words.map((word, kind) => [word, places.filter((place) => steps[place][0] === kind).length]);
      return counts.filter(([word, count]) => word && count).map(([word, count]) => `${count} ${word}`).join(", ") || "as it was";
    };
    const name = (side, before) => {
      if (!side) return make("span", "node none", "\u2013");
      const node = make("span", "node", make("b", "", side[1]), ` ${side[0]}`);
      node.title = `${side[1]}: ${side[0]}`;
      return node;
    };
    const list = (places) => {
      const rows = places.map((place) => [place, steps[place]]);
      const longest = longestOf(places.map((place) => [place]));
      const body = make("div", "steps", ...rows.map(([place, step]) => {
        const word = make("span", "word", words[step[0]]);
        word.title = step[3];
        return make("div", "step", name(step[1]), word, name(step[2]), ...bars([place], longest));
      }));
      body.append(drawArcs(rows, 1), drawArcs(rows, 2));
      return body;
    };
    const fold = (title, places, longest, inside, open) => {
      const head = make("span", "region", make("b", "", title), ` ${tell(places)}`);
      const details = make("details", "", make("summary", "", head, make("span", "sides", ...bars(places, longest))));
      const fill = () => details.open && details.children.length < 2 && details.append(inside());
      details.addEventListener("toggle", fill);
      details.open = open;
      fill();
      return details;
    };
    const members = (parts, open) => {
      if (parts.length === 1) return list(parts[0][1]);
      const longest = longestOf(parts.map(([, places]) => places));
      return make("div", "members", ...parts.map(([title, places]) => fold(title || "other", places, longest, () => list(places), open)));
    };
    const rows = make("div", "rows"), found = make("span", "found");
    found.setAttribute("role", "status");
    const search = make("input");
    search.type = "search";
    search.placeholder = "node or operator";
    search.setAttribute("aria-label", "find nodes");
    const show = () => {
      const asked = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = SHOWN, count = 0;
      const fits = (place) => {
        const all = [words[steps[place][0]], ...[1, 2].map((side) => (steps[place][side] || []).slice(0, 2).join(" "))].join(" ").toLowerCase();
        return asked.every((word) => all.includes(word)) && ++count <= left;
      };
      const kept = regions.map(([title, parts]) => [title, asked.length ? parts.map(([member, places]) => [member, places.filter(fits)]).filter(([, places]) => places.length) : parts])
        .filter(([, parts]) => parts.length);
      const longest = longestOf(kept.map(([, parts]) => parts.flatMap(([, places]) => places)));
      rows.replaceChildren(...kept.map(([title, parts]) => fold(parts.length > 1 ? `${title} \u00d7 ${parts.length}` : parts[0][0] || title, parts.flatMap(([, places]) => places), longest, () => members(parts, asked.length > 0), asked.length > 0)));
      found.textContent = asked.length ? `${count} found${count > left ? `, the first ${left} shown` : ""}` : "";
    };
    search.addEventListener("input", show);
    const legend = precisions.map((precision, index) => make("span", "key", make("i", `p-${tone(index)}`), precision));
    box.append(make("div", "tools", search, found, ...legend), make("div", "step heads", make("b", "", "original"), make("span", "word", timed ? "ms a run" : "nodes"), make("b", "", "winner")), rows);
    show();
  };

  const numberIn = (cell) => {
    const found = cell.textContent.replace(/,/g, "").match(/-?\d+(\.\d+)?/);
    return found ? Number(found[0]) : NaN;
  };
  const makeSortable = (table) => {
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
  };

  const addCopyButton = (block) => {
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
  };

  const actOn = (part) => {
    part.querySelectorAll(".chart").forEach((box) => seen.observe(box));
    part.querySelectorAll(".graph").forEach(drawGraph);
    part.querySelectorAll("table.sorts").forEach(makeSortable);
    part.querySelectorAll("pre").forEach(addCopyButton);
  };
  actOn(document);
  document.addEventListener("replaced", (event) => actOn(event.target)); // of a page that is kept up to date

  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target?.scrollIntoView();
  };
  addEventListener("hashchange", open);
  if (location.hash) open();
})();
