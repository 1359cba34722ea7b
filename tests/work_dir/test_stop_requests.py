"""Whether the nodes of a gang are to end, as the waiting side reads it in their run directory."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.report import Restart, StopRequest
from airflow_provider_ocidist.model.work_dir import STOP_FILE
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories
from tests.service_in_memory import LIVE, Model
from tests.training_jobs import a_key

END = StopRequest(cause=Cause.NODE, message="a machine is gone")
AGAIN = replace(END, restarts=(Restart(cause=Cause.NODE, message=END.message),))


@pytest.mark.parametrize(
    "there, is_to_end", [(None, False), (END.to_json(), True), (AGAIN.to_json(), False), (b"{", True)]
)
def test_only_a_request_to_end_the_run_ends_a_gang_and_one_for_another_launch_does_not(
    tmp_path: Path, there: bytes | None, is_to_end: bool
) -> None:
    run_dirs, ref = RunDirStores(open_store), Model().has(a_key(), [LIVE], run_dir=str(tmp_path))
    if there is not None:
        open_store(str(tmp_path)).write(STOP_FILE, there)
    assert RunDirectories(run_dirs, run_dirs).stop_requested(ref) is is_to_end


def test_a_request_to_end_the_run_stays_also_at_a_place_that_gives_no_etags() -> None:
    place = f"memory://{uuid.uuid4().hex}/run"
    run_dirs, ref = RunDirStores(open_store), Model().has(a_key(), [LIVE], run_dir=place)
    directories = RunDirectories(run_dirs, run_dirs)
    assert directories.request_stop(ref.key, place, END)
    lost = Restart(cause=Cause.NODE, message="another machine is gone", rank=0)
    assert not directories.launch_again(ref, [lost])
    assert not directories.go_on_without(ref, lost)
    assert directories.stop_requested(ref)


class Behind(LocalStore):
    """A store that lists a stop request which it cannot show yet."""

    def read(self, key: str) -> bytes:
        if key.endswith(STOP_FILE):
            raise FileNotFoundError(key)
        return super().read(key)


def test_a_request_that_is_listed_and_cannot_be_read_now_is_not_overwritten(tmp_path: Path) -> None:
    run_dirs, ref = (
        RunDirStores(lambda uri: Behind(Path(uri))),
        Model().has(a_key(), [LIVE], run_dir=str(tmp_path)),
    )
    LocalStore(tmp_path).write(STOP_FILE, END.to_json())
    directories = RunDirectories(run_dirs, run_dirs)
    lost = Restart(cause=Cause.NODE, message="another machine is gone", rank=0)
    for ask in (lambda: directories.launch_again(ref, [lost]), lambda: directories.go_on_without(ref, lost)):
        with pytest.raises(BackendError) as caught:
            ask()
        assert caught.value.retryable
    assert LocalStore(tmp_path).read(STOP_FILE) == END.to_json()
