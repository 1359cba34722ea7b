// One task instance: its gang, the most important parts first.

import { copyButton, draw, h, outside } from "./dom.js";
import { logs } from "./logs.js";
import { nodes } from "./nodes.js";
import { lossPlot } from "./plot.js";
import { ask, poll, taskPath } from "./server.js";
import { duration, moment, number, percent, plural, shortened, significant, size } from "./words.js";

const INTERVAL = 3;
const MANY = 200; // nodes above which a look is large
const MANY_INTERVAL = 10;

export function task(main, id) {
  const places = Object.fromEntries(["head", "problem", "warning", "failure", "progress", "facts", "restarts", "plot", "checkpoints", "outputs"].map((name) => [name, h("section")]));
  const table = nodes();
  const lines = logs(id);
  const body = [places.head, places.problem, places.warning, places.failure, places.progress, places.facts, places.restarts, places.plot, table.element, places.checkpoints, places.outputs, lines.element];
  let shown = false;
  let latest = null;
  new ResizeObserver(() => latest && drawPlot(latest, places.plot)).observe(main);
  table.onLog((rank) => lines.show(rank));

  poll(async () => {
    let view;
    try {
      view = await ask(`${taskPath(id)}`);
    } catch (error) {
      if (error.status === 404 && id.map_index < 0) return mapped(main, id, error);
      if (shown) draw(places.problem, error.message, warning);
      else {
        // The next answer is drawn also if it is the last one again.
        delete main.shown;
        main.replaceChildren(h("p", { class: "box problem", role: "alert" }, error.message));
      }
      return [401, 403, 404].includes(error.status) ? null : INTERVAL;
    }
    if (!view.gang) {
      shown = false;
      draw(main, [view.task, view.failure, view.going_on], () => [heading(view), absent(view)]);
      return view.going_on ? INTERVAL : null;
    }
    if (!shown) {
      delete main.shown;
      main.replaceChildren(...body);
      shown = true;
    }
    latest = view;
    show(view, places);
    table.show(view);
    lines.update(view);
    const interval = view.nodes.length > MANY ? MANY_INTERVAL : INTERVAL;
    return view.going_on ? interval : null;
  });
}

function show(view, places) {
  document.title = `${view.task.task_id}: ${view.state.toLowerCase()}`;
  draw(places.head, [view.task, view.gang, view.state], () => [heading(view), identity(view)]);
  draw(places.problem, view.seen.problem, (text) => text && warning(`${text}; ${view.seen.at ? `the page shows the state of ${moment(view.seen.at)}` : "the page shows what Airflow has recorded"}`));
  draw(places.warning, view.warning, (text) => text && warning(`Succeeded, but ${text}`));
  draw(places.failure, view.failure, (failure) => failure && failed(failure));
  draw(places.progress, [view.progress, view.state], () => bar(view));
  draw(places.facts, facts(view), (shown) => h("dl", { class: "facts" }, shown.map(([name, value, note]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, note && h("small", {}, note))))));
  draw(places.restarts, view.restarts, restarts);
  drawPlot(view, places.plot);
  draw(places.checkpoints, { ...view.checkpoints, yet: view.going_on ? " yet" : "" }, checkpoints);
  draw(places.outputs, view.outputs, outputs);
}

function heading(view) {
  const { task } = view;
  const name = `${task.task_id}${task.map_index >= 0 ? ` [${task.map_index}]` : ""}`;
  const path = `dags/${encodeURIComponent(task.dag_id)}`;
  const run = `${path}/runs/${encodeURIComponent(task.run_id)}`;
  const instance = `${run}/tasks/${encodeURIComponent(task.task_id)}${task.map_index >= 0 ? `/mapped/${task.map_index}` : ""}`;
  return h("header", { class: "head" },
    h("p", { class: "crumbs" }, inAirflow(path, task.dag_id), inAirflow(run, task.run_id), inAirflow(instance, "task's log")),
    h("div", { class: "title" }, h("h1", {}, name),
      view.gang && badge(view.state, "nodes"), badge(task.state ?? "none", "task", "task ")));
}

// This page lies one folder below Airflow's own.
const inAirflow = (path, text) => outside(new URL(`../${path}`, location.href.split("?")[0]).href, {}, text);

const badge = (state, of, before = "") => h("span", { class: `badge state-${state.toUpperCase()}`, title: `state of the ${of}` }, `${before}${state.toLowerCase().replaceAll("_", " ")}`);

