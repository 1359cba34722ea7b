// The logs of a job's runs: all nodes in one stream, each in its colour, as they come.

import { h, keep } from "./dom.js";
import { ask, poll } from "./server.js";
import { clock, hasEnded, plural } from "./words.js";

const MAX_LINES = 5000;
const ANSI = new RegExp("\\u001b\\[[0-9;?]*[A-Za-z]", "g");
const RUNS_OFFERED = 65;

export function logs(job) {
  let runs = [];
  let names = new Map();
  let newest = null;
  let wanted = "";
  let place = { before: null, after: null };
  let loading = 0;
  let follow = true;
  let widest = 4;
  const colours = new Map();

  const filter = h("input", { type: "search", placeholder: "Filter lines", "aria-label": "Filter lines", oninput: () => sift() });
  const errors = h("input", { type: "checkbox", onchange: () => sift() });
  const choice = h("select", { "aria-label": "Which run", onchange: () => { wanted = choice.value; start(); } }, h("option", { value: "" }, "All runs"));
  const followButton = h("button", { type: "button", "data-follow": true, "aria-pressed": "true", title: "Follow (f)", onclick: () => setFollow(!follow) }, "Follow");
  const wrapButton = h("button", { type: "button", "aria-pressed": "true", onclick: () => setWrap() }, "Wrap");
  const count = h("span", { class: "muted count-lines" });
  const earlier = h("button", { type: "button", class: "earlier", hidden: true, onclick: () => readBefore() }, "Earlier lines");
  const lines = h("div", { class: "lines" });
  const box = h("div", { class: "log wrap", tabindex: 0, role: "log", "aria-label": "Log lines", "aria-live": "off", onscroll: () => onScroll() }, earlier, lines);
  const element = h("div", {}, h("div", { class: "tools" }, choice, filter, h("label", {}, errors, "stderr only"), followButton, wrapButton, count), box);

  function show(found) {
    runs = found;
    const newestNow = found.reduce((latest, run) => (run.accepted > latest ? run.accepted : latest), "");
    const offered = found.slice(0, RUNS_OFFERED).map(({ id, name }) => ({ id, name }));
    keep(choice, [{ id: "", name: `All runs (${found.length})` }, ...offered], (run) => run.id || "all", (run) => h("option", { value: run.id }, run.name));
    choice.hidden = found.length < 2;
    if (choice.value !== wanted) choice.value = wanted;
    names = shortNames(found);
    for (const run of found) if (!colours.has(run.id)) colours.set(run.id, colours.size);
    if (newest === null && newestNow) start();
    newest = newestNow || null;
  }

  async function start() {
    const mine = ++loading;
    const found = await ask(path(), { run: wanted });
    if (mine !== loading) return;
    lines.replaceChildren();
    place = found;
    add(found.lines);
    loading = mine;
    setFollow(true);
  }

  const path = () => `/jobs/${encodeURIComponent(job)}/logs`;

  async function readOn() {
    if (!place.after) return;
    const mine = loading;
    let more = true;
    while (more) {
      const found = await ask(path(), { run: wanted, after: place.after });
      if (mine !== loading) return;
      place = { ...place, after: found.after };
      add(found.lines);
      more = found.more;
    }
  }

  async function readBefore() {
    const mine = loading;
    const found = await ask(path(), { run: wanted, before: place.before });
    if (mine !== loading) return;
    const height = box.scrollHeight - box.scrollTop;
    place = { ...place, before: found.before };
    lines.prepend(...found.lines.map(draw));
    box.scrollTop = box.scrollHeight - height;
    showCount();
  }

  function add(found) {
    if (found.length) lines.append(...found.map(draw));
    let tooMany = follow ? lines.childElementCount - MAX_LINES : 0;
    if (tooMany > 0) place = { ...place, before: null };
    while (tooMany-- > 0) lines.firstElementChild.remove();
    if (follow) box.scrollTop = box.scrollHeight;
    showCount();
  }

  function showCount() {
    earlier.hidden = !place.before;
    const total = lines.childElementCount;
    const hidden = lines.querySelectorAll(":scope > [hidden]").length;
    const waiting = runs.some((run) => !hasEnded(run.state));
    count.textContent = waiting && !total ? "" : hidden ? `${total - hidden} of ${plural(total, "line")}` : plural(total, "line");
    box.classList.toggle("silent", total === 0);
    box.dataset.silent = waiting ? "Waiting for output." : "No output.";
  }

  function draw(line) {
    const node = [names.get(line.run) ?? line.run.slice(-6), line.node].filter(Boolean).join(" ");
    widest = Math.max(widest, Math.min(node.length, 24));
    box.style.setProperty("--node-width", `${widest}ch`);
    const colour = `${line.run}${line.node}`;
    if (!colours.has(colour)) colours.set(colour, colours.size);
    const element = h("div", { class: ["line", line.error && "stderr", line.level].filter(Boolean).join(" ") },
      h("time", {}, clock(line.time, true)), h("span", { class: "node", title: node }, node), h("span", { class: "text" }, line.text.replace(ANSI, "")));
    // The golden angle keeps neighbours apart, however many nodes there are.
    element.style.setProperty("--hue", Math.round(colours.get(colour) * 137.508 + 190) % 360);
    element.hidden = !fits(element);
    return element;
  }

  function fits(element) {
    if (errors.checked && !element.classList.contains("stderr")) return false;
    const text = filter.value.toLowerCase();
    return !text || element.textContent.toLowerCase().includes(text);
  }

  function sift() {
    for (const element of lines.children) element.hidden = !fits(element);
    if (follow) box.scrollTop = box.scrollHeight;
    showCount();
  }

  function setFollow(wish) {
    follow = wish;
    followButton.setAttribute("aria-pressed", String(wish));
    if (wish) box.scrollTop = box.scrollHeight;
  }

  function setWrap() {
    const wrapped = box.classList.toggle("wrap");
    wrapButton.setAttribute("aria-pressed", String(wrapped));
  }

  function onScroll() {
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
    if (atEnd !== follow) {
      follow = atEnd;
      followButton.setAttribute("aria-pressed", String(atEnd));
    }
  }

  showCount();
  return { element, show, stop: poll(readOn, 1) };
}

// Names of a gang's runs begin alike; only the differing part is kept. One run needs no name if its nodes have one.
function shortNames(runs) {
  const texts = runs.map((run) => run.name);
  let length = 0;
  while (texts.length > 1 && length < texts[0].length && texts.every((text) => text[length] === texts[0][length])) length += 1;
  const common = texts[0]?.slice(0, length).replace(/[^-_. ]*$/, "").replace(/[a-z]+[-_. ]$/i, "") ?? "";
  return new Map(runs.map((run) => [run.id, runs.length === 1 && run.groups.length ? "" : run.name.slice(common.length) || run.name]));
}
