"""The test files that take longest: a run begins with them, as one worker has a file to itself until it is done."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

TESTS = Path(__file__).parent
FILES = (
    # Beside one another in a target: where several start an Airflow, not all of them do so in the same minute.
    "e2e/test_airflow_processes.py",
    "containers/test_image.py",
    "homes/test_homes.py",
    "examples/test_dags.py",
    "chaos/test_chaos.py",
    "containers/test_three_hosts.py",
    "containers/test_cut_network.py",
    "clients/test_ads.py",
    "chaos/test_drills.py",
    "train/test_examples.py",
    "e2e/test_document_dags.py",
    "launchers/test_failures.py",
    "train/test_job_files.py",
    "examples/test_other_homes.py",
    "e2e/test_dag_test.py",
    "clients/test_oci_cli.py",
    "backends/kubernetes/test_gangs.py",
    # `make test`
    "gangs/test_kills.py",
    "cli/test_walk.py",
    "agent/monitor/test_hangs.py",
    "test_saves.py",
    "agent/stages/test_restarts.py",
    "simulation/test_simulation.py",
    "cli/test_runs.py",
    "agent/save/test_whole.py",
    "backends/local/test_local.py",
    "test_local_airflow.py",
    "agent/test_clocks.py",
    "gangs/test_elastic.py",
    "cli/test_drill.py",
    "gangs/test_submission.py",
    "agent/test_agent.py",
    "walks/test_secrets_shown.py",
    "agent/test_node_faults.py",
    "agent/save/test_shard_exchange.py",
    "agent/test_replaced_nodes.py",
    "gangs/test_replacements.py",
    "test_document_blocks.py",
    "storage/test_resume.py",
    "emulator/test_standalone.py",
    "storage/test_retention.py",
    "test_environment.py",
    "agent/test_store_retries.py",
    "agent/test_shared_inputs.py",
    "cli/test_lost_machines.py",
    "agent/test_torchrun_gang.py",
    "storage/test_batch.py",
    "train/test_gpt.py",
    "backends/oci_data_science/test_backend.py",
    "backends/oci_data_science/test_multi_node.py",
)
PLACES = {TESTS / file: number for number, file in enumerate(FILES)}


def place(file: Path, *, among_workers: bool) -> tuple[int, int]:
    """Return where a file comes in a run: those that are not named keep their order, behind the others.

    Workers get them mixed, always alike: in a folder's order there would be minutes in which all tests wait, and others
    in which all compute.
    """
    if (number := PLACES.get(file)) is not None:
        return number, 0
    return len(PLACES), zlib.crc32(os.path.relpath(file, TESTS).encode()) if among_workers else 0
