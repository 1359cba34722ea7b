"""The routes of the page: its files and its JSON. Every route checks the user."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi import Path as InPath
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse

from airflow_provider_ocidist.model.masking import masked_messages
from airflow_provider_ocidist.model.plain_text import strict_json
from airflow_provider_ocidist.plugin import records, view
from airflow_provider_ocidist.plugin.files import CONTENT_TYPES, HEADERS, STATIC
from airflow_provider_ocidist.plugin.log_tail import LogTail
from airflow_provider_ocidist.plugin.records import Position, TaskId, TaskRecord
from airflow_provider_ocidist.plugin.status_cache import Snapshot, StatusCache

UNCACHED = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
UNKNOWN_CONNECTION = (
    "the task's connection is not known any more: it is a template, and Airflow has deleted what it was (it keeps the "
    "rendered fields of its newest runs only); see the task's log"
)
TASK_PATH = "/api/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/{map_index}"


def may(entity: DagAccessEntity) -> Any:
    """Return a check of the user's access to the DAG in the path: it raises 401 or 403."""
    return Depends(requires_access_dag("GET", entity))


# The page shows the task's XComs, and its nodes' last lines.
SEES_TASK = [may(DagAccessEntity.TASK_INSTANCE), may(DagAccessEntity.XCOM), may(DagAccessEntity.TASK_LOGS)]
SEEN_IN_ROW = (DagAccessEntity.TASK_INSTANCE, DagAccessEntity.XCOM)
"""Kinds of data in a row of the list: even the job's name and its nodes are of an XCom."""


def task_in_path(dag_id: str, run_id: str, task_id: str, map_index: Annotated[int, InPath(ge=-1)]) -> TaskId:
    return TaskId(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index)


TaskInPath = Annotated[TaskId, Depends(task_in_path)]


def make_app() -> FastAPI:
    """Return the application that Airflow's API server mounts."""
    app = FastAPI(title="ocidist", docs_url=None, redoc_url=None, openapi_url=None)
    _serve_files(app)
    _serve_runs(app)
    _serve_task(app, StatusCache())
    return app


def _serve_files(app: FastAPI) -> None:
    files = {path.name: path for path in STATIC.iterdir() if path.suffix in CONTENT_TYPES}

    @app.get("/", dependencies=[Depends(get_user)])
    async def page() -> FileResponse:
        return _file(files["index.html"])

    @app.get("/static/{name}", dependencies=[Depends(get_user)])
    async def asset(name: str) -> FileResponse:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        return _file(files[name])


def _file(path: Path) -> FileResponse:
    return FileResponse(path, media_type=CONTENT_TYPES[path.suffix], headers=HEADERS)


def _serve_runs(app: FastAPI) -> None:
    @app.get("/api/runs")
    def runs(
        request: Request, user: GetUserDep, before: Annotated[str | None, Query()] = None
    ) -> JSONResponse:
        """Return the newest training runs of the DAGs whose task instances and XComs the user may read."""
        readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
        found, older = records.recent_tasks(readable, _position(before))
        dag_ids = {record.id.dag_id for record in found}
        shown = {dag_id for dag_id in dag_ids if _sees_rows(request, user, dag_id)}
        rows = [view.run_row(record) for record in found if record.id.dag_id in shown]
        return _json(
            {
                "runs": masked_messages(rows),
                "before": older.text if older else None,
                "now": time.time(),
            }
        )


def _position(before: str | None) -> Position | None:
    try:
        return None if before is None else Position.of_text(before)
    except ValueError as error:
        raise HTTPException(422, str(error)) from error


def _sees_rows(request: Request, user: BaseUser, dag_id: str) -> bool:
    try:
        for entity in SEEN_IN_ROW:
            requires_access_dag("GET", entity, dag_id)(request, user)
    except HTTPException:
        return False
    return True


def _serve_task(app: FastAPI, cache: StatusCache) -> None:
    @app.get(TASK_PATH, dependencies=SEES_TASK)
    async def task(task: TaskInPath) -> JSONResponse:
        record = await _record(task)
        snapshot = await _state(cache, record)
        # A thousand nodes take a while, in which the event loop must serve other requests.
        return await run_in_threadpool(
            lambda: _json(masked_messages(view.task_view(record, snapshot, time.time()), snapshot.secrets))
        )

    @app.get(f"{TASK_PATH}/mapped", dependencies=SEES_TASK)
    async def mapped(task: TaskInPath) -> JSONResponse:
        """Return the map indexes of a task, for a request without one."""
        found = await run_in_threadpool(records.mapped_indexes, task)
        return _json({"indexes": [{"map_index": index, "state": state} for index, state in found]})

    @app.get(f"{TASK_PATH}/log", dependencies=SEES_TASK)
    async def log(task: TaskInPath, rank: Annotated[int, Query(ge=0)]) -> JSONResponse:
        """Return the last lines of a node."""
        record = await _record(task)
        if record.ref is None or rank >= record.ref.nodes:
            raise HTTPException(404, f"there is no node {rank}")
        if record.conn_id is None:
            tail = LogTail(problem=UNKNOWN_CONNECTION)
        else:
            tail = await cache.tail(record.conn_id, record.ref, rank, record.ended_at)
        lines = [{"id": line.id, "time": line.time, "text": line.text} for line in tail.lines]
        return _json({"rank": rank, "lines": lines, "problem": tail.problem})


async def _state(cache: StatusCache, record: TaskRecord) -> Snapshot:
    if record.ref is None:
        return Snapshot()
    if record.conn_id is None:
        # Another connection may be one of another tenancy, where another gang may have this id.
        return Snapshot(problem=UNKNOWN_CONNECTION)
    return await cache.at(record.conn_id, record.ref)


async def _record(task: TaskId) -> TaskRecord:
    record = await run_in_threadpool(records.read_task, task)
    if record is None:
        raise HTTPException(404, view.no_such_task(task)["detail"])
    return record


def _json(value: Any) -> JSONResponse:
    try:
        return JSONResponse(value, headers=UNCACHED)
    except ValueError:
        # A loss that is no number, half of a surrogate pair: others write XComs, checkpoints and reports too.
        return JSONResponse(strict_json(value), headers=UNCACHED)
