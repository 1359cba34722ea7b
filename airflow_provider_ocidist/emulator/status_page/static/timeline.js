// A gang's timeline: when each node was accepted, when it ran, how it ended.

import { h, svg } from "./dom.js";
import { byName, clock, duration, hasEnded, plural, stateWord } from "./words.js";
import { badge } from "./jobs.js";

const ROW = 24;
const BAR = 12;
const REASONS = 3;
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];

// Runs whose lives overlap belong together. The newest gang first.
export function gangs(runs) {
  const found = [];
  let last = -Infinity;
  for (const run of [...runs].sort((one, other) => Date.parse(one.accepted) - Date.parse(other.accepted))) {
    if (Date.parse(run.accepted) > last) found.unshift([]);
    found[0].push(run);
    last = Math.max(last, end(run));
  }
  return found;
}

const end = (run) => (run.finished ? Date.parse(run.finished) : hasEnded(run.state) ? Date.parse(run.accepted) : Infinity);

export function timeline(gang) {
  const { start, stop, rows } = gang;
  const span = Math.max(stop - start, 100);
  const x = (time) => `${(100 * (time - start)) / span}%`;
  const width = (from, to) => `${Math.max(0, (100 * (to - from)) / span)}%`;
  const height = rows.length * ROW;
  const ticks = ticksOf(span / 1000);
  const words = `${plural(rows.length, "node")}, accepted at ${clock(start)}`;
  const live = rows.some((row) => !row.over);
  return h("figure", { class: "chart" },
    h("figcaption", {}, words, h("span", { class: "muted" }, live ? ` · ${duration(span / 1000)} so far` : ` · took ${duration(span / 1000)}`)),
    h("div", { class: "chart-body" },
      h("div", { class: "chart-names" }, rows.map((row) => h("div", { title: row.name }, row.name))),
      svg("svg", { class: "chart-bars", height: height + 20, role: "img", "aria-label": `${words}: ${rows.map(say).join("; ")}` },
        ticks.map((seconds) => svg("line", { class: "grid", x1: x(start + seconds * 1000), x2: x(start + seconds * 1000), y1: 0, y2: height })),
        ticks.map((seconds, place) => svg("text", { class: ["tick first", "tick minor", "tick"][place ? 2 - (place % 2) : 0], x: x(start + seconds * 1000), y: height + 14 }, offset(seconds))),
        rows.flatMap((row, place) => drawRow(row, place, { x, width, stop }))),
      h("div", { class: "chart-states" }, rows.map((row) => h("div", { title: row.details }, badge(row.state))))),
    reasons(rows).map((reason) => h("p", { class: "reasons" }, reason)));
}

function drawRow(row, place, { x, width, stop }) {
  const y = place * ROW + (ROW - BAR) / 2;
  const until = row.finished ?? stop;
  const begun = row.started ?? until;
  const bars = [svg("rect", { class: "waiting", x: x(row.accepted), width: width(row.accepted, begun), y, height: BAR, rx: 2 },
    svg("title", {}, `${row.name}: accepted, provisioning for ${duration((begun - row.accepted) / 1000)}`))];
  if (row.started) {
    bars.push(svg("rect", { class: `ran state-${row.state}`, x: x(begun), width: width(begun, until), y, height: BAR, rx: 2 },
      svg("title", {}, [`${row.name}: ${stateWord(row.state)}, ran ${duration((until - begun) / 1000)}`, row.address].filter(Boolean).join(", "))));
  }
  if (row.over) bars.push(svg("rect", { class: `ended state-${row.state}`, x: x(until), y: y - 2, width: 3, height: BAR + 4, rx: 1, transform: "translate(-3 0)" }));
  return bars;
}

function offset(seconds) {
  if (seconds < 60) return `${seconds} s`;
  const [hours, minutes, rest] = [seconds / 3600, (seconds / 60) % 60, seconds % 60].map(Math.floor);
  const two = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)} h` : `${minutes}:${two(rest)} min`;
}

function reasons(rows) {
  const failed = rows.filter((row) => row.state === "FAILED");
  const rest = failed.length - REASONS;
  return [...failed.slice(0, REASONS).map((row) => `${row.name}: ${row.details}`), ...(rest > 0 ? [`and ${rest} more failed`] : [])];
}

const say = (row) => `${row.name} ${stateWord(row.state)}`;

function ticksOf(seconds) {
  const step = STEPS.find((each) => seconds / each <= 6) ?? 86400;
  const found = [];
  for (let at = 0; at < seconds * 0.94; at += step) found.push(Math.round(at * 10) / 10);
  return found;
}

// What a timeline shows: changes with the clock only while something lives.
timeline.data = (gang) => {
  const rows = [...gang].sort(byName).flatMap(rowsOf);
  const live = rows.some((row) => !row.over);
  const start = Math.min(...rows.map((row) => row.accepted));
  const stop = live ? Math.max(Date.now(), start + 100) : Math.max(...rows.map((row) => row.finished ?? row.accepted));
  return { key: gang[0].id, start, stop, rows };
};

function rowsOf(run) {
  const nodes = run.groups.length && run.nodes.length ? run.nodes : [run];
  return nodes.map((node) => ({
    name: node === run ? run.name : `${node.group} · node-${node.rank}`,
    state: node.state,
    details: node === run ? run.details : endOf(node),
    address: node === run ? run.nodes[0]?.address : node.address,
    accepted: Date.parse(node.accepted ?? run.accepted),
    started: node.started ? Date.parse(node.started) : null,
    finished: node.finished ? Date.parse(node.finished) : null,
    over: hasEnded(node.state),
  }));
}

const endOf = (node) => (node.exit_code === null ? stateWord(node.state) : `exit code ${node.exit_code}`);
