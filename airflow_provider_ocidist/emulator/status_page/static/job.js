// One job: its gangs as timelines, its runs and nodes, their logs, its settings.

import { copyButton, h, keep } from "./dom.js";
import { ask, poll } from "./server.js";
import { byName, clock, day, duration, hasEnded, plural, size, stateWord } from "./words.js";
import { badge } from "./jobs.js";
import { gangs, timeline } from "./timeline.js";
import { logs } from "./logs.js";

const GANGS_SHOWN = 6;
const TIMES = new Set(["Accepted", "Waited", "Ran"]);

export function job(root, id) {
  const title = h("h1", {}, "…");
  const facts = h("p", { class: "facts" });
  const charts = h("div", { class: "charts" });
  const runs = h("tbody");
  const settings = h("tbody");
  const log = logs(id);
  root.append(
    h("header", { class: "head" }, h("p", { class: "crumbs" }, h("a", { href: "#/jobs" }, "Jobs")), title, facts),
    h("section", {}, h("div", { class: "title" }, h("h2", {}, "Timeline"), legend()), charts),
    h("section", {}, h("h2", {}, "Logs"), log.element),
    h("section", {}, h("h2", {}, "Runs"), h("div", { class: "wide" }, h("table", { class: "runs" },
      h("thead", {}, h("tr", {}, ["Run", "State", "Accepted", "Waited", "Ran", "Details", "OCID"].map((name) => h("th", { scope: "col", class: TIMES.has(name) ? "number" : null }, name)))), runs))),
    h("section", {}, h("details", {}, h("summary", {}, h("h2", {}, "Settings")), h("div", { class: "wide" }, h("table", { class: "settings" }, settings)))),
  );

  async function refresh() {
    let found;
    try {
      found = await ask(`/jobs/${encodeURIComponent(id)}`);
    } catch (error) {
      if (error.status !== 404) throw error;
      title.textContent = "There is no such job";
      facts.replaceChildren("It was never created here, or the emulator was reset.");
      stop();
      return;
    }
    title.textContent = found.name;
    keep(facts, factsOf(found), (fact) => fact.name, (fact) => h("span", {}, fact.copy ? h("code", { class: "long" }, fact.text) : fact.text, fact.copy && copyButton(fact.copy)));
    const together = gangs(found.runs);
    keep(charts, together.slice(0, GANGS_SHOWN).map((gang) => timeline.data(gang)), (gang) => gang.key, timeline);
    if (!together.length) charts.replaceChildren(h("p", { class: "empty" }, "This job has not run yet."));
    const sorted = together.flatMap((gang) => [...gang].sort(byName));
    keep(runs, sorted, (run) => run.id, drawRun);
    keep(settings, found.settings, ([name]) => name, ([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "mono" }, value)));
    log.show(sorted);
  }

  const stop = poll(refresh, 1);
  return () => { stop(); log.stop(); };
}

const legend = () => h("p", { class: "legend" }, h("span", { class: "waiting" }, "accepted, provisioning"),
  ["IN_PROGRESS", "SUCCEEDED", "FAILED"].map((state) => h("span", { class: `state-${state}` }, stateWord(state))));

function factsOf(found) {
  const artifact = found.artifact && `artifact ${found.artifact.name}, ${size(found.artifact.size)}`;
  return [
    { name: "created", text: `created ${day(Date.parse(found.created))}` },
    { name: "runs", text: plural(found.runs.length, "run") },
    { name: "artifact", text: artifact ?? "no artifact" },
    { name: "id", text: found.id, copy: found.id },
  ];
}

function drawRun(run) {
  const [accepted, started, finished] = [run.accepted, run.started, run.finished].map((time) => (time ? Date.parse(time) : null));
  const waited = started ? (started - accepted) / 1000 : finished ? (finished - accepted) / 1000 : NaN;
  const ran = started && finished ? (finished - started) / 1000 : NaN;
  return h("tr", {},
    h("th", { scope: "row" }, run.name, run.groups.map((group) => h("div", { class: "group", title: group.details }, `group ${group.name}, `, stateWord(group.state)))),
    h("td", {}, badge(run.state)),
    h("td", { class: "number" }, clock(accepted)),
    h("td", { class: "number" }, duration(waited)),
    h("td", { class: "number" }, ran ? duration(ran) : hasEnded(run.state) ? "" : h("span", { class: "muted" }, "…")),
    h("td", { class: "muted" }, run.details),
    h("td", {}, copyButton(run.id, "Copy")));
}
