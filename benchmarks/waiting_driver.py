"""A triggerer with many waiting gangs, for P4, P5 and P6: Airflow's own TriggerRunner, without its supervisor."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

TICK_S = 0.005
SETTLING_S = 25.0


def main() -> None:
    """`sys.argv[1]`: a JSON file with `mode`, `records`, `fields`, `interval` and `seconds`. Prints JSON lines."""
    told = json.loads(Path(sys.argv[1]).read_text())
    os.environ["AIRFLOW_CONN_OCI_DEFAULT"] = json.dumps({"conn_type": "oci", "extra": told["fields"]})
    asyncio.run(MODES[told["mode"]](told))


def tell(**values: Any) -> None:
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


async def triggerer(told: dict[str, Any]) -> None:
    """Wait for all gangs as a triggerer does."""
    from airflow.executors.workloads.trigger import RunTrigger
    from airflow.jobs.triggerer_job_runner import TriggerRunner
    from airflow.models.trigger import Trigger

    runner = TriggerRunner()
    before = resident_kb()

    def add(number: int) -> None:
        record = told["records"][number]
        arguments = {
            "conn_id": "oci_default",
            "record": record,
            "owner": {},
            "poll_interval": told["interval"],
        }
        runner.to_create.append(
            RunTrigger(
                id=number + 1,
                classpath="airflow_provider_ocidist.triggers.DistributedTrainingTrigger",
                encrypted_kwargs=Trigger.encrypt_kwargs(arguments),
                ti=None,
            )
        )

    joining = asyncio.create_task(lags(SETTLING_S))
    add(0)
    await runner.create_triggers()
    await asyncio.sleep(told.get("alone", 5.0))
    first = resident_kb()
    for number in range(1, len(told["records"])):
        add(number)
    await runner.create_triggers()
    joined = await joining
    await _until_all_were_looked_at(told["records"])
    tell(event="settled", threads=_threads())
    waiting = await lags(told["seconds"])
    tell(
        event="measured",
        before_kb=before,
        first_kb=first,
        all_kb=resident_kb(),
        joining=joined,
        waiting=waiting,
        alive=sum(not each["task"].done() for each in runner.triggers.values()),
        threads=_threads(),
        cpu_s=time.process_time(),
    )
    os._exit(0)


async def _until_all_were_looked_at(records: Sequence[Mapping[str, Any]]) -> None:
    from airflow_provider_ocidist.shared_connections import place_of, shared_connection

    ref = records[0]["ref"]
    place = place_of(ref["job_id"], ref.get("compartment_id"))
    poller = await shared_connection("oci_default", "oci_data_science", place).open()
    looked = 0
    while looked < len(records):
        await asyncio.sleep(1.0)
        watches = [followed.watch for followed in list(poller._followed.values())]  # noqa: SLF001 - to measure
        looked = sum(watch.status is not None for watch in watches)


async def sdk_in_the_loop(told: dict[str, Any]) -> None:
    """Wait as a trigger that makes a client for itself and calls it in the loop."""
    before = resident_kb()
    loop_lags = asyncio.create_task(lags(told["seconds"]))
    tasks = [asyncio.create_task(_sdk_trigger(told, record)) for record in told["records"]]
    waiting = await loop_lags
    tell(event="measured", before_kb=before, all_kb=resident_kb(), waiting=waiting)
    del tasks
    os._exit(0)


async def _sdk_trigger(told: dict[str, Any], record: dict[str, Any]) -> None:
    import oci

    fields = told["fields"]
    config = oci.config.from_file(fields["config_file"], fields["profile"])
    client = oci.data_science.DataScienceClient(config, service_endpoint=fields["endpoint"])
    while True:
        for run_id in record["ref"]["run_ids"]:
            client.get_job_run(run_id)
        await asyncio.sleep(told["interval"])


async def nothing(told: dict[str, Any]) -> None:
    """How late a loop is that has nothing to do: what this machine allows."""
    tell(event="measured", waiting=await lags(told["seconds"]))


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


MODES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "triggerer": triggerer,
    "sdk_in_the_loop": sdk_in_the_loop,
    "nothing": nothing,
}

if __name__ == "__main__":
    main()
