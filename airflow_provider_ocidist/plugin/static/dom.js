// Elements from data. Text only ever becomes a text node: nodes' output and names of tasks are untrusted.

const SVG = "http://www.w3.org/2000/svg";

export function h(kind, attributes = {}, ...children) {
  return fill(document.createElement(kind), attributes, children);
}

export function svg(kind, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, kind), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Redraw a part of the page only if its content has changed: selection and scroll position stay.
export function draw(place, shown, render) {
  const text = JSON.stringify(shown);
  if (place.shown === text) return;
  const held = [...place.querySelectorAll("a, button, input, select, summary")].indexOf(document.activeElement);
  place.shown = text;
  place.replaceChildren(...[render(shown)].flat(2).filter(Boolean));
  if (held >= 0) place.querySelectorAll("a, button, input, select, summary")[held]?.focus();
}

export function copyButton(text, what) {
  const button = h("button", { type: "button", class: "copy", "aria-label": `Copy ${what}` }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text)) ? "Copied" : "Not allowed";
    setTimeout(() => { button.textContent = "Copy"; }, 1200);
  });
  return button;
}

async function copied(text) {
  try {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return true;
    }
  } catch {
    // Not allowed in this frame: use the old way.
  }
  const area = h("textarea", { class: "off" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

// A link that leaves this frame: Airflow's frame may not open windows, the surrounding page may.
export function outside(href, attributes, ...children) {
  const link = h("a", { href, target: "_top", rel: "noopener", ...attributes }, ...children);
  link.addEventListener("click", (event) => {
    let frame;
    try {
      frame = window.parent === window ? null : window.parent.document;
    } catch {
      return;
    }
    if (!frame) return;
    event.preventDefault();
    const beyond = frame.createElement("a");
    Object.assign(beyond, { href: link.href, rel: "noopener", target: attributes.target ?? "" });
    if (event.ctrlKey || event.metaKey) beyond.target = "_blank";
    frame.body.append(beyond);
    beyond.click();
    beyond.remove();
  });
  return link;
}
