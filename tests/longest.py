"""The test files that take longest: a run begins with them, as one worker has a file to itself until it is done."""

from __future__ import annotations

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
    "test_saves.py",
    "gangs/test_kills.py",
    "cli/test_walk.py",
    "simulation/test_simulation.py",
    "test_local_airflow.py",
    "cli/test_runs.py",
    "cli/test_drill.py",
    "train/test_gpt.py",
    "agent/stages/test_restarts.py",
    "agent/monitor/test_hangs.py",
    "agent/test_agent.py",
    "agent/test_torchrun_gang.py",
    "test_environment.py",
    "agent/test_node_faults.py",
    "gangs/test_submission.py",
    "emulator/test_standalone.py",
    "backends/oci_data_science/test_backend.py",
    "backends/oci_data_science/test_multi_node.py",
    "storage/test_checkpoints.py",
    "storage/test_batch.py",
    "storage/test_resume.py",
)
PLACES = {TESTS / file: number for number, file in enumerate(FILES)}


def place(file: Path) -> int:
    """Return where a file comes in a run: those of which nothing is known keep their order, behind the others."""
    return PLACES.get(file, len(PLACES))
