// The page: one task instance if the address names one, else all training runs.

import { h } from "./dom.js";
import { runs } from "./runs.js";
import { task } from "./task.js";
import { followTheme } from "./theme.js";

followTheme();

const query = new URLSearchParams(location.search);
const main = document.getElementById("main");
const named = ["dag_id", "run_id", "task_id"].every((name) => query.get(name));
main.replaceChildren(h("p", { class: "quiet", role: "status" }, "Loading ..."));

if (named) {
  // Airflow does not replace {MAP_INDEX} for a task that is not mapped.
  const index = query.get("map_index");
  task(main, {
    dag_id: query.get("dag_id"), run_id: query.get("run_id"), task_id: query.get("task_id"),
    map_index: /^\d+$/.test(index) ? Number(index) : -1,
  });
} else {
  runs(main);
}
