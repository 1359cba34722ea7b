"""Whether an uploader leaves what it has not sent to that of the next launch, or sends it before."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save import handover
from airflow_provider_ocidist.agent.save.carried import Carried, NewestInPlace, fetched_into
from airflow_provider_ocidist.agent.save.handover import Handover
from airflow_provider_ocidist.agent.save.held_links import HeldLinks
from airflow_provider_ocidist.agent.save.proofs import Proof
from airflow_provider_ocidist.agent.save.publishing import Publisher, Whole
from airflow_provider_ocidist.job import Checkpoints
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoint_names import Placed
from tests.agent.gangs import until

SEED = int(os.environ.get("TEST_SEED", "20261128"))


def series_of(placed: Placed) -> str:
    return placed.series


class Launch:
    """The handover of one launch, and a folder in which a test plays the program."""

    def __init__(self, root: Path, taken_over: int = 0) -> None:
        self.folder = root / "checkpoints"
        self.folder.mkdir()
        self.links = HeldLinks(self.folder)
        self.publisher = Publisher(
            Checkpoints(uri=str(root / "safe")),
            OciAccess(region="of-the-node"),
            Fence(attempt=1),
            loss_at=lambda _: None,
            links=self.links,
        )
        self.in_place = NewestInPlace()
        before = tuple(self.save("before.bin", number) for number in range(1, taken_over + 1))
        carried = Carried(waiting=before, links=self.links, in_place=()) if before else None
        self.handover = Handover(self.publisher, self.links, self.in_place, carried)

    def save(self, name: str, begun: int) -> Whole:
        (self.folder / name).write_text(f"weights of save {begun}")
        (item,) = fetched_into(self.folder, None, [name])
        self.in_place.add(item, begun)
        return Whole(item, Proof("a test"), begun, step=begun)

    def leaves(self, *waiting: Whole, newest: int = 0) -> bool | None:
        return self.handover.leaves(waiting, newest=newest, series_of=series_of)

    def decided(
        self, upload: Callable[[], object], is_over: Callable[[], bool] = lambda: False
    ) -> Carried | None:
        """Wait for an uploader's thread that does this, and is over before the test is."""
        thread = threading.Thread(target=upload)
        thread.start()
        try:
            return self.handover.decided(thread, is_over)
        finally:
            self.publisher.cancel()
            thread.join()


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(tmp_path)


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "SENT_FIRST", 0.2)
    monkeypatch.setattr(handover, "LOOK_INTERVAL", 0.01)


# What is left


@pytest.mark.parametrize("number", range(20))
def test_what_waits_is_left_only_where_the_next_launch_finds_all_that_it_would_find_in_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    caplog.set_level(logging.INFO)
    launch = Launch(tmp_path)
    numbers = draw.sample(range(3, 9), draw.randrange(1, 4))
    waiting = [launch.save(f"model-{begun}.bin", begun) for begun in numbers]
    launch.save("optimizer-2.bin", 2)
    if draw.random() < 0.5:
        launch.save("optimizer-9.bin", 9)
    newest = draw.choice([0, 1, min(numbers), *range(min(numbers) + 1, 10)])
    is_touched = draw.random() < 0.3
    if is_touched:
        found = launch.in_place.found(series_of) or ()
        other = next(item for item in found if item.placed.series.startswith("optimizer"))
        draw.choice([other.path.unlink, lambda: other.path.write_text("half")])()
    launch.handover.begin(None)
    launch.publisher.cancel()
    left = launch.leaves(*waiting, newest=newest)
    assert left is (newest <= min(numbers) and not is_touched)
    assert launch.publisher.is_cancelled is left, "what is not left is sent"
    assert launch.handover.is_open is left
    if left:
        carried = launch.handover.left
        assert carried is not None
        assert [whole.step for whole in carried.waiting] == sorted(numbers)
        assert [whole.begun for whole in carried.waiting] == [*range(1, len(numbers) + 1)]
        assert carried.links is launch.links
        assert carried.in_place == launch.in_place.found(series_of)
        assert caplog.messages == []
    else:
        assert launch.handover.left is None
        why = (
            "a newer one is published already"
            if newest > min(numbers)
            else "not all files that belong to it are whole on this node"
        )
        name = waiting[-1].item.path.name
        assert caplog.messages == [f"{name} is uploaded before the next launch: {why}"]


