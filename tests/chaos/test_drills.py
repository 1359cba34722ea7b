"""Faults by chance on real gangs of torchrun: each training ends with the weights of the undisturbed one.

The report of a campaign is the table of `ocidist drill`; CHAOS_DRILLS=200 makes a long one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.emulator_process import Access, EmulatorProcess
from scripts.local_airflow import LocalAirflow
from tests.drilling import a_file, drill_folder, drilled
from tests.views import need_views

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(20_000)]

JOB = Path(__file__).parents[2] / "dags_examples" / "jobs" / "drill.yaml"
DRILLS = int(os.environ.get("CHAOS_DRILLS", "12"))
SEED = int(os.environ.get("CHAOS_SEED") or os.environ.get("TEST_SEED") or "1272")
PARALLEL = 2
"""Trainings at a time: most of one drill is a wait, for the processes of a launch or for a time-out."""
LONGEST_S = 150
"""Seconds of one drill, on a loaded machine."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with drill_folder(tmp_path) as path:
        yield path


def campaign(folder: Path, drills: int, seed: int, *arguments: str, **env: str) -> list[dict[str, Any]]:
    """Return the drills of a campaign as the command reports them; `env` has the connection."""
    print(f"{drills} drills of seed {seed}")
    command = [sys.executable, "-m", "airflow_provider_ocidist.cli", "drill", str(JOB), "--json"]
    command += ["--campaign", str(drills), "--seed", str(seed), "--parallel", str(PARALLEL), *arguments]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **env},
        timeout=LONGEST_S * (drills + 1),
    )
    (folder / "log").write_text(done.stderr)
    print(*[line for line in done.stderr.splitlines() if "is left out" in line], sep="\n")
    assert done.stdout, done.stderr[-4000:]
    results: list[dict[str, Any]] = json.loads(done.stdout)
    for each in results:
        print(json.dumps({name: value for name, value in each.items() if name != "strike"}))
    return results


def judge(results: list[dict[str, Any]], drills: int, log: Path) -> None:
    wrong = [each["fault"] for each in results[1:] if not each["as_undisturbed"]]
    assert not wrong, f"{wrong}\n{log.read_text()[-6000:]}"
    happened = [each for each in results[1:] if each["happened"]]
    assert len(happened) == drills, "one that does not happen is replaced by another"
    # A save every 40 steps, and what was trained while one was on its way to the store; every tenth step is reported.
    longest, of_undisturbed = max(each["lag_steps"] for each in results), results[0]["lag_steps"]
    print(
        f"at most {longest} steps until a checkpoint was stored, {of_undisturbed} where nothing was disturbed"
    )
    assert of_undisturbed < 2 * 40, "uploads take so long that the bound would hold for any loss"
    lag = min(longest, max(2 * of_undisturbed, 40))
    unknown = [each["fault"] for each in happened if each["lost_steps"] is None and each["launches"] > 1]
    assert not unknown
    saves = {each["fault"]: 2 if each["fault"].startswith("corrupt-checkpoint") else 1 for each in happened}
    lossy = [each for each in happened if (each["lost_steps"] or 0) > saves[each["fault"]] * 40 + lag + 9]
    assert not lossy
    slow = [each for each in happened if each["fault"].startswith("starve-")]
    # A node that is only slow is neither ended nor replaced. Before a fault of a restore, a process is killed.
    ended = [each for each in slow if each["launches"] > 1 + ("@restoring" in each["fault"])]
    assert not ended


def test_whatever_happens_to_processes_of_this_machine_the_weights_are_the_same(folder: Path) -> None:
    results = campaign(folder, DRILLS, SEED, "--set", f"work_dir={folder / 'work'}")
    judge(results, DRILLS, folder / "log")


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Access]:
    with EmulatorProcess(tmp_path / "emulator") as found:
        yield found


def test_whatever_happens_to_nodes_of_a_service_the_weights_are_the_same(
    folder: Path, emulator: Access
) -> None:
    drills = max(2, DRILLS // 3)
    backend = json.dumps(
        {"kind": "oci_data_science", "shape": "VM.Standard.E4.Flex", "ocpus": 1, "memory_gb": 8}
    )
    results = campaign(folder, drills, SEED, "--set", f"backend={backend}", **emulator.airflow_env())
    judge(results, drills, folder / "log")


def test_the_example_of_drills_reports_that_no_fault_has_changed_the_model(folder: Path) -> None:
    airflow = LocalAirflow(folder / "airflow", dags=JOB.parents[1], env={})
    airflow.prepare()
    faults = ["kill-rank@training:node=1,step=100"]
    command = [sys.executable, "-m", "airflow", "dags", "test", "drill_faults"]
    done = subprocess.run(
        [*command, "--conf", json.dumps({"faults": faults})],
        env={**airflow.env, "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    row = re.search(rf"{re.escape(faults[0])} +(\d+) +([\d.]+) +(\d+) +1 +True", output)
    assert row, output[-4000:]
    at_step, seconds, lost = int(row[1]), float(row[2]), int(row[3])
    assert at_step >= 100
    assert seconds > 0
    # A save every 40 steps, and the one that may have been on its way to the store.
    assert lost < 2 * 40


# One fault at a time, with a training that needs no torch


def test_a_dead_node_costs_one_more_try_and_changes_no_weight(folder: Path) -> None:
    (_, *hurt) = drilled(
        a_file(folder), "kill-node@training:node=1,step=30", "kill-node@restoring:node=0,step=30"
    )
    for each in hurt:
        assert each["happened"]
        assert each["as_undisturbed"]
        assert each["tries"] >= 2
        assert each["lost_steps"] is not None


def test_on_a_cluster_a_dead_node_costs_one_more_try_and_changes_no_weight(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    need_views()
    with EmulatorProcess(tmp_path_factory.mktemp("cluster"), options=("--kubernetes",)) as access:
        place = {"kube_config_path": access.kubeconfig, "namespace": access.kubernetes_namespace}
        connection = {"conn_type": "oci", "extra": {**access.connection_fields(), **place}}
        path = a_file(
            folder,
            image="python:3.12",
            work_dir=access.work_dir,
            env={"OCI_CONFIG_FILE": access.config_file},
            backend={"kind": "pytorchjob"},
        )
        (_, *hurt) = drilled(
            path,
            "kill-node@training:node=1,step=30",
            "kill-node@restoring:node=0,step=30",
            AIRFLOW_CONN_OCI_DEFAULT=json.dumps(connection),
        )
    for each in hurt:
        assert each["happened"]
        assert each["as_undisturbed"]
        assert each["tries"] >= 2
        assert each["lost_steps"] is not None


def test_a_damaged_checkpoint_is_not_trained_from(folder: Path) -> None:
    (_, damaged) = drilled(a_file(folder), "corrupt-checkpoint@training:node=0,step=35")
    assert damaged["as_undisturbed"]
    assert damaged["tries"] == 2
    # The newest one is damaged, so an older one counts.
    assert damaged["lost_steps"] >= 10


def test_a_frozen_node_that_thaws_has_lost_no_step(folder: Path) -> None:
    path = a_file(folder, limits={"lost_timeout": "60s", "stop_grace": "2s"})
    (_, frozen) = drilled(path, "freeze-node@training:node=1,step=20,seconds=3")
    assert frozen["as_undisturbed"]
    assert frozen["tries"] == 1
