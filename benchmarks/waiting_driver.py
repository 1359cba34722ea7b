"""A triggerer with many waiting gangs, for P4, P5 and P6: Airflow's own TriggerRunner, without its supervisor."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_ocidist.gangs.watch import Watch

TICK_S = 0.005
OWNER = ("dag_id", "run_id", "task_id", "map_index")

Waiting = tuple[int, Callable[[], Iterable[bool]]]
"""Memory in KB before anything waits, and which of those that wait are alive."""


def main() -> None:
    """`sys.argv[1]`: a JSON file with `mode`, `records`, `fields`, `interval`, `seconds` and `reports`.

    Prints a line of JSON once it waits, and one for each line that it reads from then on.
    """
    settings = json.loads(Path(sys.argv[1]).read_text())
    os.environ["AIRFLOW_CONN_OCI_DEFAULT"] = json.dumps({"conn_type": "oci", "extra": settings["fields"]})
    asyncio.run(wait(settings))


async def wait(settings: dict[str, Any]) -> None:
    before, is_alive = await MODES[settings["mode"]](settings)
    report(event="settled")
    while await asyncio.to_thread(sys.stdin.readline):
        waiting = await lags(settings["seconds"])
        alive = sum(is_alive())
        report(event="measured", waiting=waiting, before_kb=before, all_kb=resident_kb(), alive=alive)
    os._exit(0)


def report(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def resident_kb() -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) if found else 0


async def lags(seconds: float) -> list[float]:
    """Return by how many seconds the loop was late, tick for tick."""
    found, until = [], time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        await asyncio.sleep(TICK_S)
        found.append(time.monotonic() - began - TICK_S)
    return found


async def triggerer(settings: dict[str, Any]) -> Waiting:
    """Wait for all gangs as a triggerer does."""
    from airflow.executors.workloads.trigger import RunTrigger
    from airflow.jobs.triggerer_job_runner import TriggerRunner
    from airflow.models.trigger import Trigger

    runner = TriggerRunner()
    before = resident_kb()
    for number, record in enumerate(settings["records"]):
        arguments = {
            "conn_id": "oci_default",
            "record": record,
            "owner": {name: record["ref"]["key"][name] for name in OWNER} | {"try_number": 1},
            "poll_interval": settings["interval"],
        }
        runner.to_create.append(
            RunTrigger(
                id=number + 1,
                classpath="airflow_provider_ocidist.triggers.DistributedTrainingTrigger",
                encrypted_kwargs=Trigger.encrypt_kwargs(arguments),
                ti=None,
            )
        )
    await runner.create_triggers()
    await _until_all_are_known(settings["records"], reports=settings["reports"])
    return before, lambda: (not each["task"].done() for each in runner.triggers.values())


async def _until_all_are_known(records: Sequence[Mapping[str, Any]], *, reports: bool) -> None:
    """Wait until the states of all gangs are known, or the reports of all nodes: then memory and calls stay alike."""
    from airflow_provider_ocidist.triggers.connections import location_of, shared_connection

    ref = records[0]["ref"]
    place = location_of(ref["backend"], ref["job_id"], ref.get("compartment_id"))
    poller = await shared_connection("oci_default", ref["backend"], place).open()
    known = 0
    while known < len(records):
        await asyncio.sleep(1.0)
        watches = [followed.watch for followed in list(poller._followed.values())]  # noqa: SLF001 - to measure
        known = sum(_is_known(watch, reports=reports) for watch in watches)


def _is_known(watch: Watch, *, reports: bool) -> bool:
    if watch.status is None:
        return False
    return not reports or all(node.report is not None for node in watch.status.nodes)


async def sdk_in_the_loop(settings: dict[str, Any]) -> Waiting:
    """Wait as triggers do of which each makes a client for itself and calls it in the loop."""
    before = resident_kb()
    tasks = [asyncio.create_task(_sdk_trigger(settings, record)) for record in settings["records"]]
    return before, lambda: (not task.done() for task in tasks)


async def _sdk_trigger(settings: dict[str, Any], record: dict[str, Any]) -> None:
    import oci

    fields = settings["fields"]
    config = oci.config.from_file(fields["config_file"], fields["profile"])
    client = oci.data_science.DataScienceClient(config, service_endpoint=fields["endpoint"])
    while True:
        for run_id in record["ref"]["run_ids"]:
            client.get_job_run(run_id)
        await asyncio.sleep(settings["interval"])


async def nothing(settings: dict[str, Any]) -> Waiting:
    """Measure how late a loop is that has nothing to do: what this machine allows."""
    del settings
    return resident_kb(), lambda: ()


MODES: dict[str, Callable[[dict[str, Any]], Awaitable[Waiting]]] = {
    "triggerer": triggerer,
    "sdk_in_the_loop": sdk_in_the_loop,
    "nothing": nothing,
}

if __name__ == "__main__":
    main()