def test_what_the_program_has_deleted_or_written_over_is_not_left(launch: Launch) -> None:
    gone, half, there = (launch.save(f"{name}-1.bin", begun) for begun, name in enumerate(("a", "b", "c"), 1))
    gone.item.path.unlink()
    half.item.path.write_text("half")
    launch.in_place = launch.handover.in_place = NewestInPlace([there.item])
    launch.handover.begin(None)
    assert launch.leaves(gone, half, there)
    assert launch.handover.left
    assert [whole.item for whole in launch.handover.left.waiting] == [there.item]


@pytest.mark.parametrize("is_any_there", [True, False])
def test_where_nothing_can_be_left_nothing_is(launch: Launch, *, is_any_there: bool) -> None:
    waiting = [launch.save("a-1.bin", 1)] if is_any_there else []
    for whole in waiting:
        whole.item.path.unlink()
    launch.handover.begin(None)
    assert launch.leaves(*waiting) is False
    assert launch.handover.left is None


def test_what_the_launch_before_has_left_is_owed_and_not_left_once_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    launch = Launch(tmp_path, taken_over=2)
    own = launch.save("own.bin", 3)
    owed = launch.save("before.bin", 2)
    assert [launch.handover.owes(whole) for whole in (owed, own)] == [True, False]
    launch.handover.begin(None)
    assert launch.leaves(own, owed) is False
    assert caplog.messages == [
        "before.bin is uploaded before the next launch: the launch before has left it to this one already"
    ]
    launch.handover.begin(None)
    assert launch.leaves(own) is True, "what it has left was sent"


def test_a_first_launch_owes_nothing(launch: Launch) -> None:
    assert not launch.handover.owes(launch.save("a.bin", 1))


# Who is asked


def test_without_another_launch_nothing_is_left(launch: Launch) -> None:
    assert launch.leaves(launch.save("a.bin", 1)) is None
    assert launch.handover.left is None
    assert not launch.publisher.is_cancelled


@pytest.mark.parametrize("agrees", [True, False])
def test_other_nodes_are_asked_for_just_what_would_be_left(launch: Launch, *, agrees: bool) -> None:
    asked: list[Carried] = []

    def answer(carried: Carried) -> bool:
        asked.append(carried)
        return agrees

    launch.handover.begin(answer)
    assert not launch.handover.is_awaited
    launch.publisher.cancel()
    whole = launch.save("a.bin", 4)
    assert launch.leaves(whole) is agrees
    (carried,) = asked
    assert [each.item for each in carried.waiting] == [whole.item]
    assert launch.handover.left is (carried if agrees else None)
    assert launch.publisher.is_cancelled is agrees


def test_other_nodes_are_not_asked_where_nothing_can_be_left(launch: Launch) -> None:
    launch.handover.begin(lambda _: pytest.fail("nobody can go on from it"))
    assert launch.leaves(launch.save("a.bin", 1), newest=2) is False


def test_a_launch_on_this_node_alone_waits(launch: Launch) -> None:
    assert not launch.handover.is_awaited
    launch.handover.begin(None)
    assert launch.handover.is_awaited


# How long is waited


def test_what_is_uploaded_in_two_seconds_is_uploaded_before_the_launch() -> None:
    """docs/failures/restarts.md."""
    assert handover.SENT_FIRST == 2.0


def sending(launch: Launch, *waiting: Whole) -> None:
    """Send until that is cancelled, and then leave the rest."""
    until(lambda: launch.publisher.is_cancelled)
    launch.leaves(*waiting)


