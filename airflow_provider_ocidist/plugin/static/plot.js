// The loss over the steps, as SVG.

import { h, svg } from "./dom.js";
import { number, significant } from "./words.js";

const HEIGHT = 220;
const TICK = 130; // pixels between two labelled steps
const EDGE = { left: 52, right: 14, top: 12, bottom: 26 };

export function lossPlot(points, checkpoints, steps, width) {
  const [firstStep, lastStep] = [points[0][0], Math.max(points.at(-1)[0], points.length > 1 ? 0 : points[0][0] + 1)];
  const losses = points.map(([, loss]) => loss);
  const values = ticks(Math.min(...losses), Math.max(...losses), 4);
  const across = ticks(firstStep, lastStep, Math.max(2, width / TICK)).filter((step) => Number.isInteger(step) && step >= firstStep && step <= lastStep);
  const x = (step) => EDGE.left + ((step - firstStep) / Math.max(1, lastStep - firstStep)) * (width - EDGE.left - EDGE.right);
  const y = (loss) => HEIGHT - EDGE.bottom - ((loss - values[0]) / (values.at(-1) - values[0] || 1)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const last = points.at(-1);
  const words = `Loss from ${significant(losses[0])} at step ${number(firstStep)} to ${significant(last[1])} at step ${number(last[0])}`;
  const marks = checkpoints.filter((each) => each.step != null && each.step >= firstStep && each.step <= lastStep);
  const readout = h("figcaption", { class: "muted" });
  const rest = `${words}${steps ? ` of ${number(steps)}` : ""}`;
  readout.textContent = rest;
  const cursor = svg("line", { class: "cursor", y1: EDGE.top, y2: HEIGHT - EDGE.bottom });
  const dot = svg("circle", { class: "dot", r: 4 });
  const pointer = svg("g", { class: "pointer", visibility: "hidden" }, cursor, dot);
  const drawing = svg("svg", { class: "plot", width, height: HEIGHT, role: "img", "aria-label": words, tabindex: 0 },
    values.map((value) => [
      svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: EDGE.left - 8, y: y(value) + 4, "text-anchor": "end" }, significant(value, 3)),
    ]),
    across.map((step) => svg("text", { class: "tick", x: x(step), y: HEIGHT - 8, "text-anchor": "middle" }, number(step))),
    marks.map((each) => svg("line", { class: "mark", x1: x(each.step), x2: x(each.step), y1: HEIGHT - EDGE.bottom, y2: HEIGHT - EDGE.bottom - 7 },
      svg("title", {}, `checkpoint at step ${number(each.step)}`))),
    points.length > 1 && svg("path", { class: "curve", d: points.map(([step, loss], at) => `${at ? "L" : "M"}${x(step).toFixed(1)} ${y(loss).toFixed(1)}`).join("") }),
    svg("circle", { class: "newest", r: 3.5, cx: x(last[0]), cy: y(last[1]) }),
    pointer);
  let at = points.length - 1;
  const show = (index) => {
    at = Math.min(points.length - 1, Math.max(0, index));
    const [step, loss] = points[at];
    pointer.setAttribute("visibility", "visible");
    cursor.setAttribute("x1", x(step));
    cursor.setAttribute("x2", x(step));
    dot.setAttribute("cx", x(step));
    dot.setAttribute("cy", y(loss));
    readout.textContent = `step ${number(step)}: loss ${significant(loss, 5)}`;
  };
  const hide = () => {
    pointer.setAttribute("visibility", "hidden");
    readout.textContent = rest;
  };
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const place = event.clientX - box.left;
    show(points.reduce((best, point, index) => (Math.abs(x(point[0]) - place) < Math.abs(x(points[best][0]) - place) ? index : best), 0));
  });
  drawing.addEventListener("pointerleave", hide);
  drawing.addEventListener("blur", hide);
  drawing.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    show(at + by);
  });
  return h("figure", { class: "panel loss" }, drawing, readout);
}

// Round values that enclose the range, about `count` of them.
export function ticks(low, high, count) {
  if (high === low) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}
