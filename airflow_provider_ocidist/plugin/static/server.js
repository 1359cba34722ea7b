// Requests for JSON to the API server, repeated as long as the content may change.

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export async function ask(path, query = {}) {
  const search = new URLSearchParams(query).toString();
  let response;
  try {
    response = await fetch(`api/${path}${search ? `?${search}` : ""}`, { credentials: "same-origin" });
  } catch {
    throw new Refused(0, "Airflow's API server does not answer; the page tries again.");
  }
  if (response.ok) return response.json();
  throw new Refused(response.status, WORDS[response.status] ?? (await detailOf(response)));
}

const WORDS = {
  401: "You are no longer signed in. Reload the page to sign in again.",
  403: "You may not see this task: you need the right to read its task instances, XComs and logs.",
};

async function detailOf(response) {
  try {
    const { detail } = await response.json();
    return typeof detail === "string" ? detail : `Airflow answered ${response.status}.`;
  } catch {
    return `Airflow answered ${response.status}.`;
  }
}

export const taskPath = (task) =>
  `dags/${part(task.dag_id)}/runs/${part(task.run_id)}/tasks/${part(task.task_id)}/${task.map_index}`;

const part = (name) => encodeURIComponent(name);

// Repeat `work`; it returns the seconds until the next time, or null if the content is final. Return a function that
// begins the next time at once, or when the present one is over.
export function poll(work) {
  let timer = null;
  let waiting = false;
  let busy = false;
  let due = false;
  async function round() {
    timer = null;
    if (document.hidden) {
      waiting = true;
      return;
    }
    busy = true;
    let seconds;
    do {
      due = false;
      seconds = await work();
    } while (due);
    busy = false;
    if (seconds !== null) timer = setTimeout(round, seconds * 1000);
  }
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && waiting) {
      waiting = false;
      round();
    }
  });
  round();
  return () => {
    due = true;
    if (busy) return;
    clearTimeout(timer);
    round();
  };
}
