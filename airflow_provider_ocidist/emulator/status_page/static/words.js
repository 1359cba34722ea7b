// Numbers, times and states in words.

const STATES = {
  ACCEPTED: "accepted", IN_PROGRESS: "running", NEEDS_ATTENTION: "needs attention", SUCCEEDED: "succeeded",
  FAILED: "failed", CANCELING: "canceling", CANCELED: "canceled", DELETED: "deleted", ACTIVE: "active",
  CREATING: "creating", DELETING: "deleting",
};
const ENDED = new Set(["SUCCEEDED", "FAILED", "CANCELED", "DELETED"]);
const order = new Intl.Collator("en", { numeric: true });

export const byName = (one, other) => order.compare(one.name, other.name);
export const stateWord = (state) => STATES[state] ?? String(state).toLowerCase().replaceAll("_", " ");
export const hasEnded = (state) => ENDED.has(state);
export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
export const number = (value) => value.toLocaleString("en-US");

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 0) return "0 s";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function ago(time) {
  const seconds = (Date.now() - time) / 1000;
  if (seconds < 5) return "just now";
  return `${seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds).replace(/ min .*/, " min")} ago`;
}

export function clock(time, milliseconds = false) {
  const date = new Date(time);
  const text = date.toLocaleTimeString("en-GB");
  return milliseconds ? `${text}.${String(date.getMilliseconds()).padStart(3, "0")}` : text;
}

export function day(time) {
  const date = new Date(time);
  const today = new Date().toDateString() === date.toDateString();
  return today ? clock(time) : `${date.toISOString().slice(0, 10)} ${clock(time).slice(0, 5)}`;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "";
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let value = bytes;
  let unit = -1;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}

// OCIDs end in sixty characters of which the last six identify them.
export function shortId(id) {
  const parts = id.split(".");
  return parts.length < 5 ? id : `${parts[1]}…${id.slice(-6)}`;
}
