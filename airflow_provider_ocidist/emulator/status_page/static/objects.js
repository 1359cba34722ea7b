// Buckets and objects: by prefix, with a look into small ones.

import { h, toast } from "./dom.js";
import { ask, encode, objectUrl, poll } from "./server.js";
import { day, number, size } from "./words.js";

const PREVIEW_BYTES = 64 * 1024;
const IMAGES = /\.(png|jpe?g|gif|webp|svg)$/i;

export function objects(root, rest) {
  const [first, ...others] = rest.split("/");
  return first ? inBucket(root, decodeURIComponent(first), decodeURIComponent(others.join("/"))) : listOfBuckets(root);
}

const place = (bucket, prefix = "") => `#/objects/${encodeURIComponent(bucket)}/${encodeURIComponent(prefix)}`;

function listOfBuckets(root) {
  const body = h("tbody");
  const note = h("p", { class: "facts" });
  root.append(h("header", { class: "head" }, h("h1", {}, "Objects"), note), h("div", { class: "wide" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Bucket"), h("th", { scope: "col" }, "Created"))), body)));
  return poll(async () => {
    const found = await ask("/buckets");
    note.replaceChildren(h("span", {}, "namespace ", h("code", {}, found.namespace)));
    const shown = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    body.replaceChildren(...found.buckets.map((bucket) => h("tr", {},
      h("th", { scope: "row" }, h("a", { href: place(bucket.name) }, bucket.name)), h("td", { class: "muted" }, day(Date.parse(bucket.created))))));
    if (shown) [...body.querySelectorAll("a")].find((link) => link.getAttribute("href") === shown)?.focus();
  }, 5);
}

function inBucket(root, bucket, prefix) {
  const body = h("tbody");
  const preview = h("aside", { class: "preview", hidden: true, "aria-label": "Preview" });
  const more = h("button", { type: "button", hidden: true }, "More");
  const folder = prefix.slice(0, prefix.lastIndexOf("/") + 1);
  const filter = h("input", { type: "search", placeholder: "Prefix", "aria-label": "Names that begin with", value: prefix.slice(folder.length) });
  const refreshButton = h("button", { type: "button", onclick: () => load(true) }, "Refresh");
  root.append(
    h("header", { class: "head" }, crumbs(bucket, folder), h("h1", {}, folder ? folder.split("/").at(-2) || "/" : bucket), h("div", { class: "tools" }, filter, refreshButton)),
    h("div", { class: "browse" }, h("div", { class: "wide" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Name"), h("th", { scope: "col", class: "number" }, "Size"), h("th", { scope: "col" }, "Modified"))), body), more), preview));
  let next = null;
  let asked = 0;
  filter.addEventListener("input", () => load(true));
  more.addEventListener("click", () => load(false));
  const close = () => { preview.hidden = true; preview.replaceChildren(); body.querySelector("[aria-current]")?.removeAttribute("aria-current"); };
  root.addEventListener("escape", close);

  async function load(anew) {
    const mine = ++asked;
    let found;
    try {
      found = await ask(`/buckets/${encode(bucket)}/objects`, { prefix: folder + filter.value, start: anew ? null : next });
    } catch (error) {
      body.replaceChildren(h("tr", {}, h("td", { colspan: 3, class: "empty" }, error.status === 404 ? "There is no such bucket." : error.message)));
      return;
    }
    if (mine !== asked) return;
    if (anew) body.replaceChildren();
    body.append(...found.prefixes.map((each) => folderRow(each)), ...found.objects.map((each) => objectRow(each)));
    next = found.next;
    more.hidden = !next;
    if (!body.childElementCount) body.append(h("tr", {}, h("td", { colspan: 3, class: "empty" }, "Nothing here.")));
  }

  function folderRow(name) {
    return h("tr", {}, h("th", { scope: "row" }, h("a", { class: "folder", href: place(bucket, name) }, name.slice(folder.length))), h("td"), h("td"));
  }

  function objectRow(object) {
    const button = h("button", { type: "button", class: "link", onclick: () => { close(); button.setAttribute("aria-current", "true"); look(object); } }, object.name.slice(folder.length) || object.name);
    return h("tr", {}, h("th", { scope: "row" }, button), h("td", { class: "number" }, size(object.size)), h("td", { class: "muted", title: object.timeModified }, day(Date.parse(object.timeModified))));
  }

  async function look(object) {
    const content = h("div", { class: "content" });
    preview.replaceChildren(
      h("div", { class: "title" }, h("h2", {}, object.name.split("/").at(-1) || object.name), h("button", { type: "button", class: "copy", "aria-label": "Close the preview", onclick: close }, "Close")),
      h("dl", { class: "ids" }, fact("name", object.name), fact("size", object.size < 1024 ? size(object.size) : `${size(object.size)} (${number(object.size)} bytes)`), fact("modified", object.timeModified), fact("md5", object.md5), fact("etag", object.etag)),
      h("p", {}, h("a", { class: "button", href: objectUrl(bucket, object.name, true), download: object.name.split("/").at(-1) }, "Download")), content);
    preview.hidden = false;
    try {
      content.append(...await inside(bucket, object));
    } catch (error) {
      toast(`The object cannot be read: ${error.message}`);
    }
  }

  load(true);
  return () => root.removeEventListener("escape", close);
}

const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, h("code", { class: "long" }, value ?? "")));

function crumbs(bucket, folder) {
  const parts = folder.split("/").slice(0, -1);
  const links = parts.slice(0, -1).map((part, index) => h("a", { href: place(bucket, `${parts.slice(0, index + 1).join("/")}/`) }, part || "/"));
  return h("p", { class: "crumbs" }, h("a", { href: "#/objects" }, "Buckets"), folder && h("a", { href: place(bucket) }, bucket), links);
}

async function inside(bucket, object) {
  if (!object.size) return [h("p", { class: "muted" }, "The object is empty.")];
  if (IMAGES.test(object.name)) return [h("img", { src: objectUrl(bucket, object.name), alt: object.name })];
  const response = await fetch(objectUrl(bucket, object.name), { headers: { range: `bytes=0-${PREVIEW_BYTES - 1}` } });
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  const bytes = new Uint8Array(await response.arrayBuffer());
  const part = object.size > bytes.length ? h("p", { class: "muted" }, `The first ${size(bytes.length)} of ${size(object.size)}.`) : null;
  if (bytes.includes(0)) return [h("p", { class: "muted" }, "Binary data; the first bytes:"), h("pre", { tabindex: 0 }, hex(bytes.subarray(0, 256)))];
  return [part, h("pre", { tabindex: 0 }, new TextDecoder().decode(bytes))].filter(Boolean);
}

function hex(bytes) {
  const rows = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const text = row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    rows.push(`${at.toString(16).padStart(4, "0")}  ${row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(48)} ${text}`);
  }
  return rows.join("\n");
}
