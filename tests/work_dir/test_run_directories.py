"""What the waiting side leaves for the nodes of a gang, and for who waits next, in a folder that may be in the way."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.drill import DrillJournal
from airflow_provider_ocidist.model.log_cursor import LogCursor
from airflow_provider_ocidist.model.report import EarlierGangs, Restart, StopRequest
from airflow_provider_ocidist.model.run import Ending, RunRef
from airflow_provider_ocidist.model.work_dir import (
    CLAIM_FILE,
    EARLIER_FILE,
    LEASE_FILE,
    LOG_CURSOR,
    STOP_FILE,
    drill_journal_of,
)
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories
from tests.service_in_memory import LIVE, Model
from tests.storage.published import publish
from tests.training_jobs import a_job, a_key

LOST = Restart(cause=Cause.NODE, message="node 1 was lost", rank=1, step=7)
CURSOR = LogCursor(try_number=3, newest=(1.0, 2.0), since=(0.5, 1.5), lines=({"a": 1.0}, {}))


class Place:
    """A gang, and its folder, for which a file may be in the way."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "run"
        self.ref: RunRef = Model().has(a_key(), [LIVE, LIVE], run_dir=str(self.folder))
        self.usual: list[str] = []
        self.urgent: list[str] = []
        self.directories = RunDirectories(self._dirs(self.usual), self._dirs(self.urgent))

    def _dirs(self, opened: list[str]) -> RunDirStores:
        def opening(uri: str) -> Any:
            opened.append(uri)
            return open_store(uri)

        return RunDirStores(opening)

    @property
    def name(self) -> str:
        return self.ref.key.name

    def has(self, file: str) -> bytes:
        return (self.folder / file).read_bytes()

    def leave(self, file: str, content: bytes) -> None:
        (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / file).write_bytes(content)

    def block(self) -> None:
        self.folder.write_text("in the way")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_each_renewal_of_a_lease_is_another_for_the_nodes(place: Place) -> None:
    seen = set()
    for _ in range(3):
        place.directories.renew(place.ref)
        seen.add(place.has(LEASE_FILE))
    assert len(seen) == 3


def test_the_latest_try_owns_a_gang_though_an_earlier_one_claims_it_afterwards(place: Place) -> None:
    assert place.directories.claimed_by(place.ref) == 0
    assert [place.directories.claim(place.ref, number) for number in (2, 4, 3, 4)] == [2, 4, 4, 4]
    assert place.directories.claimed_by(place.ref) == 4
    assert place.has(CLAIM_FILE) == b"4"


