"""What a report of drills sums up."""

from __future__ import annotations

import argparse
import os
import random
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.cli.drill import _all_well, _Choice, _others_for, _report
from airflow_provider_ocidist.cli.drill_report import as_json, grouped, page, rows_of, summary
from airflow_provider_ocidist.cli.terminal import Unusable
from airflow_provider_ocidist.gangs.drill_measures import DrillRecovery, SavePace
from airflow_provider_ocidist.gangs.drills import Drilled
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.drill import OF_TIME, Fault, FaultKind, InjectedFault, When
from tests.training_jobs import PROGRAMS

SEED = int(os.environ.get("TEST_SEED", "20261127"))


def a_training(
    kind: FaultKind | None,
    seconds: float | None,
    lost: int | None,
    *,
    weights: str = "w",
    late: bool = False,
    failure: str | None = None,
) -> Drilled:
    fault = Fault(kind=kind, when=When.TRAINING) if kind else None
    recovery = None
    if fault and not late:
        injected = InjectedFault(kind=fault.kind, node=0, step=5, launch=0, at=0.0, message="m")
        recovery = DrillRecovery(injected=injected, seconds=seconds, lost_steps=lost)
    return Drilled(
        fault=fault,
        tries=1,
        launches=2,
        seconds=9.0,
        failure=failure,
        weights=weights,
        step=9,
        recovery=recovery,
    )


DONE = [
    a_training(None, None, None),
    a_training(FaultKind.KILL_NODE, 4.0, 10),
    a_training(FaultKind.KILL_NODE, 6.0, 20),
    a_training(FaultKind.KILL_NODE, 11.0, 30, weights="others"),
    a_training(FaultKind.KILL_RANK, None, None),
    a_training(FaultKind.KILL_RANK, None, None, late=True),
]


def test_a_report_has_for_each_fault_and_moment_what_came_back_and_what_was_lost() -> None:
    _, *rows = grouped(DONE)
    assert rows == [
        ("kill-node", "training", "3", "2", "6.0 s", "11.0 s", "20", "30"),
        ("kill-rank", "training", "1", "1", "-", "-", "-", "-"),
        ("all", "", "4", "3", "6.0 s", "11.0 s", "20", "30"),
    ]


def test_a_fault_that_did_not_happen_is_counted_apart() -> None:
    assert summary(DONE) == (
        "3 of 5 drills ended as the undisturbed training, 1 fault did not happen; back after 6.0 s (median), "
        "11.0 s at most; 30 steps lost at most"
    )


def test_a_page_has_a_row_for_each_training() -> None:
    text = page("Drills", DONE, "By hand.")
    assert text.startswith("# Drills\n\nBy hand. 3 of 5 drills")
    assert sum(line.startswith("| kill-node@training:node=0,step=1 |") for line in text.splitlines()) == 3
    assert text.count("OTHER WEIGHTS") == 1


def test_a_page_says_which_faults_were_left_out_and_why() -> None:
    text = page("Drills", DONE, "By hand.", ["cut-network is left out: only root may"])
    assert "\n\n**cut-network is left out: only root may.**\n\n" in text
    assert "left out" not in page("Drills", DONE, "By hand.")


@pytest.mark.parametrize(
    "harmed, outcome",
    [({"failure": "NODE: node 0 is lost"}, "NODE: node 0 is lost"), ({"weights": "others"}, "OTHER WEIGHTS")],
)
def test_a_training_that_is_harmed_before_its_fault_is_replaced_by_none_and_is_no_success(
    harmed: dict[str, Any], outcome: str
) -> None:
    undisturbed, well = a_training(None, None, None), a_training(FaultKind.KILL_NODE, 4.0, 10)
    late = a_training(FaultKind.KILL_RANK, None, None, late=True)
    other = a_training(FaultKind.KILL_RANK, None, None, late=True, **harmed)
    assert rows_of([undisturbed, other])[-1][-1] == outcome
    program = {"source": str(PROGRAMS), "script": "steps.py"}
    job = parsing.build({"name": "a", "program": program, "backend": {"kind": "local"}})
    options = argparse.Namespace(campaign=2, seed=1)
    for done, is_well, others in (
        ([undisturbed, well, late], False, 1),
        ([undisturbed, well, other], False, 0),
        ([undisturbed, well, well], True, 0),
        ([undisturbed, well, well, other], False, 0),
    ):
        assert _all_well(options, done) is is_well
        assert len(_others_for(_Choice(options, job, [], None), 9, done)) == others


def undisturbed(pace: SavePace | None, lag: int = 0) -> Drilled:
    return replace(a_training(None, None, None), pace=pace, lag=lag)


EVERY_40 = SavePace(interval=40, stride=1)


