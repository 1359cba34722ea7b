// All training runs that Airflow knows, newest first.

import { draw, h } from "./dom.js";
import { ask, poll } from "./server.js";
import { duration, moment, number, plural, significant } from "./words.js";

const INTERVAL = 15;

export function runs(main) {
  const body = h("div", {});
  const more = h("button", { type: "button", hidden: true }, "Show older runs");
  const trouble = h("div", {});
  let wanted = 1; // pages
  main.replaceChildren(h("header", { class: "head" }, h("h1", {}, "Training runs")), body, more, trouble);

  // Each page begins where the one before it ends: of pages read at different times, runs would be lost between them.
  const again = poll(async () => {
    try {
      const all = [];
      let before = null;
      let now;
      for (let page = 0; page < wanted && (page === 0 || before); page += 1) {
        const found = await ask("runs", before ? { before } : {});
        all.push(...found.runs);
        ({ before, now } = found);
      }
      draw(body, { all, older: before, minute: Math.floor(now / 60) }, () => (all.length ? table(all, now) : nothing(before)));
      more.hidden = !before;
      draw(trouble, null, () => null);
    } catch (error) {
      draw(trouble, error.message, (text) => h("p", { class: "box problem", role: "alert" }, text));
      if (error.status === 401) return null;
    }
    return INTERVAL;
  });
  more.addEventListener("click", () => {
    wanted += 1;
    again();
  });
}

function nothing(older) {
  return h("div", { class: "box empty" }, h("h2", {}, older ? "No training run among the newest tasks" : "No training run yet"),
    h("p", {}, "A run appears here as soon as a DistributedTrainingOperator or a @task.distributed_training has started it."));
}

function table(all, now) {
  const head = ["Task", "State", "Nodes", "Started", "Duration", "Step", "Loss"];
  return h("div", { class: "wide" }, h("table", {},
    h("caption", { class: "off" }, plural(all.length, "training run")),
    h("thead", {}, h("tr", {}, head.map((name, at) => h("th", { scope: "col", class: at > 1 && at !== 3 ? "number" : "" }, name)))),
    h("tbody", {}, all.map((run) => row(run, now)))));
}

function row(run, now) {
  const { task } = run;
  const address = new URLSearchParams({ dag_id: task.dag_id, run_id: task.run_id, task_id: task.task_id, map_index: task.map_index });
  const name = `${task.dag_id} / ${task.task_id}${task.map_index >= 0 ? ` [${task.map_index}]` : ""}`;
  return h("tr", {},
    h("th", { scope: "row" }, h("a", { href: `?${address}` }, name), h("div", { class: "sub" }, task.run_id)),
    h("td", {}, h("span", { class: `badge state-${(task.state ?? "none").toUpperCase()}` }, task.state ?? "none")),
    h("td", { class: "number" }, number(run.nodes)),
    h("td", { class: "line" }, moment(run.submitted_at)),
    h("td", { class: "number" }, duration((task.ended_at ?? now) - run.submitted_at)),
    h("td", { class: "number" }, run.step === null ? "" : number(run.step)),
    h("td", { class: "number" }, significant(run.loss) ?? ""));
}
