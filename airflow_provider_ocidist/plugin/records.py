"""Records: training runs in Airflow's own database."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select, tuple_

from airflow_provider_ocidist.backends.local.plans import KIND as LOCAL
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.model.run import RunRef

RUN, RESULT, FAILURE = "run", "return_value", "failure"
PAGE_RUNS = 50
"""Most training runs on one page of the list."""
MOST_ROUNDS = 10
"""Number of times that one page reads `PAGE_RUNS` XComs of the name of ours: other programs may have many."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_ID = re.compile(rf"(?:{_NAME})?")
"""Pattern of the services' ids, since they are inserted into searches; an id may be empty."""
_JOB_ID = re.compile(rf"{_NAME}(?:/{_NAME})?")
"""Pattern of the id of a gang, which becomes a part of a path: an OCID, a UUID, or a namespace and a name."""
_CONN_ID = re.compile(r"[\w#!()\-.:/\\]{1,250}")
"""Pattern of the ids that Airflow lets connections have."""
SHARING = ("pytorchjob", "trainjob", "runai", LOCAL)
"""Homes whose nodes may meet in a mounted folder that the API server's machine has, too."""
BUCKETS = ("oci://", "s3://", "s3a://", "gs://", "gcs://", "az://", "abfs://", "abfss://")
"""Beginnings of the URIs of object storage, where no place is a file on the API server's machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskId:
    """Names a task instance."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRecord:
    """A task instance and its XComs. Times are Unix times, in seconds."""

    id: TaskId
    state: str | None
    operator: str | None
    try_number: int
    started_at: float | None = None
    ended_at: float | None = None
    conn_id: str | None = OciHook.default_conn_name
    """Connection of the task; None: Airflow does not know any more what its template gave."""
    ref: RunRef | None = None
    """Gang by the XCom `run`; None before that, and for tasks that are not ours. See `StatusCache`."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """Return value of the task; empty until it has succeeded."""
    failure: Mapping[str, Any] = field(default_factory=dict)
    """Failure that the task has published; empty if it had no time for that."""


def read_task(task: TaskId) -> TaskRecord | None:
    """Return a task instance; None if Airflow has none of that name."""
    with create_session() as session:
        row = session.scalar(select(TaskInstance).where(*_is(TaskInstance, task)))
        if row is None:
            return None
        values = {
            entry.key: _value(entry.value)
            for entry in session.scalars(
                select(XComModel).where(*_is(XComModel, task), XComModel.key.in_((RUN, RESULT, FAILURE)))
            )
        }
        rendered = session.scalar(
            select(RenderedTaskInstanceFields.rendered_fields).where(*_is(RenderedTaskInstanceFields, task))
        )
        conn_id = _conn_id_in(rendered) if rendered else _conn_id_of_version(session, row)
        return _record(task, row, values, conn_id)


def _conn_id_in(rendered: Mapping[str, Any]) -> str:
    """Return the connection in the rendered fields, which only the task itself writes; others may write XComs."""
    return str(rendered.get("conn_id") or OciHook.default_conn_name)


def _conn_id_of_version(session: Any, row: Any) -> str | None:
    """Return a task's connection by its DAG: Airflow deletes the rendered fields of all but the newest runs."""
    stored = session.scalar(
        select(SerializedDagModel).where(SerializedDagModel.dag_version_id == row.dag_version_id)
    )
    return None if stored is None else written_conn_id(stored.data or {}, row.task_id)


def written_conn_id(dag: Mapping[str, Any], task_id: str) -> str | None:
    """Return the connection that a serialized DAG names for a task; None where it is not written there."""
    tasks = (each.get("__var", {}) for each in dag.get("dag", {}).get("tasks", ()))
    task = next((each for each in tasks if each.get("task_id") == task_id), None)
    if task is None:
        return None
    if not task.get("_is_mapped"):
        return _without_jinja(task.get("conn_id"))
    expanded = task.get("expand_input") or {}
    value = expanded.get("value")
    by_name = value.get("__var", {}) if isinstance(value, Mapping) else {}
    named = task.get("partial_kwargs", {}).get("conn_id")
    if named is None and expanded.get("type") in (None, "dict-of-lists") and "conn_id" not in by_name:
        return OciHook.default_conn_name
    return _without_jinja(named)


