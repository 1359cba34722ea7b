"""AirflowClient: the few calls of Airflow's public REST API that the demo and the tests need."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

ENDED = ("success", "failed")
TASK_ENDED = (*ENDED, "upstream_failed", "skipped", "removed")
NEW_TOKEN_AFTER_S = 1800.0
TROUBLED_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between tries of a call that Airflow could not serve: SQLite has one writer, and it does not wait long."""
LAST_LINES = 40
"""Lines of a task's log that an error quotes."""


class AirflowApiError(Exception):
    """Airflow refused a call; the text has the call and the answer."""


class AirflowClient:
    """Talks to one api-server as one user."""

    def __init__(self, url: str, user: str, password: str) -> None:
        # trust_env: a proxy of the machine must not handle calls to the loopback.
        # Each call has a connection of its own: one on which Airflow has failed may never be answered again.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(base_url=url, timeout=120, limits=limits, trust_env=False)
        self._login = {"username": user, "password": password}
        self._token_at = 0.0

    def close(self) -> None:
        self._http.close()

    def call(self, method: str, path: str, **options: Any) -> Any:
        """Return the JSON answer to one call below /api/v2."""
        if time.monotonic() - self._token_at > NEW_TOKEN_AFTER_S or not self._token_at:
            self._log_in()
        response = self._served(method, f"/api/v2{path}", **options)
        if response.is_error:
            raise AirflowApiError(f"{method} {path}: {response.status_code} {response.text[:500]}")
        return response.json() if response.content else None

    def _served(self, method: str, url: str, **options: Any) -> httpx.Response:
        """Return the first answer that is no 500, or else the last; only lost reads are repeated."""
        for pause in TROUBLED_PAUSES_S:
            try:
                response = self._http.request(method, url, **options)
            except httpx.TransportError:
                if method != "GET":
                    raise
            else:
                if response.status_code != 500:  # 3.2 does not name a lock as the cause
                    return response
            time.sleep(pause)
        return self._http.request(method, url, **options)

    def _log_in(self) -> None:
        response = self._http.post("/auth/token", json=self._login)
        if response.is_error:
            raise AirflowApiError(f"login: {response.status_code} {response.text[:500]}")
        self._http.headers["Authorization"] = f"Bearer {response.json()['access_token']}"
        self._token_at = time.monotonic()

    def health(self) -> dict[str, str | None]:
        """Return the status of each component; empty while the api-server does not answer."""
        try:
            response = self._http.get("/api/v2/monitor/health", timeout=2)
        except httpx.TransportError:
            return {}
        if response.is_error:
            return {}
        return {name: part["status"] for name, part in response.json().items()}

    def warm_up(self) -> None:
        """Have the api-server build the API for tasks; else the first task waits some seconds for it."""
        self._http.get("/execution/health", timeout=180)

    def import_errors(self) -> list[str]:
        """Return what keeps DAG files from loading, one text for each."""
        errors = self.call("GET", "/importErrors")["import_errors"]
        return [f"{error['filename']}: {error['stack_trace']}" for error in errors]

    def has_dag(self, dag_id: str) -> bool:
        dags = self.call("GET", "/dags", params={"dag_id_pattern": dag_id})["dags"]
        return any(dag["dag_id"] == dag_id for dag in dags)

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a DAG run; return its id."""
        body = {"logical_date": None, "conf": dict(conf or {})}
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", json=body)["dag_run_id"])

    def unpause(self, dag_id: str) -> None:
        """Let a DAG run; one that has a schedule begins at once."""
        self.call("PATCH", f"/dags/{dag_id}", json={"is_paused": False})

    def dag_run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        return dict(self.call("GET", _run(dag_id, run_id)))

    def patch_dag_run(self, dag_id: str, run_id: str, state: str) -> None:
        """Mark a DAG run as success or failed."""
        self.call("PATCH", _run(dag_id, run_id), json={"state": state})

    def task_instances(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """Return the task instances by task id; those of a mapped task as `task_id[map_index]`."""
        rows = self.call("GET", f"{_run(dag_id, run_id)}/taskInstances")["task_instances"]
        return {_name(row): row for row in rows}

    def task_instance(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        return dict(self.call("GET", _task(dag_id, run_id, task_id)))

    def patch_task_state(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Mark a task as success, failed or skipped, as a person does in the browser."""
        self.call("PATCH", _task(dag_id, run_id, task_id), json={"new_state": state})

    def clear(self, dag_id: str, run_id: str, task_ids: Sequence[str], **options: Any) -> None:
        """Clear tasks of a DAG run, so that they run anew; tasks downstream are left alone."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "only_failed": False,
            **options,
        }
        self.call("POST", f"/dags/{dag_id}/clearTaskInstances", json=body)

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return a value that a task pushed to XCom; None where there is none."""
        name, _, index = task_id.rstrip("]").partition("[")
        path = f"{_task(dag_id, run_id, name)}/xcomEntries/{quote(key, safe='')}"
        try:
            entry = self.call("GET", path, params={"map_index": index or -1})
        except AirflowApiError as error:
            if ": 404 " in str(error):
                return None
            raise
        return entry["value"]

    def task_log(self, dag_id: str, run_id: str, task_id: str, attempt: int | None = None) -> list[str]:
        """Return the lines of a task's log; of its newest attempt when none is named."""
        number = attempt or max(1, self.task_instance(dag_id, run_id, task_id)["try_number"])
        name, _, index = task_id.removesuffix("]").partition("[")
        mapped = {"map_index": index} if index else {}
        answer = self.call(
            "GET", f"{_task(dag_id, run_id, name)}/logs/{number}", params={"full_content": True, **mapped}
        )
        return [_log_line(entry) for entry in answer["content"]]

    def wait_for_dag(self, dag_id: str, timeout: float = 240) -> None:
        """Wait until the dag-processor has stored a DAG."""
        deadline = time.monotonic() + timeout
        while not self.has_dag(dag_id):
            if errors := self.import_errors():
                raise AirflowApiError("\n".join(errors))
            if time.monotonic() > deadline:
                raise AirflowApiError(f"no DAG {dag_id!r} after {timeout:.0f} s")
            time.sleep(0.1)

    def wait_for_run(self, dag_id: str, run_id: str, timeout: float) -> dict[str, Any]:
        """Wait until a DAG run has ended; return it."""
        deadline = time.monotonic() + timeout
        while (run := self.dag_run(dag_id, run_id))["state"] not in ENDED:
            if time.monotonic() > deadline:
                raise AirflowApiError(f"{dag_id} {run_id} is {run['state']} after {timeout:.0f} s")
            time.sleep(0.3)
        return run

    def wait_for_task(
        self, dag_id: str, run_id: str, task_id: str, *states: str, timeout: float = 60
    ) -> dict[str, Any]:
        """Wait until a task is in one of the states; return the task instance.

        Raises AirflowApiError, with the end of the task's log, when it is in none of them in time, or when both it and
        its run have ended otherwise.
        """
        deadline = time.monotonic() + timeout
        while (task := self.task_instance(dag_id, run_id, task_id))["state"] not in states:
            # A run that was failed by hand ends before its teardowns.
            ended = task["state"] in TASK_ENDED and self.dag_run(dag_id, run_id)["state"] in ENDED
            if ended or time.monotonic() > deadline:
                when = "at the end of its run" if ended else f"after {timeout:.0f} s"
                said = self._end_of_log(dag_id, run_id, task_id)
                raise AirflowApiError(
                    f"{task_id} is {task['state']}, not {' or '.join(states)}, {when}{said}"
                )
            time.sleep(0.2)
        return task

    def _end_of_log(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Return the last lines of a task, which say why it has ended; nothing where it has none."""
        try:
            lines = self.task_log(dag_id, run_id, task_id)
        except (AirflowApiError, httpx.HTTPError):
            return ""
        return "\n".join(["; its log ends with:", *lines[-LAST_LINES:]])


def _run(dag_id: str, run_id: str) -> str:
    return f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"


def _task(dag_id: str, run_id: str, task_id: str) -> str:
    """Return the path of a task instance; `task_id[3]` names one of a mapped task."""
    name, _, index = task_id.partition("[")
    path = f"{_run(dag_id, run_id)}/taskInstances/{name}"
    return f"{path}/{index.rstrip(']')}" if index else path


def _name(row: Mapping[str, Any]) -> str:
    return row["task_id"] if row["map_index"] < 0 else f"{row['task_id']}[{row['map_index']}]"


def _log_line(entry: Any) -> str:
    """Return one entry as a line: Airflow sends objects with `event`, an `error_detail` carries the traceback."""
    if isinstance(entry, str):
        return entry
    causes = [f"{cause['exc_type']}: {cause['exc_value']}" for cause in entry.get("error_detail") or ()]
    return "\n".join([str(entry.get("event", "")), *causes])
