"""What a task sees of the fault that another one has drilled, from all attempts of its gang."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_ocidist.hooks import OciHook
from airflow_provider_ocidist.model.drill import DrillJournal, FaultKind, InjectedFault, StepSeen
from airflow_provider_ocidist.model.work_dir import drill_journal_of

FAULT = InjectedFault(kind=FaultKind.KILL_NODE, node=1, step=45, launch=0, at=145.0, message="m")


def steps(launch: int, numbers: range, at: float) -> tuple[StepSeen, ...]:
    return tuple(StepSeen(at=at + index, launch=launch, step=step) for index, step in enumerate(numbers))


def record(run_dir: Path, rank: int, journal: DrillJournal) -> None:
    file = run_dir / drill_journal_of(rank)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(journal.to_json())


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_recovery_is_known_from_the_result_of_the_task(tmp_path: Path, attempts: int) -> None:
    run_dir = tmp_path / "dag-b-train-a1"
    before, after = steps(0, range(1, 46), 100.0), steps(2 - attempts, range(41, 60), 157.4)
    record(run_dir, 1, DrillJournal(injected=(FAULT,)))
    if attempts == 1:
        record(run_dir, 0, DrillJournal(steps=(*before, *after)))
    else:
        record(run_dir, 0, DrillJournal(steps=before))
        run_dir = tmp_path / "dag-b-train-a2"
        record(run_dir, 0, DrillJournal(steps=after))
    result = {"run_dir": str(run_dir), "nodes": [{}, {}]}
    assert OciHook().drill_recovery(result) == {"at_step": 45, "back_after_s": 12.4, "lost_steps": 5}


def test_a_training_without_a_fault_has_no_recovery(tmp_path: Path) -> None:
    run_dir = tmp_path / "dag-b-train-a1"
    result = {"run_dir": str(run_dir), "nodes": [{}, {}]}
    assert OciHook().drill_recovery(result) is None
    record(run_dir, 0, DrillJournal(steps=steps(0, range(1, 46), 100.0)))
    assert OciHook().drill_recovery(result) is None
