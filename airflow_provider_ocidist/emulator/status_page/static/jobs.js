// Jobs: the newest first, each with the states of its runs.

import { h, keep } from "./dom.js";
import { ask, poll } from "./server.js";
import { ago, shortId, stateWord } from "./words.js";

const AT_ONCE = 50;
const FIRST = ["IN_PROGRESS", "ACCEPTED", "CANCELING", "NEEDS_ATTENTION", "FAILED", "CANCELED", "SUCCEEDED", "DELETED"];

export function jobs(root) {
  let start = 0;
  let search = "";
  const filter = h("input", { type: "search", placeholder: "Name or OCID", "aria-label": "Filter jobs", oninput: () => { search = filter.value; start = 0; refresh(); } });
  const rows = h("div", { class: "rows" });
  const pages = h("div", { class: "pages" });
  const back = h("button", { type: "button", onclick: () => { start = Math.max(0, start - AT_ONCE); refresh(); } }, "Newer");
  const more = h("button", { type: "button", onclick: () => { start += AT_ONCE; refresh(); } }, "Older");
  const place = h("span", { class: "muted" });
  pages.append(back, place, more);
  root.append(h("header", { class: "head" }, h("h1", {}, "Jobs"), h("div", { class: "tools" }, filter)), rows, pages);

  async function refresh() {
    const wanted = search;
    const found = await ask("/jobs", { search, start, limit: AT_ONCE });
    if (wanted !== search) return;
    keep(rows, found.jobs.length ? found.jobs : [{ id: "none" }], (job) => job.id, (job) => (job.name === undefined ? none(search) : jobRow(job)));
    place.textContent = found.total ? `${start + 1} to ${start + found.jobs.length} of ${found.total}` : "";
    back.disabled = start === 0;
    more.disabled = start + found.jobs.length >= found.total;
    pages.hidden = found.total <= AT_ONCE;
  }

  return poll(refresh, 2);
}

function none(search) {
  return h("p", { class: "empty" }, search ? `No job is named like “${search}”.` : "No job yet. Jobs that clients create appear here.");
}

export function jobRow(job) {
  return h("a", { class: `row job ${job.state === "DELETED" ? "gone" : ""}`, href: `#/jobs/${job.id}` },
    h("span", { class: "name" }, job.name, job.state === "ACTIVE" ? null : h("span", { class: "muted" }, ` ${stateWord(job.state)}`)),
    h("span", { class: "states" }, statesOf(job.states)),
    h("span", { class: "mono muted id" }, shortId(job.id)),
    h("time", { class: "muted", datetime: job.created, title: job.created, "data-ago": true }, ago(Date.parse(job.created))));
}

function statesOf(states) {
  const known = Object.keys(states).sort((one, other) => FIRST.indexOf(one) - FIRST.indexOf(other));
  if (!known.length) return h("span", { class: "muted" }, "no runs");
  return known.map((state) => badge(state, `${states[state]} ${stateWord(state)}`));
}

export function badge(state, text = stateWord(state)) {
  return h("span", { class: `badge state-${state}` }, text);
}

