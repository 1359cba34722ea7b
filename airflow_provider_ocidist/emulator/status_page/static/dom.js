// Elements out of data. Text only ever becomes a text node: what comes from logs and object names is hostile.

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
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Bring the children of `parent` in line with `items`, keeping the elements (their focus, their scroll position) of
// those that are still there. `render` makes an element; one is made anew when its item has changed.
export function keep(parent, items, key, render) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    const text = JSON.stringify(item);
    let element = old.get(name);
    old.delete(name);
    if (!element || element.shown !== text) {
      const fresh = render(item);
      fresh.dataset.key = name;
      fresh.shown = text;
      if (element) replace(element, fresh);
      if (element === place) place = fresh;
      element = fresh;
    }
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const element of old.values()) element.remove();
}

function replace(element, fresh) {
  const links = [...element.querySelectorAll("a, button")];
  const focused = links.indexOf(document.activeElement);
  element.replaceWith(fresh);
  if (focused >= 0) fresh.querySelectorAll("a, button")[focused]?.focus();
}

export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "copy", "aria-label": `${label}: ${text}` }, label);
  button.addEventListener("click", async () => {
    await copy(text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1200);
  });
  return button;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = h("textarea", {});
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function toast(text) {
  const place = document.getElementById("toast");
  place.textContent = text;
  place.classList.add("shown");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => place.classList.remove("shown"), 4000);
}
