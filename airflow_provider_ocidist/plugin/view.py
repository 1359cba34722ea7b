"""View: the page's content as JSON, from Airflow's record and the gang's state. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import Cancel, Fail
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.gangs.failure import Failure
from airflow_provider_ocidist.gangs.spending import Spending, seconds_of, spans_of
from airflow_provider_ocidist.gangs.status_line import word_on_page
from airflow_provider_ocidist.hooks.ended_states import ENDED_STATES
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.causes import MEANINGS
from airflow_provider_ocidist.model.homes import words_of
from airflow_provider_ocidist.model.run import (
    Expectations,
    NodeStatus,
    RunRecord,
    RunRef,
    RunStatus,
)
from airflow_provider_ocidist.plugin.records import TaskId, TaskRecord
from airflow_provider_ocidist.plugin.status_cache import Snapshot

Json = dict[str, Any]

OUR_OPERATORS = ("DistributedTraining", "distributed_training")
"""Words in the class names of operators, and of the decorator, that start gangs."""
NODE_WORDS = ("state", "phase", "details", "cause", "host", "message")
NODE_NUMBERS = (
    *("started_at", "finished_at", "heartbeat_at", "exit_code", "step"),
    *("cores", "memory", "memory_limit", "gpu", "gpu_memory"),
)
"""Names of what a task publishes of a node in numbers; `NODE_WORDS`: in words."""
TAILS = 20
"""Most nodes whose last lines are sent along, those that failed first; the log of the others is requested."""


def task_view(record: TaskRecord, snapshot: Snapshot, now: float) -> Json:
    """Return the page's content for one task instance. `now` is a Unix time, in seconds."""
    ref, status = snapshot.record.ref if snapshot.record else record.ref, snapshot.status
    return {
        "task": _task(record),
        "gang": _gang(ref, snapshot, record) if ref else None,
        "seen": {"at": snapshot.at, "problem": snapshot.problem},
        "going_on": goes_on(record, snapshot),
        "state": _state(record, status),
        "progress": _progress(record, snapshot),
        "failure": failure_of(record, snapshot, now),
        "restarts": restarts_of(record, snapshot),
        "warning": record.result.get("warning"),
        "nodes": _nodes(record, snapshot),
        "losses": losses_of(record, snapshot),
        "checkpoints": _checkpoints(record, snapshot),
        "outputs": list(status.outputs if status else _items(record.result.get("outputs"))),
        "node_seconds": node_seconds_shown(status, record, now),
        "spent": spent(snapshot, record, now),
        "now": now,
    }


def run_row(record: TaskRecord) -> Json:
    """Return the row of one training run in the list."""
    ref = record.ref
    assert ref is not None
    checkpoint, progress = _part(record, "checkpoint"), _part(record, "progress")
    return {
        "task": _task(record),
        "name": ref.key.name,
        "nodes": ref.nodes,
        "topology": ref.topology,
        "submitted_at": ref.submitted_at,
        "step": _first_number(progress.get("step"), checkpoint.get("step")),
        "loss": _first_number(progress.get("loss"), checkpoint.get("loss")),
        "checkpoint_uri": record.result.get("checkpoint_uri"),
    }


def starts_gangs(operator: str | None) -> bool:
    """Whether an operator of this name is one of ours that starts training runs."""
    return (
        operator is not None and any(word in operator for word in OUR_OPERATORS) and "Sensor" not in operator
    )


def goes_on(record: TaskRecord, snapshot: Snapshot) -> bool:
    """Whether the content may still change."""
    if record.state not in ENDED_STATES:
        return record.ref is not None or starts_gangs(record.operator)
    if record.ref is None or snapshot.status is None:
        return False
    return not snapshot.status.ended or snapshot.is_listing


def _task(record: TaskRecord) -> Json:
    return {
        **asdict(record.id),
        "state": record.state,
        "operator": record.operator,
        "try_number": record.try_number,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "starts_gangs": starts_gangs(record.operator),
    }


def _gang(ref: RunRef, snapshot: Snapshot, record: TaskRecord) -> Json:
    words = words_of(ref.backend)
    return {
        "name": ref.key.name,
        "backend": ref.backend,
        "node_noun": words.node,
        "identifier": words.identifier,
        "topology": ref.topology,
        "nodes": ref.nodes,
        "members": list(members_of(record, snapshot)),
        "job_id": ref.job_id,
        "main_run_id": ref.main_run_id,
        "run_dir": ref.run_dir,
        "submitted_at": ref.submitted_at,
        "attempt": ref.key.attempt,
        "generation": ref.key.generation,
        # The service does not know it; the task has published it.
        "candidate": record.ref.candidate if record.ref else "",
        "has_log": ref.has_log,
        "console_url": snapshot.console_url,
    }


