"""Operators that copy: training data to the nodes' storage, checkpoints and outputs to other places."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.hooks.errors import as_airflow_errors
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.operators.job_arguments import JobArguments, WrittenCode
from airflow_provider_ocidist.operators.training import (
    RETRIES,
    TRIGGER_FAILED,
    DistributedTrainingOperator,
    as_argument,
    is_deferrable,
)

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_provider_ocidist.oci_client.credentials import OciAccess
    from airflow_provider_ocidist.operators.training_task import TrainingTask
    from airflow_provider_ocidist.storage.batch import Sides
    from airflow_provider_ocidist.storage.copy_items import CopyItem

RUN_ON = ("worker", "platform")
FOLDER, ORDER = "copy_data", "order.json"
"""The code sent to a node: a folder of this name with this file."""


class CopyOperator(BaseOperator):
    """Copy files and folders between any two places that fsspec knows, fast if one of them is `oci://`.

    A target appears whole or not at all, checked by its digest. A source that ends in `/` is a folder; one with `*`,
    `?`, `[` or `**` is a pattern. All items are checked before anything is copied; then they are copied some at a
    time, and a failed one does not end the others. A retry resumes where the attempt before it ended.

    XCom: files, bytes and seconds in total and of each item. After a failure the same is in XCom `report`.

    :param data: what goes where: a list of `{"source": URI or list of URIs, "target": URI}`, each of which may have its
        own `include`, `exclude`, `mode`, `verify` and `delete_extra`; or a mapping of sources to targets; or JSON of it
    :param conn_id: Airflow connection of type `oci`, for `oci://` URIs
    :param source_conn_id: the same for sources only, of another tenancy or region
    :param target_conn_id: the same for targets only
    :param include: patterns of relative paths; empty means all
    :param exclude: patterns of relative paths
    :param mode: `changed` skips files that are at the target already, unchanged; `all` copies everything
    :param verify: compare all files with their source again at the end
    :param delete_extra: delete files at the target that its source folder does not have; excluded files stay
    :param run_on: `platform`: copy on a separate node on OCI, near the data, and not on the Airflow worker
    :param shape: of that node
    :param ocpus: of that node; each brings 1 Gbit/s of network, up to the shape's limit
    :param memory_gb: of that node
    :param image: container image of that node; needs Python 3.9 or later
    :param overrides: any other value of that node's job, by dotted path, as `{"backend.conda_slug": "..."}`
    :param deferrable: on the platform, wait in the triggerer; copying itself cannot be deferred
    :param poll_interval: on the platform, seconds between two looks at the node
    :param retry_policy: as DistributedTrainingOperator's
    """

    template_fields: Sequence[str] = (
        "data",
        "conn_id",
        "source_conn_id",
        "target_conn_id",
        "include",
        "exclude",
        "mode",
        "verify",
        "delete_extra",
        "run_on",
        "shape",
        "ocpus",
        "memory_gb",
        "image",
        "overrides",
    )
    template_fields_renderers: ClassVar = {"data": "json", "overrides": "json"}
    shallow_copy_attrs: Sequence[str] = ("_stop",)
    operator_extra_links = DistributedTrainingOperator.operator_extra_links
    label = "copy"

    def __init__(
        self,
        *,
        data: Any,
        conn_id: str = OciHook.default_conn_name,
        source_conn_id: str | None = None,
        target_conn_id: str | None = None,
        include: Sequence[str] | str = (),
        exclude: Sequence[str] | str = (),
        mode: str = "all",
        verify: bool | str = False,
        delete_extra: bool | str = False,
        run_on: str = "worker",
        shape: str = "VM.Standard.E4.Flex",
        ocpus: float | str = 4,
        memory_gb: float | str = 16,
        image: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        deferrable: bool | None = None,
        poll_interval: float = 10.0,
        retry_policy: Any = RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs, **as_argument(retry_policy))
        self.data = _as_items(data)
        self.conn_id = conn_id
        self.source_conn_id = source_conn_id
        self.target_conn_id = target_conn_id
        self.include = include
        self.exclude = exclude
        self.mode = mode
        self.verify = verify
        self.delete_extra = delete_extra
        self.run_on = run_on
        self.shape = shape
        self.ocpus = ocpus
        self.memory_gb = memory_gb
        self.image = image
        self.overrides = overrides
        self.deferrable = is_deferrable(deferrable)
        self.poll_interval = poll_interval
        self._stop = StopFlag()
        self._life: TrainingTask | None = None

    # the life of the task

    def execute(self, context: Context) -> dict[str, Any]:
        with as_airflow_errors():
            items = self._items()
            if self.run_on != "platform":
                return self._copy_here(items, context)
            self._refuse_what_a_node_cannot_do(items)
            return self._report_of(self._training().train(context))

    def resume(
        self, context: Context, event: dict[str, Any], search: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Continue after the trigger's event; Airflow calls this on a worker."""
        with as_airflow_errors():
            return self._report_of(self._training().resume(context, event, search))

    def ask_again(self, context: Context, event: Any, search: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - Airflow hands it over
        """Submit again after a pause without capacity; Airflow calls this on a worker."""
        with as_airflow_errors():
            return self._report_of(self._training().ask_again(context, search))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue also after a failed trigger; see the training operator."""
        if next_method != TRIGGER_FAILED:
            return super().resume_execution(next_method, next_kwargs, context)
        with as_airflow_errors():
            life = self._training()
            fail = partial(BaseOperator.resume_execution, self, next_method, next_kwargs, context)
            return self._report_of(life.after_failed_trigger(context, next_kwargs or {}, fail))

    def on_kill(self) -> None:
        self._stop.set()
        if self._life is not None:
            self._life.kill_from_handler()

    def job_arguments(self, context: Context) -> JobArguments:
        """Return the job of one node whose program copies; the code sent to it is the order."""
        return JobArguments(
            job=self._job_of(context),
            # It names no file relative to a DAG file.
            folder=Path(),
            overrides=dict(self.overrides or {}),
            # A copy reports no steps, and still succeeds.
            require_training=False,
            code=WrittenCode(folder=FOLDER, files={ORDER: self._order()}),
        )

    def _training(self) -> TrainingTask:
        """Return the life of the gang of one node, which is adopted, awaited and ended like any training."""
        from airflow_provider_ocidist.operators.training_task import TrainingTask

        self._life = TrainingTask(self, self._stop, publishes_checkpoint=False)
        return self._life

    # called by OpenLineage's provider, if installed: the same before, after, and after a failure

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        from airflow_provider_ocidist.integrations.lineage import lineage_of_copy

        return lineage_of_copy((item.source, item.target) for item in self._items())

    # on the worker

    def _copy_here(self, items: Sequence[CopyItem], context: Context) -> dict[str, Any]:
        from airflow_provider_ocidist.storage.batch import copy_all

        report = copy_all(
            items,
            sides=self._sides(items),
            write=self.log.info,
            label=self.label,
            repeated=context["ti"].try_number > 1,
            cancel=self._stop,
        )
        if report.error is not None:
            context["ti"].xcom_push(key="report", value=report.to_json())
            raise report.error
        return report.to_json()

    def _sides(self, items: Sequence[CopyItem]) -> Sides:
        from airflow_provider_ocidist.storage.batch import Sides

        return Sides.of(
            self._access_for(self.source_conn_id, [item.source for item in items]),
            self._access_for(self.target_conn_id, [item.target for item in items]),
        )

    def _access_for(self, conn_id: str | None, uris: Sequence[str]) -> OciAccess | None:
        if not any(uri.startswith("oci://") for uri in uris):
            return None
        return OciHook(conn_id or self.conn_id).access

    # on the platform

    def _order(self) -> str:
        from airflow_provider_ocidist.model import codec
        from airflow_provider_ocidist.storage.copy_program import Order

        endpoint = OciHook(self.conn_id).access.endpoint
        return json.dumps(codec.encode(Order(items=self._items(), label=self.label, endpoint=endpoint)))

    def _job_of(self, context: Context) -> dict[str, Any]:
        """Return the job of one node whose program copies; its output is the report."""
        from airflow_provider_ocidist.storage import copy_program

        backend = {"shape": self.shape, "ocpus": self.ocpus, "memory_gb": self.memory_gb}
        if not str(self.shape).endswith(".Flex"):
            backend = {"shape": self.shape}
        return {
            "name": self.label,
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
            **({"image": self.image} if self.image else {}),
        }

    def _report_folder(self, context: Context) -> str:
        from airflow_provider_ocidist.errors import JobFileError, Problem
        from airflow_provider_ocidist.storage.locations import join

        work_dir = (self.overrides or {}).get("work_dir") or OciHook(self.conn_id).fields.get("work_dir")
        if not work_dir:
            missing = f"neither the connection {self.conn_id} nor `overrides` has one; the copy writes its report there"
            raise JobFileError([Problem("work_dir", missing)], "the data to copy")
        ti = context["ti"]
        index = [str(ti.map_index)] if ti.map_index is not None and ti.map_index >= 0 else []
        return join(str(work_dir), "copies", ti.dag_id, ti.run_id, ti.task_id, *index)

    def _report_of(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return the report that a node has written."""
        from airflow_provider_ocidist.storage import locations
        from airflow_provider_ocidist.storage.stores.opening import open_store

        place = locations.parse(result["outputs"][0])
        report = open_store(place.parent, OciHook(self.conn_id).access).read(place.name)
        return {**json.loads(report), "job_id": result["job_id"], "run_ids": list(result["run_ids"])}

    def _refuse_what_a_node_cannot_do(self, items: Sequence[CopyItem]) -> None:
        from airflow_provider_ocidist.errors import JobFileError, Problem
        from airflow_provider_ocidist.storage import locations

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
            if getattr(self, name) not in (None, self.conn_id):
                why = "keys do not travel, a node has its own identity: let its dynamic group read and write there"
                problems.append(Problem(name, f"{why}, or take run_on='worker'"))
        if problems:
            raise JobFileError(problems, "the data to copy")

    # small parts

    def _items(self) -> tuple[CopyItem, ...]:
        from airflow_provider_ocidist.errors import JobFileError, Problem
        from airflow_provider_ocidist.storage.copy_items import read_items, rules_of

        if self.run_on not in RUN_ON:
            problem = Problem("run_on", f"must be one of {', '.join(RUN_ON)}, not {self.run_on!r}")
            raise JobFileError([problem], "the data to copy")
        rules = rules_of(
            include=self.include,
            exclude=self.exclude,
            mode=self.mode,
            verify=self.verify,
            delete_extra=self.delete_extra,
        )
        return read_items(self.data, rules)


def _as_items(data: Any) -> Any:
    """Return a mapping of sources to targets as a list: Airflow renders the values of a mapping, not its keys."""
    if isinstance(data, Mapping) and "source" not in data and "target" not in data:
        return [{"source": source, "target": target} for source, target in data.items()]
    return data


class StageDataOperator(CopyOperator):
    """Copy training data to the nodes' storage; upstream of the training."""

    label = "stage data"


class CopyOutputsOperator(CopyOperator):
    """Copy checkpoints and outputs to another place; downstream of the training."""

    label = "copy outputs"
