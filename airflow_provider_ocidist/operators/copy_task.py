"""CopyTask: what a copying task does, on its worker or on a node of the platform. No DAG file imports it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_ocidist.errors import JobFileError, Problem
from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.hooks.errors import as_airflow_errors
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.integrations.lineage import lineage_of_copy
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.work_dir import COPIES_FOLDER
from airflow_provider_ocidist.oci_client.credentials import OciAccess, region_in_profile
from airflow_provider_ocidist.operators.job_arguments import JobArguments, WrittenCode, settings
from airflow_provider_ocidist.operators.training_task import TrainingTask
from airflow_provider_ocidist.operators.training_try import TrainingOperator
from airflow_provider_ocidist.storage import copy_program, locations
from airflow_provider_ocidist.storage.batch import copy_all
from airflow_provider_ocidist.storage.copy_items import CopyItem, read_items, rules_of
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.storage.survey import Sides

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

RUN_ON = ("worker", "platform")
FOLDER, ORDER = "copy_data", "order.json"
"""Folder sent to a node as its code, and the file in it."""
SUBJECT = "the data to copy"


class CopyingOperator(TrainingOperator, Protocol):
    """The arguments of a copy, rendered by Airflow."""

    label: str
    data: Any
    source_conn_id: str | None
    target_conn_id: str | None
    include: Sequence[str] | str
    exclude: Sequence[str] | str
    mode: str
    verify: bool | str
    delete_extra: bool | str
    run_on: str
    shape: str
    ocpus: float | str
    memory_gb: float | str
    image: str | None
    overrides: Mapping[str, Any] | str | None


class CopyTask:
    """The life of a copying task. On the platform it is that of a gang of one node."""

    def __init__(self, operator: CopyingOperator, stop: StopFlag) -> None:
        """`stop`: the flag that `on_kill` sets."""
        self._operator = operator
        self._stop = stop
        self._gang: TrainingTask | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Copy, and return the report."""
        with as_airflow_errors():
            items = self._items()
            if self._operator.run_on != "platform":
                return self._copy_here(items, context)
            self._refuse_what_a_node_cannot_do(items)
            return self._report_of(self._begun().train(context))

    def resume(
        self, context: Context, event: dict[str, Any], search: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Continue after the trigger's event."""
        with as_airflow_errors():
            return self._report_of(self._begun().resume(context, event, search))

    def ask_again(self, context: Context, search: Mapping[str, Any]) -> dict[str, Any]:
        """Submit again after a pause without capacity."""
        with as_airflow_errors():
            return self._report_of(self._begun().ask_again(context, search))

    def after_failed_trigger(
        self, context: Context, event: Mapping[str, Any], fail: Callable[[], Any]
    ) -> dict[str, Any]:
        """Wait on without the trigger; see `TrainingTask`."""
        with as_airflow_errors():
            return self._report_of(self._begun().after_failed_trigger(context, event, fail))

    def kill_from_handler(self) -> None:
        """End the gang of this process, if it has one. Takes no lock: see `gangs.kills`."""
        if self._gang is not None:
            self._gang.kill_from_handler()

    def lineage(self) -> OperatorLineage[Any, Any]:
        return lineage_of_copy((item.source, item.target) for item in self._items())

    def job_arguments(self, context: Context) -> JobArguments:
        """Return the job of one node whose program copies; the code sent to it is the order."""
        return JobArguments(
            job=self._job_of(context),
            # It names no file relative to a DAG file.
            folder=Path(),
            overrides=self._overrides,
            # A copy reports no steps, and still succeeds.
            require_training=False,
            code=WrittenCode(folder=FOLDER, files={ORDER: self._order()}),
        )

    def _begun(self) -> TrainingTask:
        """Return the life of the gang, which is adopted, awaited and ended like any training."""
        self._gang = TrainingTask(self._operator, self._stop, publishes_checkpoint=False)
        return self._gang

    # on the worker

    def _copy_here(self, items: Sequence[CopyItem], context: Context) -> dict[str, Any]:
        report = copy_all(
            items,
            sides=self._sides(items),
            write=self._operator.log.info,
            label=self._operator.label,
            repeated=context["ti"].try_number > 1,
            cancel=self._stop,
        )
        if report.error is not None:
            context["ti"].xcom_push(key="report", value=report.to_json())
            raise report.error
        return report.to_json()

    def _sides(self, items: Sequence[CopyItem]) -> Sides:
        return Sides.of(
            self._access_for(self._operator.source_conn_id, [item.source for item in items]),
            self._access_for(self._operator.target_conn_id, [item.target for item in items]),
        )

    def _access_for(self, conn_id: str | None, uris: Sequence[str]) -> OciAccess | None:
        if not any(uri.startswith("oci://") for uri in uris):
            return None
        return OciHook(conn_id or self._operator.conn_id).access

    # on the platform

    def _order(self) -> str:
        operator = self._operator
        access = OciHook(operator.conn_id).access
        order = copy_program.Order(
            items=self._items(),
            label=operator.label,
            endpoint=access.endpoint,
            region=access.region or region_in_profile(access),
        )
        return json.dumps(codec.encode(order))

    def _job_of(self, context: Context) -> dict[str, Any]:
        """Return the job of one node whose program copies; its output is the report."""
        operator = self._operator
        backend = {"shape": operator.shape, "ocpus": operator.ocpus, "memory_gb": operator.memory_gb}
        if not str(operator.shape).endswith(".Flex"):
            backend = {"shape": operator.shape}
        return {
            "name": operator.label,
            "nodes": 1,
            "program": {
                "script": copy_program.__name__,
                "module": True,
                "args": [ORDER],
                "working_dir": FOLDER,
            },
            "launcher": {"kind": "python", "processes_per_node": 1},
            "outputs": [{"path": copy_program.REPORT, "uri": self._report_folder(context)}],
            "backend": backend,
            **({"image": operator.image} if operator.image else {}),
        }

    @property
    def _overrides(self) -> dict[str, Any]:
        return settings("overrides", self._operator.overrides)

    def _report_folder(self, context: Context) -> str:
        conn_id, overrides = self._operator.conn_id, self._overrides
        work_dir = overrides.get("work_dir") or OciHook(conn_id).fields.get("work_dir")
        if not work_dir:
            missing = (
                f"neither the connection {conn_id} nor `overrides` has one; the copy writes its report there"
            )
            raise JobFileError([Problem("work_dir", missing)], SUBJECT)
        ti = context["ti"]
        index = [str(ti.map_index)] if ti.map_index is not None and ti.map_index >= 0 else []
        return locations.join(str(work_dir), COPIES_FOLDER, ti.dag_id, ti.run_id, ti.task_id, *index)

    def _report_of(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return the report that a node has written."""
        place = locations.parse(result["outputs"][0])
        report = open_store(place.parent, OciHook(self._operator.conn_id).access).read(place.name)
        return {**json.loads(report), "job_id": result["job_id"], "run_ids": list(result["run_ids"])}

    def _refuse_what_a_node_cannot_do(self, items: Sequence[CopyItem]) -> None:
        problems = [
            Problem(
                f"item {item.number}",
                f"{uri} is on the worker, which the platform cannot see: name a bucket, or take run_on='worker'",
            )
            for item in items
            for uri in (item.source, item.target)
            if locations.parse(uri).kind == "local"
        ]
        for name in ("source_conn_id", "target_conn_id"):
            if getattr(self._operator, name) not in (None, self._operator.conn_id):
                why = "keys do not travel, a node has its own identity: let its dynamic group read and write there"
                problems.append(Problem(name, f"{why}, or take run_on='worker'"))
        if problems:
            raise JobFileError(problems, SUBJECT)

    # both

    def _items(self) -> tuple[CopyItem, ...]:
        operator = self._operator
        if operator.run_on not in RUN_ON:
            problem = Problem("run_on", f"must be one of {', '.join(RUN_ON)}, not {operator.run_on!r}")
            raise JobFileError([problem], SUBJECT)
        rules = rules_of(
            include=operator.include,
            exclude=operator.exclude,
            mode=operator.mode,
            verify=operator.verify,
            delete_extra=operator.delete_extra,
        )
        return read_items(operator.data, rules)
