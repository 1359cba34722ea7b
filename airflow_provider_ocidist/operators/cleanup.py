"""EndTrainingOperator: ends all nodes of a training before it succeeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, BaseOperator

from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.hooks.ended_states import ENDED_STATES
from airflow_provider_ocidist.hooks.errors import as_airflow_errors
from airflow_provider_ocidist.hooks.oci import OciHook

if TYPE_CHECKING:
    from airflow.sdk import Context

AFTER_EVERY_END = {"all_done", "all_done_setup_success"}
"""Trigger rules under which a task runs after each end of an upstream one, and not before, whatever its other upstream
tasks do. A teardown has the second."""


class EndTrainingOperator(BaseOperator):
    """End the run of a training task if it still lives, and wait until every node of it has ended.

    For cleanups: after a user marks a training failed, Airflow starts the next tasks while its nodes still run.
    Tasks after this one start when no node runs any more. The run is found, at any home, by the records in the work
    directory, also after a worker died before it could publish what it had created, by the tags of live runs, and by
    the XCom `run`. It leaves a successful training alone, and succeeds if there was none.

    `train >> EndTrainingOperator(task_id="end", training=train).as_teardown()`; or without `as_teardown`, when the
    outcome of the DAG run does not depend on this task alone. It waits on a worker. When it is a mapped task itself, as
    in a mapped task group, it ends the run of its own map index only.

    :param training: the training task of the same DAG, or its id
    :param conn_id: Airflow connection of the job's backend; None: that of the training task, unless it is mapped over
        several
    :param backend: `backend.kind` of its job; needed where it is not `oci_data_science`, the connection names no
        `work_dir` in which it could be read, and its worker may die before it has published the XCom `run`
    :param compartment_id: if its job names another compartment than the connection; needed when its worker may die
        before it has published the XCom `run`
    :param patience: seconds until this task fails because nodes have not ended
    :param trigger_rule: Airflow's; ValueError for one other than `all_done` and `all_done_setup_success`: this task
        would not run after every end of the training
    """

    template_fields: Sequence[str] = ("conn_id", "backend", "compartment_id")
    shallow_copy_attrs: Sequence[str] = ("_stop",)

    def __init__(
        self,
        *,
        training: Any,
        conn_id: str | None = None,
        backend: str | None = None,
        compartment_id: str | None = None,
        patience: float = 600.0,
        trigger_rule: str = "all_done",
        **kwargs: Any,
    ) -> None:
        # Before Airflow 3.3 a mapped task gets Airflow's own default.
        if trigger_rule not in AFTER_EVERY_END and "_airflow_from_mapped" not in kwargs:
            raise ValueError(
                f"{kwargs.get('task_id')}: trigger_rule={str(trigger_rule)!r} would not let it run after every end of "
                "the training, a failure above all, which is when it is needed; it may come from default_args: write "
                'trigger_rule="all_done"'
            )
        super().__init__(trigger_rule=trigger_rule, **kwargs)
        # A TaskFlow task is identified by its return value.
        task = getattr(training, "operator", training)
        self.training: str = task if isinstance(task, str) else task.task_id
        self.conn_id = conn_id or (None if isinstance(task, str) else _conn_id_of(task, self))
        self.backend = backend
        self.compartment_id = compartment_id
        self.patience = patience
        self._stop = StopFlag()

    def as_teardown(self, *, setups: Any = None, **kwargs: Any) -> Any:
        """Refuse the training as a setup: Airflow runs no teardown after a failed setup."""
        named = setups if isinstance(setups, Iterable) else [setups]
        if self.training in {getattr(setup, "task_id", None) for setup in named}:
            raise ValueError(
                f"{self.task_id}: as_teardown(setups={self.training}) would not run after a training that failed, "
                "since Airflow skips the teardown of a failed setup; write training >> end.as_teardown()"
            )
        return super().as_teardown(setups=setups, **kwargs)

    def execute(self, context: Context) -> list[str]:
        """Return the names of the runs that had to be ended."""
        # Imported by a running task only: every DAG file would pay for it.
        from airflow_provider_ocidist.operators.gang_cleanup import GangCleanup, keys_of
        from airflow_provider_ocidist.operators.task_jobs import TaskConnection

        states = self._states(context)
        living = sorted(f"{name} is {state}" for name, state in states.items() if state not in ENDED_STATES)
        if living:
            raise AirflowException(
                f"{', '.join(living)}: a training task ends its own run when killed; put this task downstream of it"
            )
        # If the training was given by its id, its operator is known only now.
        conn_id = self.conn_id or self.render_template(self._conn_id_in_dag(), context)
        with as_airflow_errors():
            connection = TaskConnection(conn_id)
            cleanup = GangCleanup(
                connection, self.backend, self.compartment_id, self.patience, self._stop, self.log
            )
            ended = cleanup.end_all(keys_of(context["ti"], self.training, states))
        self.log.info("no node of %s runs any more; ended: %s", self.training, ", ".join(ended) or "nothing")
        return ended

    def on_kill(self) -> None:
        """Stop waiting. Takes no lock, since Airflow calls it in a signal handler: see `gangs.kills`."""
        self._stop.set()

    def _conn_id_in_dag(self) -> Any:
        dag = self.get_dag()
        task = dag.task_dict.get(self.training) if dag else None
        if task is None:
            raise AirflowException(
                f"{self.task_id}: the connection of {self.training} is not known: name it, conn_id="
            )
        return _conn_id_of(task, self)

    def _states(self, context: Context) -> Mapping[str, str | None]:
        """Return the states of the training task; of a mapped one by `<task id>_<map index>`, as Airflow does.

        Raises AirflowException where the DAG run has no such task.
        """
        ti = context["ti"]
        mapped = ti.map_index is not None and ti.map_index >= 0
        found = self._states_of(ti, ti.map_index) if mapped else {}
        if not found:
            every = self._states_of(ti, None)
            # A mapped task may follow one that is not mapped; it ends no run of other map indexes.
            found = {name: state for name, state in every.items() if not mapped or name == self.training}
        if not found:
            raise AirflowException(
                f"{self.task_id}: this DAG run has no task {self.training}, or none of this map index: "
                "correct training="
            )
        return found

    def _states_of(self, ti: Any, map_index: int | None) -> Mapping[str, str | None]:
        states = ti.get_task_states(
            dag_id=ti.dag_id, task_ids=[self.training], run_ids=[ti.run_id], map_index=map_index
        )
        found: Mapping[str, str | None] = states.get(ti.run_id, {})
        return found


def _conn_id_of(task: Any, asking: BaseOperator) -> Any:
    """Return the connection of a training task, mapped or not, as written: a text, or an expression for one.

    Raises ValueError if its map indexes have several.
    """
    mapped = getattr(task, "partial_kwargs", None)
    if mapped is None:
        conn_id = getattr(task, "conn_id", OciHook.default_conn_name)
        one_for_all = isinstance(conn_id, str) or _mapped_group(task) is _mapped_group(asking)
    else:
        conn_id = mapped.get("conn_id") or OciHook.default_conn_name
        expanded = getattr(task, "expand_input", None)
        one_for_all = "conn_id" in mapped or not _may_expand_connection(expanded)
    if not one_for_all:
        raise ValueError(
            f"{asking.task_id}: {task.task_id} may have another connection for each map index: "
            "name one here, conn_id="
        )
    return conn_id


def _mapped_group(task: Any) -> Any:
    """Return the innermost mapped task group around a task; None where there is none."""
    return task.get_closest_mapped_task_group() if task.task_group else None


def _may_expand_connection(expanded: Any) -> bool:
    """Whether `expand(...)` or `expand_kwargs(...)` sets connections, or may do so at run time."""
    values = getattr(expanded, "value", {})
    if isinstance(values, Mapping):
        return "conn_id" in values
    return not isinstance(values, Sequence) or any(
        not isinstance(each, Mapping) or "conn_id" in each for each in values
    )