def _state(record: TaskRecord, status: RunStatus | None) -> str:
    """Return the gang's state in one word: that of the nodes that take part, or Airflow's if they were not seen."""
    if status is None:
        return {"success": "SUCCEEDED", "failed": "FAILED"}.get(record.state or "", "UNKNOWN")
    return word_on_page(status)


def _progress(record: TaskRecord, snapshot: Snapshot) -> Json:
    if snapshot.status is not None and snapshot.status.progress is not None:
        known = asdict(snapshot.status.progress)
    else:
        known = dict(_part(record, "progress"))
    names = ("step", "steps", "loss", "throughput", "learning_rate", "updated_at")
    return {
        **{name: _number(known.get(name)) for name in names},
        "remaining": snapshot.remaining,
        "steps_per_second": snapshot.steps_per_second,
    }


def restarts_of(record: TaskRecord, snapshot: Snapshot) -> list[Json]:
    """Return why the nodes have launched the training again, the first one first."""
    known = codec.encode(snapshot.status.restarts) if snapshot.status else _parts(record, "restarts")
    words, numbers = ("cause", "message"), ("rank", "step", "seconds")
    return [
        {**{name: each.get(name) for name in words}, **{name: _number(each.get(name)) for name in numbers}}
        for each in known
    ]


def members_of(record: TaskRecord, snapshot: Snapshot) -> tuple[int, ...]:
    """Return the ranks of the nodes that take part, or did at the end; empty: all."""
    if snapshot.status is not None:
        return snapshot.status.members
    known = _parts(record, "restarts")
    return tuple(_items(known[-1].get("members"))) if known else ()


def failure_of(record: TaskRecord, snapshot: Snapshot, now: float) -> Json | None:
    """Return why the gang or its task failed, and the remedy; None if neither did."""
    if record.state == "success":
        return None
    if isinstance(record.failure.get("message"), str):
        return _failure(record.failure, snapshot.status)
    found = _seen_failure(record, snapshot, now)
    if found is not None:
        return _failure(found.to_json(), snapshot.status)
    if record.state == "failed" and record.ref is not None:
        seen = (
            "all its nodes have ended without an error"
            if snapshot.status and snapshot.status.ended
            else "the state of its nodes is not known"
        )
        return _failure({"message": f"the task has failed, but {seen}: see the log of the task"}, None)
    return None


def _seen_failure(record: TaskRecord, snapshot: Snapshot, now: float) -> Failure | None:
    """Return the failure from the nodes alone: the task may not have seen it yet, or not published it."""
    if record.ref is None or snapshot.status is None:
        return None
    # If its job was not read, it is unknown whether an agent has to report.
    known = snapshot.record or RunRecord(ref=record.ref, expects=Expectations(reports=False))
    match decide(known, snapshot.status, now if snapshot.status.at is None else snapshot.status.at):
        case Fail(cause, message):
            return Failure.of(cause, message, known, snapshot.status)
        case Cancel(ending, of_the_rest=False):
            return Failure.of(ending.cause, ending.message, known, snapshot.status)
    return None


def _failure(published: Mapping[str, Any], status: RunStatus | None) -> Json:
    rank, cause = published.get("rank"), published.get("cause")
    node = next((node for node in status.nodes if node.rank == rank), None) if status else None
    tail = node.report.tail if node and node.report else None
    return {
        "cause": cause,
        "message": published["message"],
        "remedy": (MEANINGS[Cause(cause)].on_page if cause in list(Cause) else None)
        or published.get("remedy"),
        "rank": rank,
        "tail": tail or "\n".join(map(str, _items(published.get("last_lines")))) or None,
    }


def _nodes(record: TaskRecord, snapshot: Snapshot) -> list[Json]:
    members = members_of(record, snapshot)
    return [
        {**node, "takes_part": not members or node.get("rank") in members}
        for node in _known(record, snapshot)
    ]


def _known(record: TaskRecord, snapshot: Snapshot) -> list[Json]:
    status = snapshot.status
    if status is None:
        return [_published_node(node) for node in _parts(record, "nodes")]
    failed = [node.rank for node in status.nodes if node.report and node.report.cause and node.report.tail]
    with_tail = set(failed[:TAILS])
    slow = {each.node: each.line for node in status.nodes if node.report for each in node.report.slow}
    return [
        {**_node(node, with_tail=node.rank in with_tail), "slow": slow.get(node.rank)}
        for node in status.nodes
    ]


