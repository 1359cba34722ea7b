// Requests to the emulator for JSON, repeated while the page is open.

const BASE = "/_emulator/ui";
const listeners = new Set();

export const onConnection = (listener) => listeners.add(listener);

export async function ask(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(given);
  let response;
  try {
    response = await fetch(`${BASE}${path}${given.length ? `?${search}` : ""}`);
  } catch (error) {
    announce(false);
    throw error;
  }
  announce(true);
  return read(response);
}

export async function send(method, path, body) {
  const response = await fetch(`/_emulator${path}`, {
    method, headers: { "content-type": "application/json" }, body: body && JSON.stringify(body),
  });
  return read(response);
}

async function read(response) {
  if (response.status === 204) return null;
  const body = await response.json();
  if (!response.ok) throw Object.assign(new Error(body.message), { status: response.status });
  return body;
}

function announce(connected) {
  for (const listener of listeners) listener(connected);
}

export const objectUrl = (bucket, name, download = false) =>
  `${BASE}/buckets/${encode(bucket)}/objects/${encode(name)}${download ? "?download=1" : ""}`;

export const encode = (name) => encodeURIComponent(name).replaceAll(".", "%2E");

// Do `work` now and every so often until the returned function is called; not while the page is hidden.
export function poll(work, seconds) {
  let stopped = false;
  let timer = null;
  async function round() {
    timer = null;
    if (!document.hidden) {
      try { await work(); } catch (error) { if (error.status) console.warn(error.message); }
    }
    if (!stopped) timer = setTimeout(round, seconds * 1000);
  }
  const wake = () => {
    if (!document.hidden && timer !== null) { clearTimeout(timer); round(); }
  };
  document.addEventListener("visibilitychange", wake);
  round();
  return () => {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", wake);
  };
}