function identity({ gang }) {
  const layout = gang.topology === "multi_node" ? `one ${gang.node_noun} for all` : `each a ${gang.node_noun}`;
  return h("div", { class: "identity" },
    h("span", {}, `${plural(gang.nodes, "node")}, ${layout} (${gang.topology})`),
    gang.members.length > 0 && gang.members.length < gang.nodes && h("span", { title: "the others are lost, or came late" }, `${number(gang.members.length)} take part`),
    h("span", {}, `attempt ${gang.attempt}`),
    gang.candidate && h("span", { title: "from backend.candidates: other machines were refused" }, `candidate: ${gang.candidate}`),
    h("span", { class: "id" }, `main ${gang.node_noun} `, h("code", { title: gang.main_run_id }, shortened(gang.main_run_id)), copyButton(gang.main_run_id, `the ${gang.identifier} of the main ${gang.node_noun}`)),
    gang.console_url && outside(gang.console_url, { target: "_blank", class: "button" }, gang.console_url.startsWith("https:") ? "Open in the OCI console" : "Open at the emulator"));
}

const warning = (text) => h("p", { class: "box problem", role: "status" }, text);

function failed(failure) {
  const message = failure.message.replace(/\n[\s\S]*/, "");
  return h("div", { class: "box failed", role: "alert" },
    h("h2", {}, failure.cause && h("span", { class: "cause" }, failure.cause), message),
    failure.remedy && h("p", {}, h("strong", {}, "What to do: "), failure.remedy, "."),
    failure.tail && h("details", { open: true }, h("summary", {}, `Last lines of node ${failure.rank}`), h("pre", { tabindex: 0 }, failure.tail)));
}

function bar({ progress, state }) {
  if (progress.step === null) return null;
  const share = progress.steps ? Math.min(1, progress.step / progress.steps) : null;
  const meter = share === null ? null : h("progress", { max: 1, value: share, class: `state-${state}`, "aria-label": `step ${progress.step} of ${progress.steps}` });
  return h("div", { class: "bar" }, meter,
    h("div", { class: "bar-words" },
      h("span", {}, h("strong", {}, `step ${number(progress.step)}`), progress.steps ? ` of ${number(progress.steps)}` : "", share === null ? "" : ` (${percent(share)})`),
      h("span", {}, progress.remaining !== null && progress.remaining > 0 ? `about ${duration(progress.remaining)} left` : "")));
}

function facts(view) {
  const { progress, gang, task, nodes: all } = view;
  const end = task.ended_at ?? view.now;
  const restarts = gang.attempt > 1 ? `after ${plural(gang.attempt - 1, "earlier attempt")}` : null;
  const gpus = all.map((node) => node.gpu).filter((share) => share !== null && share !== undefined);
  const speed = progress.steps_per_second ? `${significant(progress.steps_per_second, 3)} steps/s` : null;
  return [
    ["Loss", significant(progress.loss)],
    ["Throughput", progress.throughput === null ? speed : `${significant(progress.throughput)} /s`, progress.throughput === null ? null : speed],
    ["Learning rate", significant(progress.learning_rate, 3)],
    [view.going_on ? "Running for" : "Ran for", gang.submitted_at ? duration(end - gang.submitted_at) : null, restarts],
    ["Node-hours", nodeHours(view), forecast(view.spent?.forecast_node_hours) ?? plural(gang.nodes, "node")],
    ["Cost", view.spent?.cost === undefined ? null : money(view.spent.cost), forecast(view.spent?.forecast_cost, money)],
    ["GPUs busy", gpus.length ? percent(gpus.reduce((sum, share) => sum + share, 0) / gpus.length) : null, "mean of all nodes"],
    ["Checkpoints", view.checkpoints.items.length ? number(view.checkpoints.items.length + view.checkpoints.older) : null, view.checkpoints.items.length ? newestOf(view.checkpoints.items[0]) : null],
  ].filter(([, value]) => value !== null);
}

// Of all attempts since the last clear, where the nodes have counted them.
const nodeHours = ({ spent, node_seconds: own }) => (spent ? significant(spent.node_hours, 3) : own === null ? null : significant(own / 3600, 3));

const money = (sum) => sum.toLocaleString(undefined, { minimumFractionDigits: 2, maximumFractionDigits: 2 });

const forecast = (total, shown = (hours) => significant(hours, 3)) => (total === undefined ? null : `about ${shown(total)} at the end`);

function drawPlot(view, place) {
  const width = Math.max(280, place.clientWidth - 30);
  draw(place, [view.losses, view.progress.steps, view.checkpoints.items.map((each) => each.step), width], () => plot(view, width));
}

function plot(view, width) {
  if (!view.losses.length) return [h("h2", {}, "Loss"), h("p", { class: "box empty" }, "The program has reported no loss yet. ocidist reads it from lines such as “step 3/9 loss 0.5”.")];
  return [h("h2", {}, "Loss"), lossPlot(view.losses, view.checkpoints.items, view.progress.steps, width)];
}

