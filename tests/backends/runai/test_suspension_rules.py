"""What of a gang's reports a suspension forgets, in a run directory of this machine, by a clock that is set."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.backends.runai.phases import Workload
from airflow_provider_ocidist.backends.runai.suspensions import Suspensions
from airflow_provider_ocidist.errors import BackendError, Cause, StorageError
from airflow_provider_ocidist.model.report import Restart, StopRequest
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from tests.training_jobs import a_key

PAUSE = 1_700_000_000.0
"""Time at which the gang was suspended."""


def paused(since: float | None = PAUSE) -> Workload:
    return Workload(id="w", name="w", phase="Stopped", waits=True, phase_since=since)


RESUMED = replace(paused(), phase="Running")
STOPPED = replace(paused(), waits=False)


@dataclass
class Gang:
    """A gang's run directory, and the control plane's answer for it alone."""

    folder: Path
    suspensions: Suspensions
    job_id: str = "w"
    now: Workload | Exception | None = field(default_factory=paused)
    looks: int = 0

    @property
    def ref(self) -> RunRef:
        return RunRef(
            backend="runai",
            key=a_key(),
            nodes=2,
            job_id=self.job_id,
            run_ids=("a", "b"),
            run_dir=str(self.folder),
            submitted_at=0.0,
        )

    def write(self, name: str, content: bytes = b"{}", *, at: float = PAUSE - 1) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (at, at))

    def report(self, *ranks: int, content: bytes = b"{}", at: float = PAUSE - 1) -> None:
        for rank in ranks:
            self.write(f"nodes/{rank}.json", content, at=at)

    def seen(self, workload: Workload | None = None) -> list[str]:
        """Let an answer be seen; return what lies there afterwards."""
        self.suspensions.seen(self.ref, workload or paused(), self._look)
        return sorted(path.name for path in self.folder.rglob("*.json"))

    def _look(self) -> Workload | None:
        self.looks += 1
        if isinstance(self.now, Exception):
            raise self.now
        return self.now


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gang(tmp_path: Path, clock: Clock) -> Gang:
    return Gang(tmp_path / "run", Suspensions(RunDirStores(open_store), clock))


def test_what_was_written_before_the_pause_is_forgotten_at_once_and_what_came_later_stays(gang: Gang) -> None:
    gang.report(0, at=PAUSE - 3600)
    gang.report(1, at=PAUSE)
    gang.report(2, at=PAUSE + 1)
    assert gang.seen() == ["2.json"]
    assert gang.seen() == ["2.json"]
    assert gang.looks == 1, "nothing was to be deleted the second time"


@pytest.mark.parametrize("now", [None, RESUMED, STOPPED, paused(PAUSE + 5)])
def test_what_only_an_older_answer_calls_paused_loses_nothing(gang: Gang, now: Workload | None) -> None:
    gang.report(0, 1)
    gang.now = now
    assert gang.seen() == ["0.json", "1.json"]
    gang.now = paused()
    assert gang.seen() == [], "it is asked again at the next look"


@pytest.mark.parametrize("workload", [RESUMED, STOPPED])
def test_what_is_not_paused_loses_nothing(gang: Gang, workload: Workload) -> None:
    gang.report(0)
    assert gang.seen(workload) == ["0.json"]
    assert gang.looks == 0


def test_a_pause_is_over_with_once_nothing_of_before_is_left_and_the_next_is_not(gang: Gang) -> None:
    gang.report(0)
    assert gang.seen() == []
    gang.report(0)
    assert gang.seen() == ["0.json"], "nothing of before was left: a resumed node has written it"
    gang.now = paused(PAUSE + 60)
    assert gang.seen(gang.now) == [], "of the next pause"


def test_after_a_resumption_a_pause_is_looked_at_anew(gang: Gang) -> None:
    gang.seen()
    gang.report(0)
    gang.seen(RESUMED)
    assert gang.seen() == []


@pytest.mark.parametrize("since", [PAUSE, None])
def test_what_bears_a_later_time_is_forgotten_after_half_a_minute_without_a_change(
    gang: Gang, clock: Clock, since: float | None
) -> None:
    """The clocks of store and platform may differ, and the platform may not say when it was."""
    gang.now = paused(since)
    gang.report(0, 1, at=PAUSE + 600)
    assert gang.seen(gang.now) == ["0.json", "1.json"]
    clock.now += 20
    gang.report(0, at=PAUSE + 602)
    gang.report(1, content=b"{...}", at=PAUSE + 600)
    gang.report(2, at=PAUSE + 600)
    assert gang.seen(gang.now) == ["0.json", "1.json", "2.json"]
    clock.now += 29.9
    assert gang.seen(gang.now) == ["0.json", "1.json", "2.json"], "each has changed, or come, since"
    assert gang.looks == 0
    clock.now += 0.1
    assert gang.seen(gang.now) == []


def test_half_a_minute_of_an_earlier_pause_does_not_count(gang: Gang, clock: Clock) -> None:
    gang.report(0, at=PAUSE + 600)
    gang.seen()
    clock.now += 20
    gang.seen(RESUMED)
    clock.now += 20
    assert gang.seen() == ["0.json"]
    clock.now += 30
    assert gang.seen() == []


def test_gangs_are_told_apart(gang: Gang, tmp_path: Path, clock: Clock) -> None:
    other = Gang(tmp_path / "other", gang.suspensions, job_id="v")
    for each in (gang, other):
        each.report(0, at=PAUSE + 600)
        each.seen()
        clock.now += 20
    gang.seen(RESUMED)
    clock.now += 10
    assert other.seen() == []
    assert gang.seen() == ["0.json"]
    gang.report(0)
    assert gang.seen() == []


def test_without_reports_or_a_folder_there_is_nothing_to_forget(gang: Gang) -> None:
    assert gang.seen() == []
    assert gang.looks == 0


REQUEST = StopRequest(cause=Cause.CANCELED, message="enough")


@pytest.mark.parametrize(
    "content, stays",
    [
        (REQUEST.to_json(), True),
        (replace(REQUEST, rank=0).to_json(), False),
        (replace(REQUEST, restarts=(Restart(cause=Cause.USER, message="boom"),)).to_json(), False),
        (b"{", False),
        (b"[1]", False),
    ],
)
def test_of_requests_to_end_only_that_of_a_cancel_outlives_the_pause(
    gang: Gang, content: bytes, *, stays: bool
) -> None:
    gang.write("stop.json", content)
    gang.write("end.json", content)
    assert gang.seen() == (["end.json", "stop.json"] if stays else ["end.json"])


@pytest.mark.parametrize(
    "error", [BackendError("503"), StorageError("no answer"), ConnectionError("refused")], ids=repr
)
def test_what_cannot_be_asked_now_is_no_error_and_is_tried_again(gang: Gang, error: Exception) -> None:
    gang.report(0)
    gang.now = error
    assert gang.seen() == ["0.json"]
    gang.now = paused()
    assert gang.seen() == []


def test_a_run_directory_that_cannot_be_read_is_no_error_and_is_tried_again(gang: Gang) -> None:
    gang.folder.write_text("not a folder")
    assert gang.seen() == []
    gang.folder.unlink()
    gang.report(0)
    assert gang.seen() == []
    assert gang.looks == 1
