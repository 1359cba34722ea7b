// The last lines of one node.

import { draw, h } from "./dom.js";
import { ask, taskPath } from "./server.js";
import { clock } from "./words.js";

const MOST_CHOICES = 200;

export function logs(id) {
  const choice = h("input", { type: "number", min: 0, "aria-label": "Rank of the node whose lines are shown", list: "ranks" });
  const ranks = h("datalist", { id: "ranks" });
  const again = h("button", { type: "button" }, "Refresh");
  const body = h("div", {});
  const title = h("h2", { tabindex: -1 }, "Last lines");
  const element = h("section", {}, h("div", { class: "section-head" }, title, h("div", { class: "tools" }, h("label", {}, "node ", choice), again, ranks)), body);
  let rank = null;
  let view = null;
  let busy = false;

  choice.addEventListener("change", () => load(Number(choice.value)));
  again.addEventListener("click", () => load(rank));

  async function load(next) {
    if (!view || busy || !Number.isInteger(next) || next < 0 || next >= view.gang.nodes) return;
    busy = true;
    rank = next;
    choice.value = next;
    try {
      const found = await ask(`${taskPath(id)}/log`, { rank });
      const log = body.querySelector(".log");
      const atEnd = !log || log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      draw(body, found, lines);
      if (atEnd) body.querySelector(".log")?.scrollTo(0, 1e9);
    } catch (error) {
      draw(body, error.message, (text) => h("p", { class: "box problem", role: "alert" }, text));
    } finally {
      busy = false;
    }
  }

  return {
    element,
    show(next) {
      load(next);
      element.scrollIntoView({ block: "start", behavior: "smooth" });
      title.focus({ preventScroll: true });
    },
    update(next) {
      view = next;
      choice.max = view.gang.nodes - 1;
      draw(ranks, view.gang.nodes, (many) => Array.from({ length: Math.min(many, MOST_CHOICES) }, (_, each) => h("option", { value: each })));
      load(rank ?? view.failure?.rank ?? view.nodes.find((node) => node.main)?.rank ?? 0);
    },
  };
}

function lines(found) {
  if (found.problem) return h("p", { class: "box problem", role: "status" }, found.problem);
  if (!found.lines.length) return h("p", { class: "box empty" }, `Node ${found.rank} has printed nothing yet, or its lines have not arrived yet.`);
  return h("div", { class: "log", tabindex: 0, role: "log", "aria-label": `Last lines of node ${found.rank}` },
    found.lines.map((line) => h("div", { class: "log-line" }, h("time", {}, clock(line.time)), h("span", {}, line.text))));
}
