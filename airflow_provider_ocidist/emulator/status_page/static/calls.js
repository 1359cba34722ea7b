// Recorded calls, the newest first, as they come.

import { h, toast } from "./dom.js";
import { ask, poll, send } from "./server.js";
import { clock, number, plural, shortId } from "./words.js";

const MAX_ROWS = 1000;

export function calls(root) {
  let last = null;
  let asked = 0;
  let paused = false;
  let timer = null;
  const body = h("tbody");
  const filter = h("input", { type: "search", placeholder: "Method, path or status", "aria-label": "Filter calls", oninput: () => { clearTimeout(timer); timer = setTimeout(anew, 200); } });
  const errors = h("input", { type: "checkbox", onchange: anew });
  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: () => { paused = !paused; pause.setAttribute("aria-pressed", String(paused)); if (!paused) refresh(); } }, "Pause");
  const clear = h("button", { type: "button", onclick: forget }, "Clear");
  const facts = h("p", { class: "facts" });
  root.append(
    h("header", { class: "head" }, h("h1", {}, "Calls"), facts, h("div", { class: "tools" }, filter, h("label", {}, errors, "errors only"), pause, clear)),
    h("div", { class: "wide" }, h("table", { class: "calls" },
      h("thead", {}, h("tr", {}, ["Time", "Method", "Path", "Status", "ms"].map((name) => h("th", { scope: "col", class: name === "ms" ? "number" : "" }, name)))), body)));

  function anew() {
    last = null;
    asked += 1;
    refresh();
  }

  async function refresh() {
    if (paused && last !== null) return;
    const mine = asked;
    const found = await ask("/calls", { last, search: filter.value, errors: errors.checked ? "true" : "" });
    if (mine !== asked) return;
    if (last === null || found.total === 0) body.replaceChildren();
    last = found.last ?? "none";
    body.prepend(...found.calls.map(row));
    while (body.childElementCount > MAX_ROWS) body.lastElementChild.remove();
    facts.textContent = `${plural(found.total, "call")} recorded${found.total > MAX_ROWS ? `; at most the newest ${number(MAX_ROWS)} are shown` : ""}`;
    if (!body.childElementCount) facts.textContent = found.total ? "No recorded call fits the filter." : "No calls yet.";
  }

  async function forget() {
    try {
      await send("DELETE", "/calls");
      anew();
    } catch (error) {
      toast(error.message);
    }
  }

  return poll(refresh, 1);
}

function row(call) {
  const wrong = call.error;
  const [path, query] = [call.path.split("?")[0], call.path.split("?").slice(1).join("?")];
  return h("tr", { class: wrong ? "wrong" : "", title: `${call.path}\nopc-request-id ${call.request}` },
    h("td", { class: "mono muted" }, clock(call.time * 1000, true)),
    h("td", { class: `mono method-${call.method}` }, call.method),
    h("td", { class: "mono path" }, call.host && call.host !== location.host && h("span", { class: "muted" }, call.host), withShortIds(path), query && h("span", { class: "muted" }, `?${query}`)),
    h("td", { class: "mono" }, h("span", { class: wrong ? "badge state-FAILED" : call.status >= 400 ? "badge" : "" }, call.status === 0 ? "cut" : String(call.status))),
    h("td", { class: "mono number" }, call.ms.toFixed(1)));
}

// An OCID is as long as the row; the row's title has all of it.
function withShortIds(path) {
  return path.split(/(ocid1\.[a-z0-9]+\.[a-z0-9-]*\.[a-z0-9-]*\.[a-z0-9]+)/).map((part, place) => (place % 2 ? h("span", { class: "muted" }, shortId(part)) : part));
}
