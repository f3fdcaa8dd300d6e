"use strict";
// Fills a frame with the parts of a page and keeps them up to date. Asks its own server alone.
(() => {
  const EVERY_MS = 2000;
  const main = document.querySelector("main");
  const title = main.querySelector("h1"), about = main.querySelector("header p"), foot = main.querySelector("footer");
  const make = (tag, name, ...inside) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    element.append(...inside);
    return element;
  };
  const shown = new Map();
  let seen = "", until = 0;

  const bar = make("progress", ""), plan = make("strong", ""), left = make("span", ""), best = make("p", "");
  bar.setAttribute("aria-label", "share of the search time that is used");
  const now = make("section", "now", make("p", "", plan, " ", left), bar, best);
  const late = make("p", "warn");
  late.setAttribute("role", "status");
  now.hidden = true;
  main.insertBefore(now, foot);
  foot.prepend(late);

  const tick = () => {
    const seconds = Math.max(0, Math.round(until - Date.now() / 1000));
    left.textContent = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")} left`;
  };
  const showNow = (state) => {
    now.hidden = !state.plan;
    if (now.hidden) return;
    plan.textContent = state.plan;
    best.textContent = `best so far: ${state.best}`;
    bar.value = Math.max(bar.value || 0, state.share);
    until = state.until;
    tick();
  };

  // What a person opened or typed stays when a part is replaced.
  const replace = (name, html) => {
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    const section = fresh.content.firstElementChild, former = shown.get(name)?.section;
    const details = [...(former?.querySelectorAll("details") ?? [])];
    section.querySelectorAll("details").forEach((one, place) => { one.open = details[place]?.open ?? one.open; });
    if (former) section.style.minHeight = `${former.offsetHeight}px`;
    former?.querySelectorAll(".chart").forEach((box) => box.view?.finalize());
    const typed = [...(former?.querySelectorAll("input") ?? [])].map((input) => input.value);
    if (former) former.replaceWith(section);
    else main.insertBefore(section, foot);
    section.dispatchEvent(new Event("replaced", { bubbles: true }));
    section.querySelectorAll("input").forEach((input, place) => {
      if (!typed[place]) return;
      input.value = typed[place];
      input.dispatchEvent(new Event("input"));
    });
    setTimeout(() => section.style.removeProperty("min-height"), 1000);
    shown.set(name, { html, section });
  };
  const showParts = (parts) => {
    for (const [name, { section }] of shown) {
      if (parts.some(([other]) => other === name)) continue;
      section.remove();
      shown.delete(name);
    }
    for (const [name, html] of parts) if (shown.get(name)?.html !== html) replace(name, html);
    for (const [name] of parts) main.insertBefore(shown.get(name).section, foot);
  };

  const box = make("section", "packs", make("h2", "", "Pack a plan"), make("p", "", "Into a bundle in the run's folder, which runs as it was measured."));
  box.id = "pack";
  const pack = async (key, button, answer) => {
    button.disabled = true;
    answer.textContent = "packing \u2026";
    try {
      const response = await fetch("pack", { method: "POST", body: key });
      const told = await response.json();
      answer.textContent = told.bundle ? `${told.bundle} (${told.size})` : `${told.error}: ${told.fix}`;
    } catch {
      answer.textContent = "the server does not answer";
    }
    button.disabled = false;
  };
  const showPackable = (plans) => {
    box.querySelectorAll("div").forEach((row) => row.remove());
    for (const { key, plan, text } of plans) {
      const button = make("button", "", "Pack"), answer = make("code", "");
      button.type = "button";
      button.setAttribute("aria-label", `pack ${plan}`);
      answer.setAttribute("role", "status");
      button.addEventListener("click", () => pack(key, button, answer));
      box.append(make("div", "", button, make("span", "", make("b", "", plan), ` ${text} `, answer)));
    }
    if (plans.length) (shown.get("plans")?.section ?? foot.previousElementSibling).after(box);
    else box.remove();
  };

  const show = (told) => {
    showNow(told.now);
    late.textContent = "";
    if (!told.parts) return;
    seen = told.stamp;
    document.title = `ortune: ${told.title}`;
    title.textContent = told.title;
    about.textContent = told.about;
    if (told.start) {
      const link = make("a", "", "all runs");
      link.href = "../".repeat(location.pathname.split("/").length - 3);
      about.append(" ", link);
    }
    showParts(told.parts);
    showPackable(told.packable ?? []);
  };
  const ask = async () => {
    try {
      const response = await fetch(`data.json?seen=${encodeURIComponent(seen)}`);
      if (response.ok) show(await response.json());
      else late.textContent = `Not up to date: ${await response.text()}`;
    } catch {
      late.textContent = "Not up to date: ortune ui has ended, or has another address now.";
    }
    setTimeout(ask, EVERY_MS);
  };
  setInterval(tick, 1000);
  ask();
})();