@pytest.mark.parametrize(
    "kind, lost, launches, pace, outcome",
    [
        (FaultKind.KILL_NODE, 0, 2, EVERY_40, "same weights"),
        (FaultKind.KILL_NODE, 47, 2, EVERY_40, "same weights"),
        (FaultKind.KILL_NODE, 48, 2, EVERY_40, "LOST MORE THAN 47 STEPS"),
        (FaultKind.CORRUPT_CHECKPOINT, 87, 2, EVERY_40, "same weights"),
        (FaultKind.CORRUPT_CHECKPOINT, 88, 2, EVERY_40, "LOST MORE THAN 87 STEPS"),
        (FaultKind.KILL_NODE, None, 2, EVERY_40, "LOST STEPS NOT KNOWN"),
        (FaultKind.FREEZE_NODE, None, 1, EVERY_40, "same weights"),
        # A training that shows no checkpoint and no step cannot be judged.
        (FaultKind.KILL_NODE, 999, 2, None, "same weights"),
        (FaultKind.KILL_NODE, None, 2, None, "same weights"),
    ],
)
def test_a_training_that_has_lost_more_than_it_may_or_nobody_knows_how_much_is_no_success(
    kind: FaultKind, lost: int | None, launches: int, pace: SavePace | None, outcome: str
) -> None:
    hurt = replace(a_training(kind, 4.0, lost), launches=launches, lag=3)
    # A lag of 7 steps was seen in another training.
    done = [undisturbed(pace, lag=7), hurt]
    options = argparse.Namespace(campaign=None)
    is_well = outcome == "same weights"
    assert rows_of(done)[-1][-1] == outcome
    assert _all_well(options, done) is is_well
    assert ("1 lost more steps than one may" in summary(done)) is not is_well
    most = None if pace is None else 87 if kind is FaultKind.CORRUPT_CHECKPOINT else 47
    found = as_json(hurt, done)
    assert (found["most_lost_steps"], found["lost_steps"], found["lag_steps"]) == (most, lost, 3)


@pytest.mark.parametrize("number", range(40))
def test_what_a_fault_delays_is_no_excuse_for_the_steps_that_others_lose(number: int) -> None:
    print(f"seed {SEED}.{number}")
    draw = random.Random(f"{SEED}.{number}")
    pace = SavePace(interval=draw.randint(10, 100), stride=1)
    of_undisturbed, of_others = draw.randint(0, 60), draw.randint(0, 60)
    allowed = max(2 * of_undisturbed, pace.interval)
    hurt = replace(a_training(FaultKind.KILL_NODE, 4.0, 0), lag=of_others)
    # Its uploads were held up by the fault, for many steps.
    held_up = replace(
        a_training(FaultKind.FREEZE_NODE, 4.0, 0), lag=draw.randint(allowed + 1, 1000), launches=1
    )
    lag = max(of_undisturbed, of_others)
    for done, counts in (
        ([undisturbed(pace, of_undisturbed), hurt], min(lag, allowed)),
        ([undisturbed(pace, of_undisturbed), hurt, held_up], allowed),
    ):
        assert as_json(hurt, done)["most_lost_steps"] == pace.interval + counts
        most = pace.interval + counts
        for lost, is_well in ((most, True), (most + 1, False)):
            (_, _, row, *_) = rows_of([done[0], replace(hurt, recovery=recovered(lost)), *done[2:]])
            assert (row[-1] == "same weights") is is_well


def recovered(lost: int) -> DrillRecovery | None:
    return a_training(FaultKind.KILL_NODE, 4.0, lost).recovery


@pytest.mark.parametrize("kind", list(FaultKind))
@pytest.mark.parametrize("when", [When.TRAINING, When.RESTORING])
def test_a_node_that_was_only_slow_may_cost_no_launch(kind: FaultKind, when: When) -> None:
    after_a_kill = when is When.RESTORING
    options = argparse.Namespace(campaign=None)
    for launches in (1, 2, 3):
        hurt = replace(a_training(kind, 4.0, 0), fault=Fault(kind=kind, when=when), launches=launches)
        done = [undisturbed(EVERY_40), hurt]
        is_well = kind not in OF_TIME or launches <= 1 + after_a_kill
        assert (rows_of(done)[-1][-1] == "same weights") is is_well
        assert _all_well(options, done) is is_well
        assert (", 1 launched again though only slow" in summary(done)) is not is_well
        late = replace(hurt, recovery=None)
        assert rows_of([done[0], late])[-1][-1] == "did not happen"


@pytest.mark.parametrize("as_tables", [True, False])
def test_the_result_is_printed_though_the_folder_of_the_page_was_removed_meanwhile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_tables: bool
) -> None:
    gone = tmp_path / "removed" / "page.md"
    options = argparse.Namespace(
        report=gone, json=not as_tables, campaign=None, fault=[], file="job.yaml", parallel=1, tries=3
    )
    job = parsing.build({"name": "x", "program": {"source": str(PROGRAMS), "script": "steps.py"}})
    done = [a_training(None, None, None), a_training(FaultKind.KILL_RANK, 3.0, 2)]
    with pytest.raises(Unusable, match=r"--report .*page.md: cannot be written: No such file"):
        _report(_Choice(options, job, (), None), done, 1.0)
    assert "kill-rank" in capsys.readouterr().out


@pytest.mark.parametrize("output", ["that nobody reads", "on a full disk"])
@pytest.mark.parametrize("as_tables", [True, False])
def test_the_page_is_written_though_the_tables_cannot_be_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_tables: bool, output: str
) -> None:
    options = argparse.Namespace(
        report=tmp_path / "page.md",
        json=not as_tables,
        campaign=None,
        fault=[],
        file="job.yaml",
        parallel=1,
        tries=3,
    )
    job = parsing.build({"name": "x", "program": {"source": str(PROGRAMS), "script": "steps.py"}})
    done = [a_training(None, None, None), a_training(FaultKind.KILL_RANK, 3.0, 2)]
    reading, writing = os.pipe()
    os.close(reading)
    if output == "on a full disk":
        os.close(writing)
        writing = os.open("/dev/full", os.O_WRONLY)
    with open(writing, "w") as unread:
        monkeypatch.setattr("sys.stdout", unread)
        expected = pytest.raises(Unusable, match="No space left") if "full" in output else nullcontext()
        with expected:
            _report(_Choice(options, job, (), None), done, 1.0)
    assert "| kill-rank | " in options.report.read_text()
