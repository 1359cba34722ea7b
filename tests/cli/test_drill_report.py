"""What a report of drills sums up."""

from __future__ import annotations

from airflow_provider_ocidist.cli.drill_report import grouped, page, summary
from airflow_provider_ocidist.gangs.drills import Drilled, DrillRecovery
from airflow_provider_ocidist.model.drill import Fault, FaultKind, InjectedFault, When


def a_training(
    kind: FaultKind | None, seconds: float | None, lost: int | None, *, weights: str = "w", late: bool = False
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
        failure=None,
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


def test_a_fault_that_came_too_late_is_counted_apart() -> None:
    assert summary(DONE) == (
        "3 of 5 drills ended as the undisturbed training, 1 fault came too late; back after 6.0 s (median), "
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
