// Overview: what this emulator is, what goes on, how to point clients at it.

import { copyButton, h, keep, svg } from "./dom.js";
import { ask, poll } from "./server.js";
import { duration, number, plural } from "./words.js";
import { jobRow } from "./jobs.js";

export function overview(root) {
  const facts = h("p", { class: "facts" });
  const counts = h("div", { class: "counts" });
  const rate = h("figure", { class: "rate" });
  const recent = h("div", { class: "rows" });
  const clients = h("div", { class: "clients" });
  const ids = h("dl", { class: "ids" });
  root.append(
    h("header", { class: "head" }, h("h1", {}, "Overview"), facts),
    counts,
    h("section", {}, h("h2", {}, "Requests, last minute"), rate),
    h("section", {}, h("div", { class: "title" }, h("h2", {}, "Latest jobs"), h("a", { href: "#/jobs" }, "All jobs")), recent),
    h("section", {}, h("h2", {}, "Point a client here"), clients),
    h("section", {}, h("h2", {}, "What exists from the start"), ids),
  );

  return poll(async () => {
    const found = await ask("/overview");
    keep(facts, factsOf(found), (fact) => fact.name, drawFact);
    keep(counts, countsOf(found.counts), (count) => count.name, drawCount);
    keep(rate, [found.rate], () => "rate", drawRate);
    keep(recent, found.jobs.length ? found.jobs : [{ id: "none" }], (job) => job.id, (job) => (job.name === undefined ? nothingYet() : jobRow(job)));
    keep(clients, found.clients, (client) => client.name, drawClient);
    keep(ids, Object.entries(found.ids), ([name]) => name, drawId);
  }, 2);
}

function factsOf(found) {
  const seconds = Math.floor(Date.now() / 1000 - found.started);
  return [
    { name: "url", text: found.url, copy: true },
    { name: "region", text: found.region },
    { name: "up", text: `up ${seconds < 60 ? `${seconds} s` : duration(seconds)}` },
    { name: "version", text: `version ${found.version}` },
    { name: "signatures", text: found.signatures ? "signatures verified" : "signatures not verified" },
  ];
}

function drawFact(fact) {
  return h("span", {}, fact.copy ? h("code", {}, fact.text) : fact.text, fact.copy && copyButton(fact.text));
}

function countsOf(counts) {
  return [
    { name: "jobs", value: counts.jobs, path: "jobs" },
    { name: "job runs", value: counts.runs, path: "jobs", note: counts.active ? `${counts.active} active` : "none active" },
    { name: "buckets", value: counts.buckets, path: "objects" },
    { name: "recorded calls", value: counts.calls, path: "calls" },
    { name: "rules", value: counts.rules, path: "rules", note: counts.rules ? "in force" : "no faults injected" },
  ];
}

function drawCount(count) {
  return h("a", { class: "count", href: `#/${count.path}` },
    h("strong", {}, number(count.value)), h("span", {}, count.name), count.note && h("small", {}, count.note));
}

function drawRate({ calls, errors, absent }) {
  const most = Math.max(4, ...calls);
  const width = 100 / calls.length;
  const bars = calls.flatMap((count, place) => [
    bar(place * width, width, count / most, "bar"), bar(place * width, width, (absent[place] + errors[place]) / most, "bar absent"), bar(place * width, width, errors[place] / most, "bar error"),
  ]);
  const total = calls.reduce((sum, each) => sum + each, 0);
  const wrong = errors.reduce((sum, each) => sum + each, 0);
  const missing = absent.reduce((sum, each) => sum + each, 0);
  const words = `${plural(total, "request")}, ${number(missing)} “not found”, ${plural(wrong, "error")}, at most ${Math.max(...calls)} a second`;
  return h("div", {}, svg("svg", { role: "img", "aria-label": words, height: 56, width: "100%" }, bars), h("figcaption", {}, words));
}

function bar(x, width, height, kind) {
  return height ? svg("rect", {
    class: kind, x: `${x + width * 0.12}%`, width: `${width * 0.76}%`, y: `${100 - height * 100}%`, height: `${height * 100}%`, rx: 1,
  }) : null;
}

function nothingYet() {
  return h("p", { class: "empty" }, "No job yet. Point a client here, and what it creates appears.");
}

function drawClient(client) {
  return h("div", { class: "client" },
    h("div", { class: "client-head" }, h("h3", {}, client.name), client.note && h("span", { class: "muted" }, client.note), copyButton(client.text)),
    h("pre", { tabindex: 0, "aria-label": client.name }, client.text));
}

function drawId([name, value]) {
  return h("div", {}, h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, h("code", { title: value }, value), copyButton(value)));
}