function restarts(all) {
  if (!all.length) return null;
  const head = ["Launch", "Cause", "Node", "At step", "Recovered after", "Message"];
  return [h("h2", {}, "Launched again"), h("div", { class: "wide limited", tabindex: 0, role: "region", "aria-label": "Restarts" }, h("table", {},
    h("caption", { class: "off" }, plural(all.length, "restart")),
    h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col", class: ["Cause", "Message"].includes(name) ? "" : "number" }, name)))),
    h("tbody", {}, all.map((each, index) => h("tr", {},
      h("th", { scope: "row", class: "number" }, number(index + 1)),
      h("td", { class: "line" }, each.cause),
      h("td", { class: "number" }, each.rank === null ? "" : number(each.rank)),
      h("td", { class: "number" }, each.step === null ? "" : number(each.step)),
      h("td", { class: "number" }, each.seconds === null ? "" : duration(each.seconds)),
      h("td", {}, each.message))))))];
}

function checkpoints({ items, older, problem, uri, yet }) {
  const title = h("h2", {}, "Checkpoints");
  const trouble = problem && warning(problem);
  if (!items.length) return [title, trouble ?? h("p", { class: "box empty" }, uri ? `No complete checkpoint${yet}.` : "This job stores no checkpoints.")];
  const known = items.some((each) => each.size !== undefined);
  const head = ["Step", "Loss", ...(known ? ["Size", "Written"] : []), "URI"];
  return [title, trouble, h("div", { class: "wide limited", tabindex: 0, role: "region", "aria-label": "Checkpoints" }, h("table", {},
    h("caption", { class: "off" }, plural(items.length, "checkpoint")),
    h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col", class: ["URI", "Written"].includes(name) ? "" : "number" }, name)))),
    h("tbody", {}, items.map((each) => h("tr", {},
      h("th", { scope: "row", class: "number" }, each.step == null ? "" : number(each.step)),
      h("td", { class: "number" }, significant(each.loss) ?? ""),
      known && [h("td", { class: "number" }, each.size === undefined ? "" : size(each.size)), h("td", { class: "line" }, each.created_at ? moment(each.created_at) : "")],
      h("td", { class: "place" }, h("code", { title: each.uri }, each.uri), each.fault && h("span", { class: "quiet" }, ` damaged: ${each.fault} `), copyButton(each.uri, `the URI of the checkpoint ${each.uri}`))))))),
    older > 0 && h("p", { class: "quiet" }, `and ${plural(older, "older one")} at ${uri}`)];
}

function newestOf({ step, uri }) {
  return step == null ? `newest: ${uri.split("/").pop()}` : `newest at step ${number(step)}`;
}

function outputs(all) {
  return all.length ? [h("h2", {}, "Outputs"), h("ul", { class: "panel list" }, all.map((uri) => h("li", { class: "place" }, h("code", { title: uri }, uri), copyButton(uri, "the URI of this output"))))] : null;
}

function absent(view) {
  const { task } = view;
  if (!task.starts_gangs) {
    return h("div", { class: "box empty" }, h("h2", {}, "No training run here"),
      h("p", {}, `This tab shows distributed trainings, and ${task.operator ?? "this task"} starts none. Airflow shows the tab on every task.`),
      h("p", {}, h("a", { href: "./" }, "All training runs")));
  }
  if (view.failure) return failed(view.failure);
  const words = {
    failed: ["The task failed before it created a node", "The task's log shows the cause. Frequent causes are an error in the job or the connection, or a work_dir that cannot be used."],
    success: ["No record of the run", "The task has succeeded, but its XCom `run`, which this page needs, was deleted."],
  }[task.state] ?? (view.going_on ? ["No node yet", "The nodes appear here as soon as the task has created them."] : ["Nothing was created", `The task is ${task.state ?? "not scheduled"}.`]);
  return h("div", { class: "box empty" }, h("h2", {}, words[0]), h("p", {}, words[1]));
}

async function mapped(main, id, missing) {
  try {
    const { indexes } = await ask(`${taskPath(id)}/mapped`);
    if (!indexes.length) throw missing;
    const link = (index) => `?${new URLSearchParams({ ...id, map_index: index })}`;
    main.replaceChildren(h("header", { class: "head" }, h("h1", {}, id.task_id)),
      h("p", {}, `A mapped task with ${plural(indexes.length, "instance")}; each may have its own training run.`),
      h("ul", { class: "panel list" }, indexes.map((each) => h("li", {}, h("a", { href: link(each.map_index) }, `${id.task_id} [${each.map_index}]`), " ", badge(each.state ?? "no state", "task")))));
  } catch (error) {
    main.replaceChildren(h("p", { class: "box problem", role: "alert" }, error.message));
  }
  return null;
}
