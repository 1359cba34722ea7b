"""When the end of a gang counts as asked for, whatever becomes of its two ways: docs/failures/service.md."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from airflow_provider_ocidist.backends.cancels import EndAnswer, cancel_at_both
from airflow_provider_ocidist.errors import BackendError, CancelFailed, Cause
from airflow_provider_ocidist.model.report import StopRequest
from airflow_provider_ocidist.model.run import Ending, RunRef
from airflow_provider_ocidist.model.work_dir import STOP_FILE
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories
from tests.training_jobs import a_key

ENDING = Ending(cause=Cause.HANG, message="no step for 600 s", since=0.0)
REFUSED = BackendError("it is busy", status_code=503, retryable=True)
UNSEEN = BackendError("not found", status_code=404)


def gang(run_dir: Path) -> RunRef:
    return RunRef(
        backend="any",
        key=a_key(),
        nodes=1,
        job_id="job",
        run_ids=("run",),
        run_dir=str(run_dir),
        submitted_at=0.0,
    )


def no_store(_: str) -> Store:
    raise BackendError("nothing listens there")


def directories(*, written: bool) -> RunDirectories:
    dirs = RunDirStores(open_store if written else no_store)
    return RunDirectories(dirs, dirs)


@pytest.mark.parametrize(
    "refused, unseen, written", [*itertools.product([None, REFUSED], [None, UNSEEN], [True, False])]
)
def test_a_gang_is_cancelled_unless_some_of_it_may_go_on_and_hear_nothing_of_it(
    tmp_path: Path, refused: BackendError | None, unseen: BackendError | None, *, written: bool
) -> None:
    def cancel() -> None:
        errors = {"refused": refused, "unseen": unseen}
        answer = EndAnswer(**{name: error for name, error in errors.items() if error})
        cancel_at_both(lambda _: answer, directories(written=written), gang(tmp_path), ENDING)

    expected = refused or (None if written else unseen)
    if expected is None:
        cancel()
    else:
        with pytest.raises(CancelFailed) as failed:
            cancel()
        assert failed.value.__cause__ is expected
        assert failed.value.stop_requested is written
    asked = tmp_path / STOP_FILE
    assert asked.exists() is written
    if written:
        request = StopRequest.from_json(asked.read_bytes())
        assert (request.cause, request.message) == (ENDING.cause, ENDING.message)


def test_the_service_is_asked_while_the_stop_request_is_being_written(tmp_path: Path) -> None:
    ref, both_begun = gang(tmp_path), threading.Barrier(2, timeout=60)

    def opened(place: str) -> Store:
        both_begun.wait()
        return open_store(place)

    def end(asked: RunRef) -> EndAnswer:
        both_begun.wait()
        assert asked is ref
        return EndAnswer()

    dirs = RunDirStores(opened)
    cancel_at_both(end, RunDirectories(dirs, dirs), ref, None)
    assert (tmp_path / STOP_FILE).exists()
