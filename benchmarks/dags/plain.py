"""The peer of P17: a deferrable operator as most are. It submits, its trigger polls, and nobody hears of a kill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_ocidist.hooks import OciHook
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.run import RunKey, RunRef, RunStatus

POLL_S = 2.0


class PlainTrainingOperator(BaseOperator):
    """Train on several nodes; the same submission as ours, and nothing else of it."""

    def __init__(self, *, job: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job

    template_fields = ("job",)

    def execute(self, context: Context) -> None:
        ti = context["ti"]
        key = RunKey(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, attempt=ti.try_number)
        backend = OciHook().backend("oci_data_science")
        ref = backend.submit(backend.plan(parsing.build(self.job), key))
        ti.xcom_push(key="run", value=ref.to_json())
        self.defer(trigger=PlainTrigger(ref.to_json()), method_name="resume")

    def resume(self, context: Context, event: dict[str, Any]) -> None:
        del context
        if event["states"] != ["SUCCEEDED"]:
            raise RuntimeError(f"nodes are {event['states']}")


class PlainTrigger(BaseTrigger):
    """Polls until all nodes have ended."""

    def __init__(self, ref: Mapping[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's has no types
        self.ref = dict(ref)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "benchmarks.dags.plain.PlainTrigger", {"ref": self.ref}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        backend = await asyncio.to_thread(lambda: OciHook().backend("oci_data_science"))

        def look() -> RunStatus:
            return backend.status([RunRef.from_json(self.ref)])[0]

        while not (status := await asyncio.to_thread(look)).ended:  # noqa: ASYNC110 - the event is at the service
            await asyncio.sleep(POLL_S)
        yield TriggerEvent({"states": sorted({str(node.state) for node in status.nodes})})
