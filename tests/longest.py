"""The test files that take longest: a run begins with them, as one worker has a file to itself until it is done."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

TESTS = Path(__file__).parent
FILES = (
    # Beside one another in a target: where several start an Airflow, not all of them do so in the same minute.
    "e2e/test_airflow_processes.py",
    "containers/test_three_hosts.py",
    "homes/test_homes.py",
    "examples/test_dags.py",
    "chaos/test_chaos.py",
    "containers/test_image.py",
    "containers/test_cut_network.py",
    "clients/test_ads.py",
    "chaos/test_drills.py",
    "train/test_examples.py",
    "e2e/test_document_dags.py",
    "train/test_job_files.py",
    "launchers/test_failures.py",
    "examples/test_other_homes.py",
    "e2e/test_dag_test.py",
    "clients/test_oci_cli.py",
    # `make test-homes`
    "backends/pytorchjob/test_replaced_pods.py",
    "backends/kubernetes/test_gangs.py",
    "backends/test_kubernetes_contract.py",
    "backends/kubernetes/test_features.py",
    "homes/test_any_cluster.py",
    "backends/kubernetes/test_versions.py",
    "backends/runai/test_training.py",
    # `make test`
    "cli/test_walk.py",
    "cli/test_runs.py",
    "simulation/test_simulation.py",
    "backends/oci_data_science/test_submissions.py",
    "storage/test_repairs.py",
    "test_local_airflow.py",
    "cli/test_drill.py",
    "backends/oci_data_science/test_backend.py",
    "test_saves.py",
    "backends/test_contract.py",
    "backends/test_urgent_contract.py",
    "storage/test_resume.py",
    "operators/test_cleanup.py",
    "test_document_blocks.py",
    "backends/local/test_local.py",
    "sensors/test_sensors.py",
    "walks/test_secrets_shown.py",
    "backends/oci_data_science/test_multi_node.py",
    "storage/test_retention.py",
    "test_environment.py",
    "walks/test_capacity.py",
    "backends/oci_data_science/test_stored.py",
    "storage/test_batch.py",
    "triggers/test_lost_triggers.py",
    "backends/oci_data_science/test_age.py",
    "test_architecture.py",
    "backends/oci_data_science/test_submission_steps.py",
    "storage/test_checkpoints.py",
    "cli/test_lost_machines.py",
    "walks/test_other_machines.py",
    "test_run_tests.py",
    "emulator/test_standalone.py",
    "storage/test_transfer.py",
    "storage/test_checkpoint_order.py",
    "storage/test_store_faults.py",
    "model/test_kept_evidence.py",
    "test_sweeper.py",
    "launchers/test_mpirun.py",
    "test_docs.py",
    "train/test_gpt.py",
    "triggers/test_two_triggers.py",
    # `make test-gangs`
    "gangs/test_candidates.py",
    "agent/save/test_shard_exchange.py",
    "agent/stages/test_restarts.py",
    "agent/save/test_upload_rules.py",
    "agent/monitor/test_hangs.py",
    "gangs/test_another_gang.py",
    "gangs/test_submission.py",
    "gangs/test_replacements.py",
    "agent/stages/test_outages.py",
    "agent/test_replaced_nodes.py",
    "agent/test_agent.py",
    "gangs/test_kills.py",
    "agent/test_torchrun_gang.py",
    "gangs/test_changed_settings.py",
    "agent/test_clocks.py",
    "agent/save/test_rotated.py",
    "agent/monitor/test_idle.py",
    "agent/test_drill.py",
    "agent/test_store_retries.py",
    "gangs/test_killed_submissions.py",
    "agent/test_node_faults.py",
    "gangs/test_earlier_tries.py",
    "agent/save/test_whole.py",
    "gangs/test_observed_time.py",
    "agent/prepare/test_packages.py",
    "agent/test_shared_inputs.py",
    "agent/test_elastic.py",
    "gangs/test_bad_answers.py",
    "agent/join/test_gathering.py",
    "gangs/test_elastic_rules.py",
    "agent/save/test_judging.py",
    "agent/stages/test_same_checkpoint.py",
    "agent/stages/test_repair.py",
    "agent/monitor/test_stragglers.py",
    "agent/save/test_uploads.py",
    "gangs/test_throttling.py",
    "agent/program/test_checkpoint_paths.py",
    "agent/monitor/test_process_logs.py",
    "gangs/test_elastic.py",
    "agent/join/test_fencing.py",
    "gangs/test_poller.py",
    "agent/save/test_far_writers.py",
    "gangs/test_leases.py",
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