def _without_jinja(conn_id: Any) -> str | None:
    is_written = (
        isinstance(conn_id, str) and bool(conn_id) and not any(mark in conn_id for mark in ("{{", "{%", "{#"))
    )
    return conn_id if is_written else None


def mapped_indexes(task: TaskId) -> list[tuple[int, str | None]]:
    """Return the map indexes of a task with their states; none if it is not mapped."""
    with create_session() as session:
        found = session.execute(
            select(TaskInstance.map_index, TaskInstance.state)
            .where(
                TaskInstance.dag_id == task.dag_id,
                TaskInstance.run_id == task.run_id,
                TaskInstance.task_id == task.task_id,
                TaskInstance.map_index >= 0,
            )
            .order_by(TaskInstance.map_index)
        )
        return [(int(index), state) for index, state in found]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a page of the list ends: at an XCom, by its time and, of those of one time, by the rest of its key."""

    timestamp: datetime
    dag_run_id: int
    map_index: int
    task_id: str

    @classmethod
    def of(cls, entry: Any) -> Self:
        return cls(entry.timestamp, entry.dag_run_id, entry.map_index, entry.task_id)

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return the position that `text` was made of. Raises ValueError for another text."""
        try:
            timestamp, dag_run_id, map_index, task_id = text.split("~", 3)
            return cls(datetime.fromisoformat(timestamp), int(dag_run_id), int(map_index), task_id)
        except ValueError as error:
            raise ValueError(f"{text!r} is no position in the list of runs") from error

    @property
    def text(self) -> str:
        return f"{self.timestamp.isoformat()}~{self.dag_run_id}~{self.map_index}~{self.task_id}"


def recent_tasks(
    dag_ids: Collection[str], before: Position | None
) -> tuple[list[TaskRecord], Position | None]:
    """Return the newest tasks of these DAGs that have started a gang, and the position of the older ones."""
    found: list[TaskRecord] = []
    with create_session() as session:
        for _ in range(MOST_ROUNDS):
            entries = _entries_before(session, dag_ids, before)
            for entry, record in zip(entries, _records_of(session, entries), strict=True):
                before = Position.of(entry)
                found += [record] if record is not None and record.ref is not None else []
                if len(found) == PAGE_RUNS:
                    return found, before
            if len(entries) < PAGE_RUNS:
                return found, None
    return found, before


def _entries_before(session: Any, dag_ids: Collection[str], before: Position | None) -> list[Any]:
    """Return the newest XComs of the name of ours."""
    at = (XComModel.timestamp, XComModel.dag_run_id, XComModel.map_index, XComModel.task_id)
    wanted = select(XComModel).where(XComModel.key == RUN, XComModel.dag_id.in_(dag_ids))
    if before is not None:
        end = (before.timestamp, before.dag_run_id, before.map_index, before.task_id)
        wanted = wanted.where(tuple_(*at) < end)
    newest_first = wanted.order_by(*(column.desc() for column in at))
    return list(session.scalars(newest_first.limit(PAGE_RUNS)))


def _records_of(session: Any, entries: Sequence[Any]) -> list[TaskRecord | None]:
    """Return the task of each XCom; None where Airflow has it no more."""
    tasks = [id_of(entry) for entry in entries]
    rows = {id_of(row): row for row in session.scalars(_among(select(TaskInstance), TaskInstance, tasks))}
    results = _among(select(XComModel).where(XComModel.key == RESULT), XComModel, tasks)
    returned = {id_of(entry): _value(entry.value) for entry in session.scalars(results)}
    return [
        _record(task, rows[task], {RUN: _value(entry.value), RESULT: returned.get(task)}, None)
        if task in rows
        else None
        for task, entry in zip(tasks, entries, strict=True)
    ]


