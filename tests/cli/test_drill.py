"""`ocidist drill` on this machine: what it reports, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.model.drill import OF_NETWORKS, FaultKind
from tests.drilling import a_file, drill, drill_folder, drilled


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with drill_folder(tmp_path) as path:
        yield path


def test_with_restarts_killed_processes_cost_no_try_and_change_no_weight(folder: Path) -> None:
    faults = ["kill-rank@training:node=1,step=30", "kill-rank@saving:node=0,step=15"]
    path = a_file(folder, restarts={"program": 2, "node": 2, "hang": 2})
    page = folder / "page.md"
    undisturbed, *hurt = drilled(path, *faults, options=["--parallel", "2", "--report", str(page)])
    assert (undisturbed["tries"], undisturbed["launches"]) == (1, 1)
    for each in hurt:
        assert each["happened"]
        assert each["as_undisturbed"]
        assert (each["tries"], each["launches"]) == (1, 2)
        assert each["recovered_after_s"] > 0
    # Every tenth step is saved, and the next save was under way. (In the first drill node 0 trained on for a while.)
    assert 0 <= hurt[1]["lost_steps"] <= 20
    assert "| kill-rank | saving | 1 | 1 | " in page.read_text()
    assert f"| {faults[1]} | {hurt[1]['strike']['step']} | " in page.read_text()


def test_a_fault_that_comes_too_late_is_reported_as_such(folder: Path) -> None:
    outputs = [{"path": "checkpoints", "uri": str(folder / "real")}]
    done = drill(a_file(folder, nodes=1, outputs=outputs), "--fault", "kill-rank@training:node=0,step=1000")
    assert done.returncode == 1
    assert "did not happen" in done.stdout
    assert "0 of 1 drill ended as the undisturbed training" in done.stdout
    assert not (folder / "real").exists(), "the outputs of a real training stay as they are"


def test_a_dry_run_trains_nothing(folder: Path) -> None:
    done = drill(a_file(folder), "--dry-run", "--campaign", "20", "--seed", "3")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 20
    assert not (folder / "work").exists()


def test_an_impossible_fault_is_refused_before_anything_is_trained(folder: Path) -> None:
    done = drill(a_file(folder), "--fault", "kill-node@training:node=7")
    assert done.returncode == 2
    assert "2 nodes" in done.stderr
    assert not (folder / "work").exists()


@pytest.mark.parametrize("page", ["missing/page.md", "."])
def test_a_report_that_cannot_be_written_is_refused_before_anything_is_trained(
    folder: Path, page: str
) -> None:
    done = drill(a_file(folder), "--report", str(folder / page))
    assert done.returncode == 2
    assert f"--report {folder / page}: " in done.stderr
    assert not (folder / "work").exists()


def test_a_folder_that_all_trainings_would_share_is_refused_before_anything_is_trained(folder: Path) -> None:
    mount = folder / "mount"
    done = drill(a_file(folder, checkpoints={"path": str(mount)}), "--fault", "kill-rank")
    assert done.returncode == 2
    assert f"checkpoints.path is {mount}" in done.stderr
    assert not (folder / "work").exists()


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("--tries", "0"), "--tries 0"),
        (("--parallel", "0"), "--parallel 0"),
        (("--campaign", "0"), "--campaign 0"),
        (("--campaign", "-3"), "--campaign -3"),
        (("--campaign", "2", "--fault", "kill-rank"), "use one of them"),
    ],
)
def test_a_drill_of_nothing_is_refused_and_not_called_well(
    folder: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = drill(a_file(folder), *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (folder / "work").exists()


def test_a_killed_node_is_replaced_and_costs_no_try(folder: Path) -> None:
    path = a_file(folder, restarts={"node": 2})
    # Node 1 counts no steps: it sees this one in a report of node 0.
    undisturbed, hurt = drilled(path, "kill-node@training:node=1,step=10")
    assert undisturbed["replaced"] == 0
    assert (hurt["tries"], hurt["launches"], hurt["replaced"]) == (1, 2, 1)
    assert hurt["as_undisturbed"]


@pytest.mark.parametrize("kind", list(OF_NETWORKS))
def test_a_network_is_neither_cut_nor_starved_where_nodes_of_this_machine_cannot_have_their_own(
    folder: Path, kind: FaultKind
) -> None:
    done = drill(a_file(folder), "--fault", f"{kind}@training:node=1,step=5,seconds=3", PATH="/nowhere")
    assert done.returncode == 2
    assert "needs a network namespace for each node: ip, tc, unshare, nsenter missing here" in done.stderr
    assert not (folder / "work").exists()


def test_where_networks_cannot_be_cut_a_campaign_says_so_and_draws_the_other_faults(folder: Path) -> None:
    done = drill(a_file(folder), "--dry-run", "--campaign", "80", PATH="/nowhere")
    assert done.returncode == 0
    assert "cut-network and starve-network are left out: ip, tc, unshare, nsenter missing here" in done.stderr
    drawn = [line.partition("@")[0] for line in done.stdout.splitlines()]
    assert len(drawn) == 80
    assert set(drawn) == set(FaultKind) - set(OF_NETWORKS)


def test_a_failure_that_airflow_does_not_retry_is_the_end_of_its_drill_too(folder: Path) -> None:
    path = a_file(folder, nodes=1)
    done = drill(path, "--json", "--fault", "full-disk@training:node=0,step=10,seconds=60", "--tries", "3")
    assert done.returncode == 1, done.stderr[-2000:]
    _, failed = json.loads(done.stdout)
    assert failed["tries"] == 1
    assert failed["failure"].startswith("USER: node 0: OSError: [Errno 27] File too large")


def test_a_starved_node_costs_time_and_no_launch_no_machine_and_no_step(folder: Path) -> None:
    path = a_file(folder, restarts={"program": 2, "node": 2, "hang": 2})
    faults = [
        "starve-node@training:node=0,step=10,seconds=3",
        "starve-node@restoring:node=1,step=15,seconds=3",
    ]
    page = folder / "page.md"
    _, *hurt = drilled(path, *faults, options=["--parallel", "2", "--report", str(page)])
    for each in hurt:
        assert each["happened"]
        assert each["as_undisturbed"]
        # Before a fault of a restore, a process is killed.
        assert each["launches"] == 1 + ("restoring" in each["fault"])
        assert (each["tries"], each["replaced"]) == (1, 0)
    assert hurt[0]["lost_steps"] == 0
    assert "| starve-node | training | 1 | 1 | " in page.read_text()
