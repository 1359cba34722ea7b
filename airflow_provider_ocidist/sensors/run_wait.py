"""RunWait: looks at a run that another task has started, and never ends it."""

from __future__ import annotations

import ast
import json
import logging
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_ocidist.backends.capabilities import OpensById
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.gangs.actions import Action, Cancel, Fail, NodeChange, Succeed
from airflow_provider_ocidist.gangs.replacements import catch_up
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.hooks.errors import as_airflow_errors
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.hooks.task_context import mask_secrets_of_nodes
from airflow_provider_ocidist.model.job import Restarts
from airflow_provider_ocidist.model.kept_evidence import Kept
from airflow_provider_ocidist.model.run import Expectations, RunRecord, RunRef
from airflow_provider_ocidist.sensors.sensor_wait import SensorWait
from airflow_provider_ocidist.triggers.training import DistributedTrainingTrigger

log = logging.getLogger(__name__)

NO_LIMIT = 1e9
"""Seconds that never pass; infinity is no JSON."""


class RunWait(SensorWait):
    """The wait for the success of one run."""

    def __init__(
        self,
        run: Mapping[str, Any] | str,
        conn_id: str,
        *,
        require_checkpoint: bool,
        poke_interval: float,
        log: TaskLog,
    ) -> None:
        self._ref = _ref_in(run)
        self._conn_id = conn_id
        self._require_checkpoint = require_checkpoint
        self._poke_interval = poke_interval
        self._log = log
        self.awaited = f"the run {self._ref.key.name} has not ended"
        self.watch: Watch | None = None

    def trigger(self) -> DistributedTrainingTrigger:
        return DistributedTrainingTrigger(
            conn_id=self._conn_id,
            record=self._watched.record.to_json(),
            owner={},
            poll_interval=self._poke_interval,
        )

    def begin(self, kept: Kept) -> None:
        if self.watch is None:
            self.watch = self._watch(self._record())
            self.watch.go_on_after(kept, self._poke_interval)

    def resume(self, event: Mapping[str, Any]) -> None:
        """Continue after the trigger has seen the run end."""
        self.watch = self._watch(RunRecord.from_json(event))

    def look(self) -> Action:
        with as_airflow_errors():
            return self._watched.look(time.time())

    @property
    def kept(self) -> Kept:
        return self._watched.kept

    def result_of(self, found: Action) -> dict[str, Any] | None:
        match found:
            case Succeed(warning):
                self._watched.write_the_rest()
                if warning:
                    self._log.warning("SUCCEEDED, BUT %s", warning)
                return self._watched.result(warning)
            case Fail(cause, message):
                self._watched.write_the_rest()
                raise _failed(cause, message)
            case NodeChange():
                catch_up(self._watched, self._log)
            case Cancel(ending, of_the_rest=False):
                # A node has failed; the owner ends the others, and the outcome is certain.
                raise _failed(ending.cause, ending.message)
        return None

    @property
    def _watched(self) -> Watch:
        assert self.watch is not None
        return self.watch

    def _watch(self, record: RunRecord) -> Watch:
        backend = self._hook.backend(record.ref.backend)
        mask_secrets_of_nodes(backend, record.ref)
        watch = Watch(backend, record, self._log)
        if backend.needs_connection:
            watch.reconnect = lambda: backend.reconnect(self._new_hook().fields)
        return watch

    def _record(self) -> RunRecord:
        # No limits and no lease: this task only watches, and the run's owner ends it.
        ref = self._ref
        return RunRecord(
            ref=ref,
            expects=Expectations(checkpoint=self._require_checkpoint, reports=self._has_agents(ref)),
            logs_since=(time.time(),) * ref.nodes,
            # How often its owner replaces a node, how long it waits for that, and with how few it goes on, is for the
            # owner to know.
            restarts=Restarts(node=1_000_000),
            replace_timeout=NO_LIMIT,
            min_nodes=1,
        )

    def _has_agents(self, ref: RunRef) -> bool:
        """Whether every node of the run has to report; if its job cannot be read, no report is expected."""
        try:
            backend = self._hook.backend(ref.backend)
            return OpensById.of(backend).open(ref.job_id).expects.reports
        except BackendError as error:
            log.debug("%s: its job cannot be read: %s", ref.key.name, error)
            return False

    @cached_property
    def _hook(self) -> OciHook:
        return self._new_hook()

    def _new_hook(self) -> OciHook:
        return OciHook(self._conn_id, kind=self._ref.backend, gangs_conn_id=self._ref.conn_id)


def _ref_in(run: Mapping[str, Any] | str) -> RunRef:
    try:
        return RunRef.from_json(_mapping_in(run))
    except (ValueError, TypeError, SyntaxError, LookupError) as error:
        raise AirflowFailException(
            f"run is {str(run)[:80]!r}, which names no run ({error}): give it the XCom `run` of a training "
            'task, as {{ ti.xcom_pull(dag_id=..., run_id=..., task_ids="train", key="run") }}'
        ) from error


def _mapping_in(value: Any) -> Mapping[str, Any]:
    """Return a mapping that Jinja may have rendered as text, as Python or as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as no_json:
            value = _python_in(value.strip(), no_json)
    if not isinstance(value, Mapping):
        raise TypeError(f"it is of type {type(value).__name__}")
    return value


def _python_in(text: str, no_json: ValueError) -> Any:
    """Return what a text is in Python. Raises ValueError, for one that begins as JSON what JSON's reader said."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if text.startswith('{"'):
            raise no_json from None
        raise


def _failed(cause: Cause, message: str) -> AirflowFailException:
    """Return the exception that ends the wait for good: this run can no longer succeed."""
    return AirflowFailException(f"{cause}: {message}")
