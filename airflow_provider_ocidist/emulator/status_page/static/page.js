// The page: sections, which of them is shown, keys, light and dark.

import { h } from "./dom.js";
import { onConnection } from "./server.js";
import { overview } from "./overview.js";
import { jobs } from "./jobs.js";
import { job } from "./job.js";
import { objects } from "./objects.js";
import { calls } from "./calls.js";
import { rules } from "./rules.js";
import { ago } from "./words.js";

const SECTIONS = [
  { path: "", name: "Overview", view: overview },
  { path: "jobs", name: "Jobs", view: (root, rest) => (rest ? job : jobs)(root, rest) },
  { path: "objects", name: "Objects", view: objects },
  { path: "calls", name: "Calls", view: calls },
  { path: "rules", name: "Faults", view: rules },
];
// What people write for a section whose address has another name.
const OTHER_NAMES = { overview: "", faults: "rules" };
const THEMES = ["system", "light", "dark"];

const main = document.getElementById("main");
let leave = null;
let shown = null;

function show() {
  const place = location.hash.replace(/^#\/?/, "");
  if (location.hash && !location.hash.startsWith("#/")) return;
  if (place === shown) return;
  shown = place;
  const [first, ...rest] = place.split("/");
  const section = SECTIONS.find((each) => each.path === (OTHER_NAMES[first] ?? first)) ?? { path: null, name: "No such page", view: nowhere };
  leave?.();
  main.replaceChildren();
  main.className = `view-${section.path ?? "nowhere"}`.replace(/-$/, "-overview");
  window.scrollTo(0, 0);
  for (const link of document.querySelectorAll("#sections a")) {
    if (link.dataset.path === section.path) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = section.path !== "" ? `${section.name} · OCI emulator` : "OCI emulator";
  leave = section.view(main, rest.join("/"));
}

function nowhere(root) {
  root.append(h("header", { class: "head" }, h("h1", {}, "No such page"), h("p", { class: "facts" }, `There is no page ${location.hash}; the pages are on the left.`)));
  return null;
}

function drawSections() {
  document.getElementById("sections").append(...SECTIONS.map((section, place) =>
    h("a", { href: `#/${section.path}`, "data-path": section.path, title: `${section.name} (${place + 1})` }, section.name)));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.textContent = { system: "Auto", light: "Light", dark: "Dark" }[theme];
  button.title = "Light, dark, or as the system (t)";
  try { localStorage.setItem("theme", theme); } catch { /* A browser may forbid it; the choice then ends with the page. */ }
}

function nextTheme() {
  const now = document.documentElement.dataset.theme;
  setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
}

function storedTheme() {
  try {
    const theme = localStorage.getItem("theme");
    return THEMES.includes(theme) ? theme : "system";
  } catch { return "system"; }
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    main.dispatchEvent(new CustomEvent("escape"));
    return;
  }
  if (typing) return;
  const section = SECTIONS[Number(event.key) - 1];
  if (section) location.hash = `#/${section.path}`;
  else if (event.key === "t") nextTheme();
  else if (event.key === "?") document.getElementById("keys").showModal();
  else if (event.key === "f") main.querySelector("[data-follow]")?.click();
  else if (event.key === "/") {
    const filter = main.querySelector("input[type=search]");
    if (!filter) return;
    event.preventDefault();
    filter.focus();
    filter.select();
  }
}

function showConnection(connected) {
  const place = document.getElementById("connection");
  place.textContent = connected ? "connected" : "no answer";
  place.classList.toggle("lost", !connected);
}

function tellAges() {
  for (const element of document.querySelectorAll("time[data-ago]")) element.textContent = ago(Date.parse(element.dateTime));
}

setTheme(storedTheme());
drawSections();
onConnection(showConnection);
document.getElementById("theme").addEventListener("click", nextTheme);
document.addEventListener("keydown", onKey);
window.addEventListener("hashchange", show);
setInterval(tellAges, 1000);
show();