@pytest.mark.usefixtures("_hasty")
def test_what_takes_longer_is_cut_off_and_left(launch: Launch) -> None:
    whole = launch.save("a.bin", 1)
    launch.handover.begin(None)
    carried = launch.decided(lambda: sending(launch, whole))
    assert carried is not None
    assert carried is launch.handover.left
    assert carried.newest.item == whole.item
    assert not launch.handover.is_open


def test_what_is_sent_at_once_is_not_cut_off(launch: Launch) -> None:
    launch.handover.begin(None)
    cancelled: list[bool] = []
    assert launch.decided(lambda: cancelled.append(launch.publisher.is_cancelled)) is None
    assert cancelled == [False]


@pytest.mark.usefixtures("_hasty")
def test_what_cannot_be_left_is_sent_after_all(launch: Launch) -> None:
    whole = launch.save("a.bin", 1)
    launch.handover.begin(lambda _: False)
    is_cancelled: list[bool] = []

    def upload() -> None:
        sending(launch, whole)
        # The node goes on, and ends the upload at its own limit.
        until(lambda: not launch.handover.is_open)
        is_cancelled.append(launch.publisher.is_cancelled)

    assert launch.decided(upload) is None
    assert is_cancelled == [False]


@pytest.mark.usefixtures("_hasty")
def test_a_thread_that_hangs_is_waited_for_until_the_wait_is_over_and_may_send_when_it_comes_back(
    launch: Launch,
) -> None:
    whole = launch.save("a.bin", 1)
    launch.handover.begin(None)
    hangs, looks, cancelled = threading.Event(), list[bool](), list[bool | None]()

    def is_over() -> bool:
        looks.append(launch.publisher.is_cancelled)
        return len(looks) > 3

    def upload() -> None:
        hangs.wait()
        cancelled.append(launch.publisher.is_cancelled)
        cancelled.append(launch.leaves(whole))

    thread = threading.Thread(target=upload)
    thread.start()
    assert launch.handover.decided(thread, is_over) is None
    assert looks == [True] * 4
    hangs.set()
    thread.join()
    # Nobody waits for what it would leave.
    assert cancelled == [False, None]
    assert launch.handover.left is None


@pytest.mark.usefixtures("_hasty")
def test_an_answer_that_comes_after_the_wait_leaves_nothing(launch: Launch) -> None:
    """What the node has not taken would be sent by nobody."""
    whole = launch.save("a.bin", 1)
    answers, asked = threading.Event(), threading.Event()

    def answer(_: Carried) -> bool:
        asked.set()
        return answers.wait(60)

    launch.handover.begin(answer)
    said: list[bool | None] = []
    thread = threading.Thread(target=lambda: said.append(launch.leaves(whole)))
    thread.start()
    asked.wait(60)
    assert launch.handover.decided(thread, lambda: True) is None
    answers.set()
    thread.join()
    assert said == [None]
    assert launch.handover.left is None


@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize("number", range(10))
def test_the_thread_and_the_node_decide_alike_whenever_the_wait_ends(tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{SEED}.race.{number}")
    print(f"seed {SEED}.race.{number}")
    launch = Launch(tmp_path)
    whole = launch.save("a.bin", 1)
    pause, until_over = draw.uniform(0, 0.05), draw.randrange(4)
    looks = iter(range(1000))

    def answer(_: Carried) -> bool:
        time.sleep(pause)
        return True

    launch.handover.begin(answer)
    said: list[bool | None] = []

    def upload() -> None:
        until(lambda: launch.publisher.is_cancelled or not launch.handover.is_open)
        said.append(launch.leaves(whole))

    thread = threading.Thread(target=upload)
    thread.start()
    carried = launch.handover.decided(thread, lambda: next(looks) >= until_over)
    thread.join()
    assert said == [True if carried else None]
    assert launch.publisher.is_cancelled is (carried is not None)
