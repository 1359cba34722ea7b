// Faults and node rules: what is in force, and a form for the common ones.

import { h, keep, toast } from "./dom.js";
import { ask, poll, send } from "./server.js";

const REQUEST_EFFECTS = {
  "429": { status: 429, code: "TooManyRequests" },
  "500": { status: 500, code: "InternalServerError" },
  "503": { status: 503, code: "ServiceUnavailable" },
  "1 s late": { latency_s: 1 },
  "cut before any effect": { drop: "before" },
  "cut after the effect": { drop: "after" },
};
const NODE_EFFECTS = {
  "out of host capacity": { failure: "Out of host capacity." },
  "starts 10 s late": { delay_s: 10 },
  "never starts": { never_starts: true },
};

export function rules(root) {
  const faults = h("tbody");
  const nodes = h("tbody");
  root.append(
    h("header", { class: "head" }, h("h1", {}, "Faults"), h("p", { class: "facts" }, "Delays of all rules that fit add up; of those that end a request, the first counts. A reset removes them all.")),
    part("Requests", "/faults", faults, faultForm()),
    part("Nodes of job runs", "/nodes", nodes, nodeForm()));

  async function refresh() {
    const found = await ask("/rules");
    draw(faults, found.faults, ["method", "path"], "Requests are answered as they should be.");
    draw(nodes, found.nodes, ["display_name"], "Nodes start and end as they should.");
  }

  function part(name, path, body, form) {
    const clear = h("button", { type: "button", onclick: () => act(() => send("DELETE", path)) }, "Clear all");
    return h("section", {}, h("div", { class: "title" }, h("h2", {}, name), clear), h("div", { class: "wide" }, h("table", {},
      h("thead", {}, h("tr", {}, ["For", "What happens", "Left"].map((each) => h("th", { scope: "col" }, each)))), body)), form);
  }

  async function act(action) {
    try {
      await action();
      await refresh();
    } catch (error) {
      toast(error.message);
    }
  }

  function faultForm() {
    const method = field("Method", ".*", 8);
    const path = field("Path", ".*", 28);
    const effect = choice("Answer", Object.keys(REQUEST_EFFECTS));
    const times = field("Times", "1", 4);
    return form("Add a fault", [method, path, effect, times], () => send("POST", "/faults", {
      method: value(method) || ".*", path: value(path) || ".*", ...REQUEST_EFFECTS[value(effect)], ...limit(times),
    }));
  }

  function nodeForm() {
    const name = field("Run's name", ".*", 20);
    const effect = choice("The node", Object.keys(NODE_EFFECTS));
    const times = field("Times", "1", 4);
    return form("Add a node rule", [name, effect, times], () => send("POST", "/nodes", {
      display_name: value(name) || ".*", ...NODE_EFFECTS[value(effect)], ...limit(times),
    }));
  }

  function form(name, fields, action) {
    return h("form", { class: "tools add", onsubmit: (event) => { event.preventDefault(); act(async () => action()); } }, fields, h("button", { type: "submit" }, name));
  }

  return poll(refresh, 2);
}

const field = (name, text, width) => h("label", { class: "field" }, name, h("input", { type: "text", value: text, size: width, spellcheck: "false", autocomplete: "off" }));
const choice = (name, options) => h("label", { class: "field" }, name, h("select", {}, options.map((option) => h("option", {}, option))));
const value = (label) => label.querySelector("input, select").value.trim();

function limit(label) {
  const text = value(label);
  if (!text) return {};
  if (!/^[1-9][0-9]*$/.test(text)) throw new Error("Times must be a whole number; empty means until reset.");
  return { times: Number(text) };
}

function draw(body, rules, subject, nothing) {
  const items = rules.map((rule, place) => ({ place, rule }));
  keep(body, items.length ? items : [{ place: "none" }], (item) => String(item.place), ({ rule }) => (rule ? row(rule, subject) : h("tr", {}, h("td", { colspan: 3, class: "empty" }, nothing))));
}

function row(rule, subject) {
  return h("tr", { class: rule.left === 0 ? "gone" : "" },
    h("td", { class: "mono" }, subject.map((name) => rule[name]).join(" ")),
    h("td", {}, effectOf(rule, subject)),
    h("td", { class: "mono" }, rule.left === null || rule.left === undefined ? "until reset" : rule.left ? String(rule.left) : "used up"));
}

// Whatever is set of a rule, also of kinds that this page does not know.
function effectOf(rule, subject) {
  const silent = new Set([...subject, "left", "times", ...(rule.status ? [] : ["code"]), "message", ...(rule.drop === "body" ? [] : ["body_bytes"])]);
  const set = Object.entries(rule).filter(([name, each]) => !silent.has(name) && each !== null && each !== false && each !== 0 && !(name === "probability" && each === 1) && !(name === "when_full" && each === "wait") && each !== ".*" && each !== "");
  return set.map(([name, each]) => word(name, each)).join(", ");
}

function word(name, each) {
  if (each === true) return name.replaceAll("_", " ");
  const seconds = name.endsWith("_s");
  return `${name.replace(/_s$/, "").replaceAll("_", " ")} ${each}${seconds ? " s" : ""}`;
}