def test_a_cursor_is_read_again_as_it_was_saved_last(place: Place) -> None:
    assert place.directories.load_cursor(place.ref) is None
    place.directories.save_cursor(place.ref, CURSOR)
    assert place.directories.load_cursor(place.ref) == CURSOR


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"number": 1, "newest": [1], "since": [], "lines": []}']
)
def test_a_cursor_that_nobody_has_saved_is_none_and_that_is_said(
    place: Place, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    place.leave(LOG_CURSOR, content)
    assert place.directories.load_cursor(place.ref) is None
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert said.getMessage().startswith(f"{place.name}: could not read the position in its log: ")
    assert not said.getMessage().endswith("None")


def test_where_nothing_was_saved_nothing_is_said(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert place.directories.load_cursor(place.ref) is None
    assert place.directories.drill_journal(place.ref, 0) is None
    assert not caplog.records


def test_the_nodes_read_what_has_ended_launches_of_the_gangs_before(place: Place) -> None:
    plan = Model().plan(a_job(), a_key())
    restarts = (LOST, Restart(cause=Cause.USER, message="ValueError"))
    place.directories.hand_on(replace(plan, run_dir=str(place.folder)), restarts)
    assert EarlierGangs.from_json(place.has(EARLIER_FILE)).restarts == restarts


ENDING = Ending(cause=Cause.HANG, message="no step for 600 s", since=1.0)


@pytest.mark.parametrize(
    "ending, told",
    [
        (ENDING, StopRequest(cause=Cause.HANG, message="no step for 600 s")),
        (None, StopRequest(cause=Cause.CANCELED, message="the run was cancelled")),
    ],
    ids=["with a reason", "without"],
)
def test_a_cancel_writes_for_the_nodes_why_they_end(
    place: Place, ending: Ending | None, told: StopRequest
) -> None:
    assert place.directories.request_end(place.ref, ending)
    assert StopRequest.from_json(place.has(STOP_FILE)) == told
    assert place.directories.stop_requested(place.ref)


def test_a_stop_request_takes_the_place_of_any_before_it(place: Place) -> None:
    again = StopRequest(cause=Cause.NODE, message="m", restarts=(LOST,))
    place.leave(STOP_FILE, again.to_json())
    told = StopRequest(cause=Cause.CANCELED, message="enough", rank=2)
    assert place.directories.request_stop(place.ref.key, str(place.folder), told)
    assert StopRequest.from_json(place.has(STOP_FILE)) == told


def test_what_a_cancel_needs_waits_for_no_other_request(place: Place) -> None:
    place.directories.request_end(place.ref, None)
    place.directories.claimed_by(place.ref)
    assert place.usual == []
    assert place.urgent == [str(place.folder)]
    place.directories.renew(place.ref)
    place.directories.claim(place.ref, 1)
    place.directories.save_cursor(place.ref, CURSOR)
    assert (len(place.usual), len(place.urgent)) == (1, 1)


def test_what_a_node_has_recorded_of_a_drill_is_read_of_that_node_alone(place: Place) -> None:
    place.leave(drill_journal_of(1), DrillJournal(writes=True, damaged=("x",)).to_json())
    assert place.directories.drill_journal(place.ref, 0) is None
    assert place.directories.drill_journal(place.ref, 1) == DrillJournal(writes=True, damaged=("x",))


def test_stored_numbers_have_one_digest_wherever_they_are_stored(place: Place, tmp_path: Path) -> None:
    refs = []
    for number, content in enumerate([b"one", b"one", b"two"]):
        source = tmp_path / f"{number}" / "model.bin"
        source.parent.mkdir()
        source.write_bytes(content)
        refs.append(publish(source, str(tmp_path / "kept" / f"{number}"), step=number))
    first, same, other = (place.directories.weights_of(ref.uri) for ref in refs)
    assert first == same != other


# Where it cannot be written or read


Asked = Callable[[Place], object]
RAISING: dict[str, Asked] = {
    "renew": lambda place: place.directories.renew(place.ref),
    "hand_on": lambda place: place.directories.hand_on(place.ref, (LOST,)),  # type: ignore[arg-type]  # has as much of a plan
    "stop_requested": lambda place: place.directories.stop_requested(place.ref),
    "goes_on_after": lambda place: place.directories.goes_on_after(place.ref, 0),
    "launch_again": lambda place: place.directories.launch_again(place.ref, [LOST], 0),
    "go_on_without": lambda place: place.directories.go_on_without(place.ref, LOST),
}


@pytest.mark.parametrize("asked", RAISING.values(), ids=RAISING.keys())
def test_a_folder_that_cannot_be_reached_is_an_error_of_this_gang_that_may_pass(
    place: Place, asked: Asked
) -> None:
    place.block()
    with pytest.raises(BackendError) as caught:
        asked(place)
    assert str(caught.value).startswith(f"{place.name}: {place.folder}")
    assert str(caught.value).endswith("not a directory")
    assert caught.value.retryable


def test_a_journal_that_cannot_be_read_is_an_error_that_names_the_node(place: Place) -> None:
    place.leave(drill_journal_of(1), b"{")
    with pytest.raises(BackendError) as caught:
        place.directories.drill_journal(place.ref, 1)
    assert str(caught.value).startswith(f"{place.name}: what node 1 has recorded cannot be read: ")
    assert not str(caught.value).endswith("None")


def test_a_checkpoint_that_cannot_be_read_is_an_error_that_names_it(place: Place, tmp_path: Path) -> None:
    with pytest.raises(BackendError) as caught:
        place.directories.weights_of(str(tmp_path / "nowhere"))
    assert str(caught.value).startswith(f"{tmp_path / 'nowhere'} cannot be compared: ")
    assert not str(caught.value).endswith("None")


def test_a_claim_that_cannot_be_recorded_or_read_is_said_and_ends_no_try(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.block()
    assert place.directories.claim(place.ref, 3) == 3
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert said.getMessage().startswith(f"{place.name}: could not record ownership in the work directory; ")
    assert str(place.folder) in said.getMessage()
    assert place.directories.claimed_by(place.ref) == 0


def test_a_cursor_or_a_stop_request_that_cannot_be_written_is_said(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.block()
    place.directories.save_cursor(place.ref, CURSOR)
    assert place.directories.load_cursor(place.ref) is None
    assert (
        place.directories.request_stop(
            place.ref.key, str(place.folder), StopRequest(cause=Cause.NODE, message="m")
        )
        is False
    )
    assert place.directories.request_end(place.ref, None) is False
    words = (
        "save the position in its log",
        "read the position in its log",
        *["write a stop request for the nodes"] * 2,
    )
    assert [message.partition(f": {place.folder}")[0] for message in caplog.messages] == [
        f"{place.name}: could not {each}" for each in words
    ]
    assert all(message.endswith("not a directory") for message in caplog.messages)


# What the nodes agree on


def test_who_is_lost_at_once_is_one_restart_with_all_their_ranks(place: Place) -> None:
    also = Restart(cause=Cause.PREEMPTED, message="node 2 was preempted", rank=2)
    unknown = Restart(cause=Cause.NODE, message="somebody else")
    assert place.directories.launch_again(place.ref, [LOST, also, unknown])
    request = StopRequest.from_json(place.has(STOP_FILE))
    words = "node 1 was lost; node 2 was preempted; somebody else"
    assert (request.cause, request.message, request.rank) == (Cause.NODE, words, None)
    (restart,) = request.restarts
    assert (restart.cause, restart.message, restart.rank, restart.step) == (Cause.NODE, words, 1, 7)
    assert (restart.lost, restart.members) == ((1, 2), ())


def test_those_who_went_on_without_others_go_on_so_after_the_next_loss(place: Place) -> None:
    fewer = Restart(cause=Cause.CAPACITY, message="goes on with fewer", members=(0, 1), lost=(2,))
    assert place.directories.go_on_without(place.ref, fewer)
    assert place.directories.launch_again(place.ref, [LOST], 1)
    request = StopRequest.from_json(place.has(STOP_FILE))
    assert [(each.members, each.lost) for each in request.restarts] == [((0, 1), (2,)), ((0, 1), (1,))]


def test_the_same_change_of_members_is_asked_for_once_and_another_once_more(place: Place) -> None:
    fewer = Restart(cause=Cause.CAPACITY, message="goes on with fewer", members=(0, 1), lost=(2,))
    for _ in range(3):
        assert place.directories.go_on_without(place.ref, fewer)
    more = Restart(cause=Cause.CAPACITY, message="goes on with more", members=(0, 1, 2))
    assert place.directories.go_on_without(place.ref, more)
    request = StopRequest.from_json(place.has(STOP_FILE))
    assert (request.cause, request.message) == (Cause.CAPACITY, "goes on with more")
    assert request.restarts == (fewer, more)


def test_all_who_were_found_to_be_lost_of_one_launch_are_named_in_it(place: Place) -> None:
    assert place.directories.launch_again(place.ref, [Restart(cause=Cause.NODE, message="m", rank=3)], 0)
    assert place.directories.launch_again(place.ref, [LOST], 0)
    (restart,) = StopRequest.from_json(place.has(STOP_FILE)).restarts
    assert (restart.lost, restart.message) == ((1, 3), "m")


@pytest.mark.parametrize("cause", [Cause.USER, Cause.HANG])
def test_only_what_the_nodes_took_for_a_lost_machine_becomes_a_preemption(place: Place, cause: Cause) -> None:
    own = Restart(cause=cause, message="its own failure", rank=0)
    place.leave(STOP_FILE, StopRequest(cause=cause, message="m", restarts=(own,)).to_json())
    preempted = Restart(cause=Cause.PREEMPTED, message="Preempted.", rank=1)
    assert place.directories.launch_again(place.ref, [preempted], 0)
    (restart,) = StopRequest.from_json(place.has(STOP_FILE)).restarts
    assert (restart.cause, restart.message, restart.lost) == (cause, "its own failure", (1,))


def test_of_many_who_ask_at_once_no_change_is_lost(place: Place) -> None:
    place.folder.mkdir()
    asked = [Restart(cause=Cause.NODE, message="m", rank=rank) for rank in range(4)]
    threads = [
        threading.Thread(target=place.directories.launch_again, args=(place.ref, [each], 0)) for each in asked
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (restart,) = StopRequest.from_json(place.has(STOP_FILE)).restarts
    assert restart.lost == (0, 1, 2, 3)
    assert json.loads(place.has(STOP_FILE))["cause"] == str(Cause.NODE)