def id_of(row: Any) -> TaskId:
    return TaskId(dag_id=row.dag_id, run_id=row.run_id, task_id=row.task_id, map_index=row.map_index)


def _is(model: Any, task: TaskId) -> tuple[Any, ...]:
    return (
        model.dag_id == task.dag_id,
        model.run_id == task.run_id,
        model.task_id == task.task_id,
        model.map_index == task.map_index,
    )


def _among(query: Any, model: Any, tasks: Collection[TaskId]) -> Any:
    columns = tuple_(model.dag_id, model.run_id, model.task_id, model.map_index)
    return query.where(columns.in_([(t.dag_id, t.run_id, t.task_id, t.map_index) for t in tasks]))


def _record(task: TaskId, row: Any, values: Mapping[str, Any], conn_id: str | None) -> TaskRecord:
    return TaskRecord(
        id=task,
        state=row.state,
        operator=row.operator,
        try_number=row.try_number,
        started_at=_unix(row.start_date),
        ended_at=_unix(row.end_date),
        conn_id=conn_id,
        ref=ref_in(values.get(RUN), task),
        result=_mapping(values.get(RESULT)),
        failure=_mapping(values.get(FAILURE)),
    )


def ref_in(value: Any, task: TaskId) -> RunRef | None:
    """Return the reference in an XCom; None unless it is valid and this task's own.

    A user who may write XComs could otherwise read other runs through the API server. All other fields are replaced
    by the service's before they are used; of these a path is only read below the connection's `work_dir`.
    """
    try:
        ref = RunRef.from_json(value)
        places = [ref.run_dir, *([ref.checkpoints_uri] if ref.checkpoints_uri else [])]
        named = (ref.compartment_id, ref.log_group_id, ref.log_id)
        ids = [*ref.run_ids, *filter(None, named)]
        # Of processes on this machine the id is their run directory.
        is_id = ref.job_id == ref.run_dir if ref.backend == LOCAL else _JOB_ID.fullmatch(ref.job_id)
        at_one = ref.conn_id is None or _can_be_asked_for(ref.conn_id)
        are_ids = is_id and at_one and all(_ID.fullmatch(text) for text in ids)
        key = ref.key
        mine = (key.dag_id, key.run_id, key.task_id, key.map_index) == (
            task.dag_id,
            task.run_id,
            task.task_id,
            task.map_index,
        )
    except (TypeError, ValueError, LookupError, AttributeError):
        return None
    can_be = all(in_bucket(place) or (ref.backend in SHARING and place.startswith("/")) for place in places)
    return ref if mine and are_ids and can_be and len(ref.run_ids) == ref.nodes else None


def _can_be_asked_for(conn_id: str) -> bool:
    """Whether Airflow may have a connection of this id, which leads out of no folder of a secrets backend."""
    return bool(_CONN_ID.fullmatch(conn_id)) and not {".", ".."} & set(re.split(r"[/\\]", conn_id))


def in_bucket(place: str) -> bool:
    return place.startswith(BUCKETS)


def is_below(place: str, folder: str | None) -> bool:
    """Whether a path is one of a mounted folder, whatever it looks like."""
    if not folder or not folder.startswith("/"):
        return False
    return f"{posixpath.normpath(place)}/".startswith(f"{posixpath.normpath(folder)}/")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _value(stored: Any) -> Any:
    """Return an XCom's value; some versions of Airflow store it as a text of JSON."""
    if not isinstance(stored, str):
        return stored
    try:
        return json.loads(stored)
    except ValueError:
        return stored


def _unix(time: datetime | None) -> float | None:
    return time.timestamp() if time is not None else None
