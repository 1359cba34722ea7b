"""Data Science Jobs as a model: jobs, job runs, retry tokens, lists that lag; and a client's face."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tests.simulation.faults import http_date, refusal
from tests.simulation.runtime import EPOCH, World
from tests.simulation.store import Place, moment

TERMINAL = ("SUCCEEDED", "FAILED", "CANCELED", "DELETED")
INGESTED = 1.0, 12.0
"""Seconds after which a log line can be found."""
PAGE = 100
_PLAIN = {"environmentVariables", "freeformTags", "definedTags", "systemTags"}


@functools.lru_cache(maxsize=4096)
def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower().replace("in_gbs", "in_gbs")


_ABSENT = {
    "jobLogConfigurationDetails": (
        "enable_logging",
        "enable_auto_log_creation",
        "log_group_id",
        "log_id",
    ),
}
"""What the SDK's model of a part has, and shows as None where the body lacks it."""


def as_sdk(value: Any, absent: Iterable[str] = ()) -> Any:
    """Return a body as the SDK's models show it."""
    if isinstance(value, Mapping):
        shown = {
            _snake(name): dict(item) if name in _PLAIN else as_sdk(item, _ABSENT.get(name, ()))
            for name, item in value.items()
        }
        return SimpleNamespace(**{**dict.fromkeys(absent), **shown})
    return [as_sdk(item) for item in value] if isinstance(value, list | tuple) else value


class Resource:
    """A job or a job run, with all states that it has been in."""

    def __init__(self, ocid: str, body: Mapping[str, Any], now: float, state: str) -> None:
        self.id = ocid
        self.body = body
        self.created = now
        self.history: list[tuple[float, str, str | None]] = [(now, state, None)]
        self.token: str | None = None
        self.started: float | None = None
        self.finished: float | None = None
        self.cancel_asked: float | None = None
        self.has_artifact = False
        self.fields = as_sdk(body)

    @property
    def state(self) -> str:
        return self.history[-1][1]

    @property
    def tags(self) -> Mapping[str, str]:
        return self.body.get("freeformTags") or {}

    def at(self, time: float) -> tuple[str, str | None] | None:
        """Return state and details as they were at a time; None before there was anything."""
        found = None
        for since, state, details in self.history:
            if since <= time:
                found = (state, details)
        return found

    def view(self, state: str, details: str | None) -> Any:
        fields = self.fields
        started = moment(self.started) if self.started is not None and state != "ACCEPTED" else None
        finished = moment(self.finished) if self.finished is not None and state in TERMINAL else None
        shown = SimpleNamespace(**vars(fields))
        shown.id = self.id
        shown.lifecycle_state = state
        shown.lifecycle_details = details
        shown.time_created = shown.time_accepted = moment(self.created)
        shown.time_started, shown.time_finished = started, finished
        for name in ("job_node_configuration_details", "job_log_configuration_details", "freeform_tags"):
            shown.__dict__.setdefault(name, None)
        return shown


@dataclass(frozen=True)
class Line:
    """One line of a log."""

    number: int
    run_id: str
    at: float
    found_at: float
    """From when on a search finds it."""
    text: str

    def entry(self) -> dict[str, Any]:
        content = {
            "id": f"line{self.number}",
            "time": moment(self.at).isoformat(),
            "source": f"jobrun.{self.run_id}",
            "data": {"message": self.text},
        }
        return {"datetime": int((EPOCH + self.at) * 1000), "logContent": content}


