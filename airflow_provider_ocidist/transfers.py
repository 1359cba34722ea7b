"""Operators that copy: training data to the nodes' storage, checkpoints and outputs to other places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.hooks.settings import is_deferrable
from airflow_provider_ocidist.operators.task_arguments import RETRIES, TRIGGER_FAILED, as_argument
from airflow_provider_ocidist.operators.training import DistributedTrainingOperator

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_provider_ocidist.operators.copy_task import CopyTask
    from airflow_provider_ocidist.operators.job_arguments import JobArguments


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
        overrides: Mapping[str, Any] | str | None = None,
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
        self._life: CopyTask | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        return self._task().execute(context)

    def resume(
        self, context: Context, event: dict[str, Any], search: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Continue after the trigger's event; Airflow calls this on a worker."""
        return self._task().resume(context, event, search)

    def ask_again(self, context: Context, event: Any, search: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - Airflow hands it over
        """Submit again after a pause without capacity; Airflow calls this on a worker."""
        return self._task().ask_again(context, search)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue also after a failed trigger; see the training operator."""
        if next_method != TRIGGER_FAILED:
            return super().resume_execution(next_method, next_kwargs, context)
        fail = partial(BaseOperator.resume_execution, self, next_method, next_kwargs, context)
        return self._task().after_failed_trigger(context, next_kwargs or {}, fail)

    def on_kill(self) -> None:
        """End the copy, and the node that makes it. Takes no lock: see `gangs.kills`."""
        self._stop.set()
        if self._life is not None:
            self._life.kill_from_handler()

    def job_arguments(self, context: Context) -> JobArguments:
        """Return the job of one node whose program copies; the code sent to it is the order."""
        return self._task().job_arguments(context)

    # Called by OpenLineage's provider, if installed: the same before, after, and after a failure.
    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        return self._task().lineage()

    def _task(self) -> CopyTask:
        """Return the life of this task. It is imported by a running task only: every DAG file would pay for it."""
        from airflow_provider_ocidist.operators.copy_task import CopyTask

        self._life = self._life or CopyTask(self, self._stop)
        return self._life


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
