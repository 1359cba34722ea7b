"""A triggerer with many waiting gangs, for P4, P5 and P6: Airflow's own TriggerRunner, without its supervisor."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from airflow_provider_ocidist.work_dir import reports

if TYPE_CHECKING:
    from airflow_provider_ocidist.gangs.watch import Watch

TICK_S = 0.005
OWNER = ("dag_id", "run_id", "task_id", "map_index")

Waiting = tuple[int, Callable[[], Iterable[bool]]]
"""Memory in KB before anything waits, and which of those that wait are alive."""


def main() -> None:
    """`sys.argv[1]`: a JSON file with `mode`, `records`, `connections`, `emulator`, `interval`, `seconds`, `reports`.

    Prints a line of JSON once it waits, and one for each line that it reads from then on.
    """
    settings = json.loads(Path(sys.argv[1]).read_text())
    for conn_id, connection in settings["connections"].items():
        os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(connection)
    asyncio.run(wait(settings))


async def wait(settings: dict[str, Any]) -> None:
    before, is_alive = await MODES[settings["mode"]](settings)
    report(event="settled")
    while await asyncio.to_thread(sys.stdin.readline):
        busy = time.process_time()
        waiting = await lags(settings["seconds"])
        busy = time.process_time() - busy
        alive = sum(is_alive())
        report(
            event="measured",
            waiting=waiting,
            before_kb=before,
            all_kb=resident_kb(),
            alive=alive,
            busy_s=busy,
        )
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
    conn_id = next(iter(settings["connections"]))
    if settings["reports"]:
        # All first reports are read in as few looks as there is time for: else that takes minutes, and changes nothing.
        reports.FIRST_READS = sum(record["ref"]["nodes"] for record in settings["records"])
    waiting = await _running(
        "airflow_provider_ocidist.triggers.DistributedTrainingTrigger",
        [
            {
                "conn_id": conn_id,
                "record": record,
                "owner": {name: record["ref"]["key"][name] for name in OWNER} | {"try_number": 1},
                "poll_interval": settings["interval"],
            }
            for record in settings["records"]
        ],
    )
    await _until_all_are_known(conn_id, settings["records"], reported=settings["reports"])
    return waiting


async def _running(classpath: str, each: Sequence[dict[str, Any]]) -> Waiting:
    """Run a trigger for each of these arguments."""
    from airflow.executors.workloads.trigger import RunTrigger
    from airflow.jobs.triggerer_job_runner import TriggerRunner
    from airflow.models.trigger import Trigger

    runner = TriggerRunner()
    before = resident_kb()
    for number, arguments in enumerate(each):
        kwargs = Trigger.encrypt_kwargs(arguments)
        runner.to_create.append(
            RunTrigger(id=number + 1, classpath=classpath, encrypted_kwargs=kwargs, ti=None)
        )
    await runner.create_triggers()
    return before, lambda: (not one["task"].done() for one in runner.triggers.values())


async def _until_all_are_known(conn_id: str, records: Sequence[Mapping[str, Any]], *, reported: bool) -> None:
    """Wait until the states of all gangs are known, or the reports of all nodes: then memory and calls stay alike."""
    from airflow_provider_ocidist.triggers.connections import location_of, shared_connection

    ref = records[0]["ref"]
    place = location_of(ref["backend"], ref["job_id"], ref.get("compartment_id"))
    poller = await shared_connection(conn_id, ref["backend"], place).open()
    known = 0
    while known < len(records):
        await asyncio.sleep(1.0)
        watches = [followed.watch for followed in list(poller._followed.values())]  # noqa: SLF001 - to measure
        known = sum(_is_known(watch, reported=reported) for watch in watches)


def _is_known(watch: Watch, *, reported: bool) -> bool:
    if watch.status is None:
        return False
    return not reported or all(node.report is not None for node in watch.status.nodes)


async def pod_triggers(settings: dict[str, Any]) -> Waiting:
    """Wait as the triggers of the official KubernetesPodOperator do: one for each pod, which asks for it and no more.

    They look as often as ours, read no events and no logs, and need not look their connection up.
    """
    extra = settings["connections"]["kubernetes_default"]["extra"]
    pods = [name for record in settings["records"] for name in record["ref"]["run_ids"]]
    waiting = await _running(
        "airflow.providers.cncf.kubernetes.triggers.pod.KubernetesPodTrigger",
        [
            {
                "pod_name": name,
                "pod_namespace": extra["namespace"],
                "trigger_start_time": datetime.now(timezone.utc),
                "base_container_name": "pytorch",
                "kubernetes_conn_id": "kubernetes_default",
                "connection_extras": {"kube_config_path": extra["kube_config_path"]},
                "poll_interval": settings["interval"],
                "get_logs": False,
                "log_events_on_startup": False,
                "on_finish_action": "keep_pod",
                "on_kill_action": "keep_pod",
            }
            for name in pods
        ],
    )
    calls = f"{settings['emulator']}/_emulator/kubernetes/calls"
    await asyncio.to_thread(_wait_until_each_asked, calls, len(pods))
    return waiting


_A_POD = re.compile(r"[^?]*/pods/[^/]+")


def _wait_until_each_asked(calls: str, pods: int) -> None:
    """Wait until each trigger has asked for its pod three times: that much it does before it only waits."""
    asked: Counter[str] = Counter()
    while sum(times >= 3 for times in asked.values()) < pods:
        time.sleep(2.0)
        with urlopen(calls) as answer:
            paths = (call["path"] for call in json.load(answer))
            # Filtered here: the emulator refuses a filter that takes it long, as one of 20,000 calls may.
            asked = Counter(path for path in paths if _A_POD.fullmatch(path))


async def sdk_in_the_loop(settings: dict[str, Any]) -> Waiting:
    """Wait as triggers do of which each makes a client for itself and calls it in the loop."""
    before = resident_kb()
    tasks = [asyncio.create_task(_sdk_trigger(settings, record)) for record in settings["records"]]
    return before, lambda: (not task.done() for task in tasks)


async def _sdk_trigger(settings: dict[str, Any], record: dict[str, Any]) -> None:
    import oci

    fields = settings["connections"]["oci_default"]["extra"]
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
    "pod_triggers": pod_triggers,
    "sdk_in_the_loop": sdk_in_the_loop,
    "nothing": nothing,
}

if __name__ == "__main__":
    main()