class DataScience:
    """The service. `start` is called when a run gets its machines, `stop` when it is asked to end."""

    def __init__(self, world: World, scenario: Any) -> None:
        self.world = world
        self.scenario = scenario
        self.jobs: dict[str, Resource] = {}
        self.runs: dict[str, Resource] = {}
        self.tokens: dict[str, tuple[str, str]] = {}
        self.start: Callable[[Resource], None] = lambda run: None
        self.stop: Callable[[Resource], None] = lambda run: None
        self.on_change: list[Callable[[Resource, str], None]] = []
        self.on_cancel: list[Callable[[Resource], None]] = []
        self.on_create: list[Callable[[Resource], None]] = []
        self.on_refusal: list[Callable[[Resource], None]] = []
        """Called with the job for whose lost machine another is refused."""
        self.hides: Callable[[], bool] = lambda: True
        """Asked before a run is hidden; False where that fault is left out."""
        self.pages_of_jobs = 0
        self.lines: list[Line] = []
        """Of the log, in the order in which they were written."""
        self.foreign_jobs = scenario.foreign_jobs
        """Jobs of others in every compartment; each page of them costs a request."""

    # jobs

    def create_job(self, body: Mapping[str, Any], token: str | None) -> Any:
        known = self._known(token, body)
        if known is not None:
            return self._shown(self.jobs[known])
        job = Resource(
            f"ocid1.datasciencejob.oc1.iad.j{self.world.next_id()}", body, self.world.now, "ACTIVE"
        )
        self.jobs[job.id] = job
        self._remember(token, body, job.id)
        self.world.note("service", "job %s created: %s", _short(job.id), body["displayName"])
        return self._shown(job)

    def get_job(self, job_id: str) -> Any:
        return self._shown(self._there(self.jobs, job_id))

    def described_job(self, job_id: str) -> Mapping[str, Any]:
        return self._there(self.jobs, job_id).body

    def list_jobs(self, compartment_id: str, *, stale: bool = False, **query: Any) -> Any:
        self.pages_of_jobs += 1
        page = int(query.get("page") or 0)
        at = self._as_of(stale, "jobs")
        wanted = query.get("display_name")
        named = [
            job
            for job in self.jobs.values()
            if job.body["compartmentId"] == compartment_id and wanted in (None, job.body["displayName"])
        ]
        seen = [(job, found) for job in named if (found := job.at(at)) is not None]
        state = query.get("lifecycle_state")
        seen = [(job, found) for job, found in seen if state in (None, found[0])]
        seen.sort(key=lambda item: item[0].created, reverse=query.get("sort_order") != "ASC")
        shown = [job.view(*found) for job, found in seen]
        strangers = 0 if wanted is not None else self.foreign_jobs
        last = (len(shown) + strangers) // PAGE
        # Those of others are the newest: ours stand on the last page.
        data = [STRANGER] * min(PAGE, strangers) if page < last else shown
        return SimpleNamespace(data=data, next=str(page + 1) if page < last else None)

    def delete_job(self, job_id: str, *, with_runs: bool) -> None:
        job = self._there(self.jobs, job_id)
        runs = [run for run in self.runs.values() if run.body["jobId"] == job_id and run.state != "DELETED"]
        if runs and not with_runs:
            raise refusal(409, "IncorrectState", f"the job has {len(runs)} job runs", self.world)
        if any(run.state not in TERMINAL for run in runs):
            raise refusal(409, "IncorrectState", "a job run is active", self.world)
        for run in runs:
            self._move(run, "DELETED")
        self._move(job, "DELETED")

    # runs

    def create_run(self, body: Mapping[str, Any], token: str | None) -> Any:
        known = self._known(token, body)
        if known is not None:
            return self._shown(self.runs[known])
        job = self._there(self.jobs, body["jobId"])
        if job.state != "ACTIVE":
            raise refusal(409, "IncorrectState", "the job is being deleted", self.world)
        if self._lacks_machines(body):
            for refuses in self.on_refusal:
                refuses(job)
            raise refusal(400, "OutOfHostCapacity", "Out of host capacity.", self.world)
        run = Resource(
            f"ocid1.datasciencejobrun.oc1.iad.r{self.world.next_id()}", body, self.world.now, "ACCEPTED"
        )
        self.runs[run.id] = run
        self._remember(token, body, run.id)
        self.world.note("service", "run %s created: %s", _short(run.id), body["displayName"])
        for look in self.on_create:
            look(run)
        self.start(run)
        return self._shown(run)

    def _lacks_machines(self, body: Mapping[str, Any]) -> bool:
        """Whether the request for a machine in the place of a lost one is refused."""
        kind, begin, end = self.scenario.shortage or ("", 0.0, 0.0)
        is_other = "ocidist-incarnation" in (body.get("freeformTags") or {})
        return kind == "asked" and is_other and begin <= self.world.now < end

    def get_run(self, run_id: str) -> Any:
        run = self._there(self.runs, run_id)
        shown = self._shown(run)
        shown.as_sent = run.body
        return shown

    def _is_hidden(self, run: Resource) -> bool:
        """Whether the service has forgotten a run for a while."""
        if self.scenario.hidden is None:
            return False
        begin, end, rank = self.scenario.hidden
        found = begin <= self.world.now < end and run.tags.get("ocidist-rank", "0") == str(rank)
        return found and run.state not in TERMINAL and self.hides()

    def list_runs(self, compartment_id: str, *, stale: bool = False, **query: Any) -> Any:
        at = self._as_of(stale, "runs")
        job_id, state = query.get("job_id"), query.get("lifecycle_state")
        seen = [
            (run, found)
            for run in self.runs.values()
            if run.body["compartmentId"] == compartment_id
            and not self._is_hidden(run)
            and job_id in (None, run.body["jobId"])
            and (found := run.at(at)) is not None
            and state in (None, found[0])
        ]
        seen.sort(key=lambda item: item[0].created, reverse=query.get("sort_order") != "ASC")
        return SimpleNamespace(data=[run.view(*found) for run, found in seen], next=None)

    def cancel_run(self, run_id: str) -> None:
        run = self._there(self.runs, run_id)
        if run.state in TERMINAL or run.state == "CANCELING":
            raise refusal(409, "IncorrectState", f"The job run is {run.state}", self.world)
        run.cancel_asked = self.world.now
        for look in self.on_cancel:
            look(run)
        self._move(run, "CANCELING", "Job run is being canceled.")
        self.stop(run)

    def begun(self, run: Resource) -> None:
        run.started = self.world.now
        self._move(run, "IN_PROGRESS", "Job run artifact execution in progress.")

    def over(self, run: Resource, state: str, details: str) -> None:
        if run.state not in TERMINAL:
            run.finished = self.world.now
            self._move(run, state, details)

    def attention(self, run: Resource, state: str) -> None:
        if run.state not in TERMINAL and run.state != "CANCELING":
            self._move(run, state)

    def gone(self, run: Resource) -> None:
        """Somebody deletes the run behind our back."""
        if run.state in TERMINAL[:3]:
            self._move(run, "DELETED")

    # the log

    def logged(self, run: Resource, text: str) -> None:
        """Keep what a node has printed, line by line, where the job has a log."""
        if not self.scenario.logs:
            return
        for line in text.splitlines():
            number = len(self.lines)
            found_at = self.world.now + self.world.between(*INGESTED, "ingested", number)
            self.lines.append(Line(number, run.id, self.world.now, found_at, f"{line} #{number}#"))

    def search(self, begin: float, end: float, query: str) -> list[Any]:
        """Return the entries of a search, oldest first."""
        found = [
            line
            for line in self.lines
            if line.found_at <= self.world.now
            and begin <= EPOCH + line.at <= end
            and ("source =" not in query or line.run_id in query)
        ]
        return [SimpleNamespace(data=line.entry()) for line in sorted(found, key=lambda line: line.at)]

    # small parts

    def _move(self, item: Resource, state: str, details: str | None = None) -> None:
        item.history.append((self.world.now, state, details))
        self.world.note("service", "%s is %s", _short(item.id), state)
        for look in self.on_change:
            look(item, state)

    def _there(self, items: Mapping[str, Resource], ocid: str) -> Resource:
        if ocid not in items or (items is self.runs and self._is_hidden(items[ocid])):
            raise refusal(404, "NotAuthorizedOrNotFound", "not found", self.world)
        return items[ocid]

    def _shown(self, item: Resource) -> Any:
        return item.view(*item.history[-1][1:])

    def _as_of(self, stale: bool, what: str) -> float:
        if not stale:
            return self.world.now
        lag = self.scenario.list_lag * self.world.chance("lag", what, self.world.next_id())
        return self.world.now - lag

    def _known(self, token: str | None, body: Mapping[str, Any]) -> str | None:
        if token is None or token not in self.tokens:
            return None
        payload, ocid = self.tokens[token]
        item = self.jobs.get(ocid) or self.runs[ocid]
        if payload != _digest(body) or item.state == "DELETED":
            raise refusal(409, "InvalidatedRetryToken", "the retry token was used before", self.world)
        return ocid

    def _remember(self, token: str | None, body: Mapping[str, Any], ocid: str) -> None:
        if token is not None:
            self.tokens[token] = (_digest(body), ocid)


