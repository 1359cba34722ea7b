// The nodes as a table with filters and pages: there may be a thousand.

import { copyButton, draw, h } from "./dom.js";
import { duration, number, percent, plural, significant, size } from "./words.js";

const ON_A_PAGE = 25;
const BAD = ["FAILED", "MISSING", "CANCELED"];
const STALE = 30; // seconds without a heartbeat that are highlighted

export function nodes() {
  const chosen = { text: "", state: "", page: 0 };
  const open = new Set();
  const search = h("input", { type: "search", placeholder: "Node, host or cause", "aria-label": "Filter the nodes by number, host or cause" });
  const states = h("select", { "aria-label": "Filter the nodes by state" });
  const tools = h("div", { class: "tools" }, search, states);
  const tally = h("p", { class: "tally" });
  const body = h("div", {});
  const pages = h("nav", { class: "pages", "aria-label": "Pages of nodes" });
  const element = h("section", {}, h("div", { class: "section-head" }, h("h2", {}, "Nodes"), tally, tools), body, pages);
  const listeners = [];
  let view = null;

  const change = (what) => { Object.assign(chosen, { page: 0 }, what); render(); };
  search.addEventListener("input", () => change({ text: search.value }));
  states.addEventListener("change", () => change({ state: states.value }));

  function render() {
    const found = view.nodes.filter((node) => fits(node, chosen));
    const last = Math.max(0, Math.ceil(found.length / ON_A_PAGE) - 1);
    chosen.page = Math.min(chosen.page, last);
    const shown = found.slice(chosen.page * ON_A_PAGE, (chosen.page + 1) * ON_A_PAGE);
    tools.hidden = view.nodes.length <= 8;
    const counts = count(view.nodes);
    draw(tally, counts, () => counts.map(([state, many]) => h("span", { class: `badge state-${state}` }, `${number(many)} ${state.toLowerCase()}`)));
    draw(states, counts, () => [h("option", { value: "" }, "All states"), ...counts.map(([state]) => h("option", { value: state, selected: state === chosen.state }, state.toLowerCase()))]);
    draw(body, [shown, view.going_on && view.now, [...open]], () => table(shown, view));
    draw(pages, [chosen.page, last, found.length], () => (last ? turns(last, found.length) : null));
  }

  function turns(last, many) {
    const button = (name, page) => h("button", { type: "button", disabled: page < 0 || page > last, onclick: () => { chosen.page = page; render(); } }, name);
    return [button("Previous", chosen.page - 1), h("span", {}, `${number(chosen.page * ON_A_PAGE + 1)} to ${number(Math.min(many, (chosen.page + 1) * ON_A_PAGE))} of ${number(many)}`), button("Next", chosen.page + 1)];
  }

  function table(shown, { now, going_on: goingOn }) {
    if (!shown.length) return h("p", { class: "box empty" }, view.nodes.length ? "No node matches this filter." : "Nothing is known about the nodes.");
    const uses = ["cores", "memory", "gpu"].filter((name) => shown.some((node) => node[name] !== null && node[name] !== undefined));
    const head = [["Node", "number"], ["State"], ["Phase"], ["Host"], ["Heartbeat"], ...uses.map((name) => [{ cores: "Cores", memory: "Memory", gpu: "GPU" }[name], "number"]), ["Exit", "number"], [""]];
    return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Nodes" }, h("table", { class: "nodes" },
      h("caption", { class: "off" }, plural(shown.length, "node")),
      h("thead", {}, h("tr", {}, head.map(([name, kind]) => h("th", { scope: "col", class: kind }, name || h("span", { class: "off" }, "Actions"))))),
      h("tbody", {}, shown.map((node) => [row(node, uses, now, goingOn), open.has(node.rank) && detail(node, view.gang, head.length)]))));
  }

  function row(node, uses, now, goingOn) {
    const more = h("button", { type: "button", class: "copy", "aria-expanded": String(open.has(node.rank)), "aria-label": `Details of node ${node.rank}`, onclick: () => {
      if (!open.delete(node.rank)) open.add(node.rank);
      render();
    } }, open.has(node.rank) ? "Less" : "More");
    const log = h("button", { type: "button", class: "copy", "aria-label": `Log of node ${node.rank}`, onclick: () => listeners.forEach((listener) => listener(node.rank)) }, "Log");
    return h("tr", { class: BAD.includes(node.state) ? "bad" : "" },
      h("th", { scope: "row", class: "number" }, node.rank, node.main && node.takes_part ? h("span", { class: "main", title: "global rank 0 runs here" }, "main") : null),
      h("td", {}, h("span", { class: `badge state-${node.state}` }, (node.state ?? "unknown").toLowerCase()), !node.takes_part && h("span", { class: "cause", title: "the others train without this node" }, "takes no part"), node.cause && h("span", { class: "cause" }, node.cause), node.slow && h("span", { class: "cause", title: node.slow }, "slow"), node.health && h("span", { class: "cause", title: node.health }, "not well")),
      h("td", {}, (node.phase ?? "").toLowerCase()),
      h("td", {}, node.host ? h("code", {}, node.host) : ""),
      h("td", {}, heartbeat(node, now, goingOn)),
      uses.map((name) => h("td", { class: "number" }, use(node, name))),
      h("td", { class: "number" }, node.exit_code ?? ""),
      h("td", { class: "actions" }, log, more));
  }

  return {
    element,
    onLog: (listener) => listeners.push(listener),
    show(next) {
      view = next;
      render();
    },
  };
}

function fits(node, { text, state }) {
  const words = `${node.rank} ${node.host ?? ""} ${node.cause ?? ""} ${node.phase ?? ""}`.toLowerCase();
  return (!state || node.state === state) && (!text || (/^\d+$/.test(text) ? String(node.rank) === text : words.includes(text.toLowerCase())));
}

function count(all) {
  const found = new Map();
  for (const { state } of all) found.set(state, (found.get(state) ?? 0) + 1);
  return [...found].sort(([a], [b]) => BAD.includes(b) - BAD.includes(a) || a.localeCompare(b));
}

function heartbeat(node, now, goingOn) {
  if (!node.heartbeat_at) return "";
  const age = Math.max(0, now - node.heartbeat_at);
  if (!goingOn || node.finished_at) return "ended";
  return h("span", { class: age > STALE ? "late" : "" }, `${duration(age)} ago`);
}

function use(node, name) {
  const value = node[name];
  if (value === null || value === undefined) return "";
  if (name === "cores") return significant(value, 3);
  if (name === "memory") return [size(value), node.memory_limit ? h("small", {}, ` of ${size(node.memory_limit)}`) : ""];
  return [percent(value), node.gpu_memory === null ? "" : h("small", {}, ` memory ${percent(node.gpu_memory)}`)];
}

function detail(node, gang, columns) {
  const facts = [["Service says", node.details], ["Message", node.message], ["Machine", node.health], ["Slow", node.slow], ["Step", node.step], ["Ran for", node.started_at && node.finished_at ? duration(node.finished_at - node.started_at) : null]]
    .filter(([, value]) => value !== null && value !== undefined);
  return h("tr", { class: "detail" }, h("td", { colspan: columns },
    h("dl", {}, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
      node.run_id && h("div", {}, h("dt", {}, `Its ${gang.node_noun}`), h("dd", { class: "place" }, h("code", {}, node.run_id), copyButton(node.run_id, `the ${gang.identifier} of node ${node.rank}'s ${gang.node_noun}`)))),
    node.tail && h("pre", { tabindex: 0, "aria-label": `Last lines of node ${node.rank}` }, node.tail)));
}
