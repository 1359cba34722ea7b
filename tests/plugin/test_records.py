"""The connection of a task, by what Airflow still knows: its page asks no other one."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.sdk import DAG, task
from airflow.serialization.serialized_objects import DagSerialization
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session

from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.model.run import RunKey
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.plugin import app as routes
from airflow_provider_ocidist.plugin import records
from airflow_provider_ocidist.plugin.records import PAGE_RUNS, Position, TaskId, read_task, recent_tasks
from airflow_provider_ocidist.plugin.status_cache import StatusCache
from tests.plugin.gangs import record, ref

JOB = {"name": "x"}
BEFORE = datetime.now(UTC) - timedelta(days=400)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """The tables of Airflow that the page reads, in memory."""
    engine = create_engine("sqlite://")
    import_all_models()
    Base.metadata.create_all(engine)

    @contextmanager
    def opened() -> Iterator[Session]:
        yield session

    with Session(engine) as session:
        monkeypatch.setattr(records, "create_session", opened)
        yield session


def dag() -> DAG:
    plain = {"job": JOB}
    with DAG("old", schedule=None) as made:
        DistributedTrainingOperator(task_id="default", **plain)
        DistributedTrainingOperator(task_id="named", conn_id="eu", **plain)
        DistributedTrainingOperator(task_id="template", conn_id="{{ params.home }}", **plain)
        DistributedTrainingOperator(task_id="block", conn_id="{% if 1 %}a{% endif %}", **plain)
        DistributedTrainingOperator.partial(task_id="mapped", conn_id="eu", **plain).expand(nodes=[1, 2])
        DistributedTrainingOperator.partial(task_id="mapped_default", **plain).expand(nodes=[1, 2])
        DistributedTrainingOperator.partial(task_id="over_homes", **plain).expand(conn_id=["eu", "us"])
        DistributedTrainingOperator.partial(task_id="over_all", **plain).expand_kwargs([{"conn_id": "eu"}])

        @task.distributed_training(job=JOB, conn_id="eu")
        def decorated(data: str) -> None: ...

        decorated.expand(data=["a", "b"])
    return made


@pytest.fixture
def stored(database: Session) -> Callable[..., TaskId]:
    """A task instance in the database, without rendered fields unless they are given."""

    def store(task_id: str, rendered: dict[str, Any] | None = None, *, version: bool = True) -> TaskId:
        version_id, map_index = uuid.uuid4(), -1
        names = {"dag_id": "old", "run_id": "backfill__1", "task_id": task_id, "map_index": map_index}
        if version:
            data = DagSerialization.to_dict(dag())
            row = {"id": uuid.uuid4(), "dag_id": "old", "data": data, "dag_hash": "h"}
            database.execute(
                insert(SerializedDagModel.__table__).values(
                    **row, dag_version_id=version_id, created_at=BEFORE, last_updated=BEFORE
                )
            )
        run = {"dag_id": "old", "run_id": names["run_id"], "run_type": "backfill", "run_after": BEFORE}
        database.execute(
            insert(DagRun.__table__).values(**run, state="running", log_template_id=1, span_status="x")
        )
        columns = {"id": uuid.uuid4(), "state": "running", "pool": "p", "pool_slots": 1, "try_number": 1}
        database.execute(
            insert(TaskInstance.__table__).values(
                **names, **columns, dag_version_id=version_id, span_status="x", executor_config={}
            )
        )
        if rendered is not None:
            database.execute(
                insert(RenderedTaskInstanceFields.__table__).values(**names, rendered_fields=rendered)
            )
        return TaskId(**names)

    return store


def conn_id_of(task_id: TaskId) -> str | None:
    found = read_task(task_id)
    assert found is not None
    return found.conn_id


def test_what_the_task_itself_has_rendered_comes_first(stored: Callable[..., TaskId]) -> None:
    assert conn_id_of(stored("template", {"conn_id": "eu"})) == "eu"


@pytest.mark.parametrize(
    "task_id, expected",
    [
        ("default", "oci_default"),
        ("named", "eu"),
        ("template", None),
        ("block", None),
        ("mapped", "eu"),
        ("mapped_default", "oci_default"),
        ("over_homes", None),
        ("over_all", None),
        ("decorated", "eu"),
        ("renamed since", None),
    ],
)
def test_of_an_old_run_the_connection_is_the_one_that_its_dag_names(
    stored: Callable[..., TaskId], task_id: str, expected: str | None
) -> None:
    assert conn_id_of(stored(task_id)) == expected


def test_without_the_version_of_the_dag_no_connection_is_guessed(stored: Callable[..., TaskId]) -> None:
    assert conn_id_of(stored(random.choice(["default", "named"]), version=False)) is None


async def test_a_task_of_an_unknown_connection_asks_no_service_and_its_page_says_so() -> None:
    def connect(conn_id: str) -> Any:
        raise AssertionError(f"asked {conn_id}")

    cache = StatusCache(connect)
    found = await routes._state(cache, record(conn_id=None))
    assert found.status is None
    assert str(found.problem).startswith("the task's connection is not known any more")


def with_runs(database: Session, entries: list[tuple[str, datetime, bool]]) -> None:
    """Store a DAG run with a task for each entry: its id, the time of its XCom `run`, and whether that is ours."""
    columns = {"state": "running", "pool": "p", "pool_slots": 1, "try_number": 1, "span_status": "x"}
    for run in range(3):
        of_dag = {"dag_id": "d", "run_id": f"r{run}", "run_type": "manual", "run_after": BEFORE}
        database.execute(
            insert(DagRun.__table__).values(**of_dag, state="running", log_template_id=1, span_status="x")
        )
    for number, (task_id, at, is_ours) in enumerate(entries, start=1):
        names = {"dag_id": "d", "run_id": f"r{number % 3}", "task_id": task_id, "map_index": -1}
        key = RunKey(dag_id="d", run_id=names["run_id"], task_id=task_id)
        value = ref(key=key).to_json() if is_ours else "another program's"
        database.execute(
            insert(TaskInstance.__table__).values(id=uuid.uuid4(), **names, **columns, executor_config={})
        )
        database.execute(
            insert(XComModel.__table__).values(
                dag_run_id=number % 3, **names, key="run", value=value, timestamp=at
            )
        )


def all_pages(most: int = 30) -> list[list[str]]:
    """Return the task ids on each page, by the positions as the page hands them back."""
    pages, before = [], None
    while len(pages) < most:
        found, older = recent_tasks({"d"}, before)
        pages.append([each.id.task_id for each in found])
        if older is None:
            return pages
        before = Position.of_text(older.text)
    raise AssertionError("the pages do not end")


def test_xcoms_of_other_programs_hide_no_training_run(database: Session) -> None:
    now = datetime.now(UTC)
    others = [(f"other{n}", now - timedelta(seconds=n), False) for n in range(3 * PAGE_RUNS)]
    with_runs(database, [*others, ("train", now - timedelta(days=1), True)])
    assert all_pages() == [["train"]]


def test_of_very_many_foreign_xcoms_a_page_reads_so_many_and_the_next_one_goes_on(
    database: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "PAGE_RUNS", 2)
    now = datetime.now(UTC)
    others = [(f"other{n}", now - timedelta(seconds=n), False) for n in range(50)]
    with_runs(database, [*others, ("train", now - timedelta(days=1), True)])
    assert records.MOST_ROUNDS == 10
    assert all_pages() == [[], [], ["train"]]


def test_each_run_is_on_one_page_also_where_many_begin_in_the_same_microsecond(database: Session) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    now = datetime.now(UTC)
    moments = [now - timedelta(microseconds=rng.randrange(4)) for _ in range(4 * PAGE_RUNS)]
    entries = [(f"t~{n}", at, rng.random() < 0.6) for n, at in enumerate(moments)]
    with_runs(database, entries)
    pages = all_pages()
    shown = [each for page in pages for each in page]
    ours = {task_id: at for task_id, at, is_ours in entries if is_ours}
    assert sorted(shown) == sorted(ours)
    assert [ours[each] for each in shown] == sorted(ours.values(), reverse=True)
    assert {len(page) for page in pages[:-1]} == {PAGE_RUNS}


@pytest.mark.parametrize(
    "text", ["", "x", "2026-11-28T20:00:00+00:00", "2026-11-28T20:00:00+00:00~a~-1~t", "~1~-1~t"]
)
def test_a_position_that_the_page_was_not_given_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="position"):
        Position.of_text(text)