STRANGER = SimpleNamespace(
    id="ocid1.datasciencejob.oc1.iad.other",
    display_name="somebody else's",
    freeform_tags={},
    lifecycle_state="ACTIVE",
)


def _digest(body: Mapping[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, default=str)


def _short(ocid: str) -> str:
    return ocid.rpartition(".")[2]


class Service:
    """Where clients find the current schedule's service."""

    data_science: DataScience


class DataScienceClient:
    """The calls that the backend makes of the SDK's client and of ours, with the SDK's own retry strategy."""

    def __init__(self, config: Any, *, retry_strategy: Any = None, timeout: Any = (10, 60), **_: Any) -> None:
        self.retry_strategy = retry_strategy
        self.timeout = timeout
        self.key_read_at = Place.network.world.now
        self.base_client = SimpleNamespace(
            config=config,
            session=SimpleNamespace(mount=lambda *_: None, hooks={"response": []}),
            timeout=timeout,
            sanitize_for_serialization=lambda value: getattr(value, "as_sent", value),
        )

    def _ask(self, operation: str, work: Any, *args: Any, **options: Any) -> Any:
        limit = self.timeout[1] if isinstance(self.timeout, tuple) else 60.0

        def request() -> Any:
            found = Place.network.call(
                "service", operation, work, *args, read_timeout=limit, key_read_at=self.key_read_at
            )
            told = SimpleNamespace(headers={"Date": http_date(Place.network.world.now)})
            for listen in self.base_client.session.hooks["response"]:
                listen(told)
            return found

        retry = options.get("retry_strategy") or self.retry_strategy
        return retry.make_retrying_call(request) if retry else request()

    def create_job(self, body: Any, opc_retry_token: str | None = None, **options: Any) -> Any:
        def work(_name: str) -> Any:
            return Service.data_science.create_job(body, opc_retry_token)

        return _answer(self._ask("create_job", work, body["displayName"], **options))

    def get_job(self, job_id: str, **options: Any) -> Any:
        return _answer(self._ask("get_job", Service.data_science.get_job, job_id, **options))

    def described_job(self, job_id: str) -> Any:
        return self._ask("get_job", Service.data_science.described_job, job_id)

    def list_jobs(self, compartment_id: str, **query: Any) -> Any:
        def work(*, stale: bool = False) -> Any:
            return Service.data_science.list_jobs(compartment_id, stale=stale, **query)

        return _page(self._ask("list_jobs", work))

    def delete_job(self, job_id: str, delete_related_job_runs: bool = False, **options: Any) -> Any:
        def work(job_id: str) -> None:
            Service.data_science.delete_job(job_id, with_runs=delete_related_job_runs)

        return _answer(self._ask("delete_job", work, job_id, **options))

    def create_job_artifact(self, job_id: str, _content: Any, **options: Any) -> Any:
        def work(job_id: str) -> None:
            job = Service.data_science.jobs[job_id]
            if job.has_artifact:
                raise refusal(409, "Conflict", "the job has an artifact", Place.network.world)
            job.has_artifact = True

        return _answer(self._ask("create_artifact", work, job_id))

    def head_job_artifact(self, job_id: str, **options: Any) -> Any:
        def work(job_id: str) -> None:
            if not Service.data_science.jobs[job_id].has_artifact:
                raise refusal(404, "NotAuthorizedOrNotFound", "no artifact", Place.network.world)

        return _answer(self._ask("head_artifact", work, job_id))

    def create_job_run(self, body: Any, opc_retry_token: str | None = None, **options: Any) -> Any:
        def work(_name: str) -> Any:
            return Service.data_science.create_run(body, opc_retry_token)

        return _answer(self._ask("create_job_run", work, body["displayName"], **options))

    def get_job_run(self, run_id: str, **options: Any) -> Any:
        return _answer(self._ask("get_job_run", Service.data_science.get_run, run_id, **options))

    def described_run(self, run_id: str) -> Any:
        return self._ask("get_job_run", Service.data_science.get_run, run_id).as_sent

    def list_job_runs(self, compartment_id: str, **query: Any) -> Any:
        def work(*, stale: bool = False) -> Any:
            return Service.data_science.list_runs(compartment_id, stale=stale, **query)

        return _page(self._ask("list_job_runs", work))

    def cancel_job_run(self, run_id: str, **options: Any) -> Any:
        return _answer(self._ask("cancel", Service.data_science.cancel_run, run_id, **options))


class LogSearchClient(DataScienceClient):
    """The log that nodes write to."""

    def search_logs(self, search: Mapping[str, Any], **_: Any) -> Any:
        begin, end = (search[name].timestamp() for name in ("timeStart", "timeEnd"))

        def work() -> Any:
            return SimpleNamespace(results=Service.data_science.search(begin, end, search["searchQuery"]))

        return _answer(self._ask("search_logs", work))


class LoggingManagementClient(DataScienceClient):
    """The log groups: there is one."""

    def get_log_group(self, group_id: str) -> Any:
        del group_id
        return _answer(SimpleNamespace(compartment_id="ocid1.compartment.oc1..own"))


def _answer(data: Any) -> Any:
    return SimpleNamespace(data=data, headers={}, next_page=None, has_next_page=False)


def _page(found: Any) -> Any:
    headers = {"opc-next-page": found.next} if found.next else {}
    return SimpleNamespace(
        data=found.data, headers=headers, next_page=found.next, has_next_page=bool(found.next)
    )