def _node(node: NodeStatus, *, with_tail: bool) -> Json:
    report = node.report
    known: Json = {
        "rank": node.rank,
        "run_id": node.run_id,
        "state": str(node.state),
        "details": node.details,
        "cause": str(node.cause) if node.cause else None,
        "started_at": node.started_at,
        "finished_at": node.finished_at,
    }
    if report is None:
        return known
    usage = asdict(report.usage) if report.usage else {}
    return {
        **known,
        "phase": str(report.phase),
        "host": report.address,
        "main": report.main,
        "heartbeat_at": report.heartbeat_at,
        "exit_code": report.exit_code,
        "cause": str(report.cause) if report.cause else known["cause"],
        "message": report.message,
        "tail": report.tail if with_tail else None,
        "step": report.progress.step if report.progress else None,
        "health": "; ".join(report.health) or None,
        **usage,
    }


def _published_node(node: Mapping[str, Any]) -> Json:
    words = {name: _text(node[name]) for name in NODE_WORDS if name in node}
    return {**node, **words, **{name: _number(node[name]) for name in NODE_NUMBERS if name in node}}


def losses_of(record: TaskRecord, snapshot: Snapshot) -> list[list[float]]:
    """Return step and loss: of all checkpoints, and of the node with most points of the present attempt."""
    curves: list[Sequence[Sequence[float]]] = [
        [each for each in map(_numbers, _items(_part(record, "progress").get("losses"))) if len(each) == 2]
    ]
    progress: Iterable[Any] = (
        (node.report.progress for node in snapshot.status.nodes if node.report) if snapshot.status else ()
    )
    reported = [each for each in progress if each is not None]
    curves += [each.losses for each in reported]
    points: dict[float, float] = {
        each.step: each.loss
        for each in snapshot.checkpoints.items
        if each.loss is not None and each.step is not None
    }
    points |= {step: loss for step, loss in max(curves, key=len)}  # noqa: C416 - pairs from JSON are lists
    points |= {each.step: each.loss for each in reported if each.step is not None and each.loss is not None}
    return [[step, loss] for step, loss in sorted(points.items())]


def _checkpoints(record: TaskRecord, snapshot: Snapshot) -> Json:
    items = [asdict(each) for each in snapshot.checkpoints.items]
    known = _part(record, "checkpoint")
    if not items and snapshot.status is not None and snapshot.status.checkpoint is not None:
        items = [asdict(snapshot.status.checkpoint)]
    elif not items and isinstance(known.get("uri"), str):
        items = [{**known, **{name: _number(known.get(name)) for name in ("step", "loss")}}]
    return {
        "items": items,
        "older": snapshot.checkpoints.older,
        "problem": snapshot.checkpoints.problem,
        "uri": record.ref.checkpoints_uri if record.ref else None,
    }


def node_seconds_shown(status: RunStatus | None, record: TaskRecord, now: float) -> float | None:
    """Return the time of all nodes together, from start to end; None if no times are known."""
    times = (
        spans_of(status)
        if status
        else [
            (_number(node.get("started_at")), _number(node.get("finished_at")))
            for node in _parts(record, "nodes")
        ]
    )
    return seconds_of(times, now)


def spent(snapshot: Snapshot, record: TaskRecord, now: float) -> Json | None:
    """Return node-hours and cost of the task's attempts since its last clear, and a forecast; None if not known."""
    if snapshot.status is None:
        names = ("node_hours", "cost")
        return _numbers_in(record.result, names) or _numbers_in(record.failure, names) or None
    price = record.ref.price if record.ref else None
    at = now if snapshot.status.at is None else snapshot.status.at
    used = Spending.of(snapshot.status, at, price, snapshot.remaining)
    return used.to_json() if used.spent.node_seconds else None


# What a task has published may be anything: others write XComs too.


def _part(record: TaskRecord, name: str) -> Mapping[str, Any]:
    """Return a part of a task's result; empty if it is no mapping."""
    found = record.result.get(name)
    return found if isinstance(found, Mapping) else {}


def _parts(record: TaskRecord, name: str) -> list[Mapping[str, Any]]:
    """Return the mappings of a list in a task's result."""
    return [each for each in _items(record.result.get(name)) if isinstance(each, Mapping)]


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _first_number(*values: Any) -> float | None:
    return next((found for found in map(_number, values) if found is not None), None)


def _numbers_in(published: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    found = {name: _number(published.get(name)) for name in names}
    return {name: number for name, number in found.items() if number is not None}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _numbers(value: Any) -> list[float]:
    return [each for each in map(_number, _items(value)) if each is not None]


def no_such_task(task: TaskId) -> Json:
    """Return the content for a task instance that Airflow does not have."""
    return {
        "detail": f"there is no task instance {task.dag_id} / {task.run_id} / {task.task_id} [{task.map_index}]"
    }
