"""Operators that copy: training data to where nodes read it, checkpoints and outputs to where they are wanted."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_provider_ocidist.airflow_errors import as_airflow_errors
from airflow_provider_ocidist.hooks import OciHook

if TYPE_CHECKING:
    from airflow.sdk import Context


class CopyOperator(BaseOperator):
    """Copy files and folders between any two places that fsspec knows, fast where one of them is `oci://`.

    A target appears whole or not at all. A source that ends in `/` is a folder.

    :param data: what goes where, each as `{"source": URI, "target": URI}`
    :param conn_id: Airflow connection of type `oci`, for `oci://` URIs
    :param include: patterns of relative paths; empty means all
    :param exclude: patterns of relative paths
    :param mode: `changed` leaves alone what is at the target already, the same; `all` copies everything
    """

    template_fields: Sequence[str] = ("data", "conn_id", "include", "exclude", "mode")
    label = "copy"

    def __init__(
        self,
        *,
        data: Sequence[Mapping[str, str]],
        conn_id: str = OciHook.default_conn_name,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        mode: Literal["all", "changed"] = "all",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.data = data
        self.conn_id = conn_id
        self.include = include
        self.exclude = exclude
        self.mode = mode
        self._stop = threading.Event()

    def execute(self, context: Context) -> list[dict[str, Any]]:  # noqa: ARG002 - Airflow's signature
        with as_airflow_errors():
            return [self._copy(item["source"], item["target"]) for item in self.data]

    def on_kill(self) -> None:
        self._stop.set()

    def _copy(self, source: str, target: str) -> dict[str, Any]:
        from airflow_provider_ocidist.storage.progress import progress_lines
        from airflow_provider_ocidist.storage.transfer import copy

        self.log.info("%s: %s -> %s", self.label, source, target)
        report = copy(
            source,
            target,
            access=OciHook(self.conn_id).access if self._needs_oci(source, target) else None,
            include=self.include,
            exclude=self.exclude,
            mode=self.mode,
            on_progress=progress_lines(self.log.info, self.label),
            cancel=self._stop,
        )
        self.log.info(
            "%s: %d files, %d bytes in %.1f s; %d files were there already, %d names were skipped",
            self.label,
            report.files,
            report.bytes,
            report.seconds,
            len(report.unchanged),
            len(report.skipped),
        )
        return {
            "source": source,
            "target": target,
            "files": report.files,
            "bytes": report.bytes,
            "unchanged": len(report.unchanged),
            "skipped": list(report.skipped[:100]),
            "seconds": round(report.seconds, 3),
        }

    @staticmethod
    def _needs_oci(*uris: str) -> bool:
        return any(uri.startswith("oci://") for uri in uris)


class StageDataOperator(CopyOperator):
    """Bring training data to where the nodes read it; upstream of the training."""

    label = "stage data"


class CopyOutputsOperator(CopyOperator):
    """Carry checkpoints and outputs to where they are wanted; downstream of the training."""

    label = "copy outputs"
