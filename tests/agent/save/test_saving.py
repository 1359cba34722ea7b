"""How long a node goes on trying to save what a training has left."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save import saving
from airflow_provider_ocidist.agent.save.outputs import OutputCopy, copy_outputs
from airflow_provider_ocidist.agent.save.saving import Movement, SaveDeadline, cause_of_failed_save
from airflow_provider_ocidist.agent.stopping import Stop, StopSwitch
from airflow_provider_ocidist.errors import AgentError, BackendError, Cause, StorageError, Unpublishable
from airflow_provider_ocidist.model.job import Limits
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.stores.local import LocalStore

PAUSES = saving.FIRST_PAUSE, saving.LONGEST_PAUSE
PASSING, REFUSED = StorageError("503", retryable=True), StorageError("404")


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(saving, "LONGEST_PAUSE", 0.05)


def tries(deadline: SaveDeadline, error: Exception) -> int:
    count = 1
    while deadline.again("it", error):
        count += 1
    return count


def test_passing_trouble_is_tried_again_until_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "REFUSED_LIMIT", 0.0)
    assert tries(SaveDeadline(0.5), PASSING) > 5
    assert tries(SaveDeadline(0.5), REFUSED) == 1
    assert cause_of_failed_save(PASSING) is Cause.SERVICE
    assert cause_of_failed_save(REFUSED) is Cause.DATA


def test_one_refusal_among_answers_that_pass_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "REFUSED_LIMIT", 0.2)
    deadline = SaveDeadline(60)
    for _ in range(10):
        assert deadline.again("it", REFUSED)
        assert deadline.again("it", PASSING)


def test_what_is_under_way_is_cancelled_once_its_time_is_over_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(saving, "LOOK_INTERVAL", 0.01)
    switch = StopSwitch()
    with SaveDeadline(0.0, switch, grace=0.0).cancelling() as over:
        assert not over.wait(0.1), "nobody has asked this node to stop"
        switch.signalled.set()
        switch.ask(Stop(message="asked to stop"))
        assert over.wait(10)
    with SaveDeadline(60.0).cancelling() as over:
        pass
    assert not over.is_set()


def test_an_upload_under_way_outlives_the_limit_unless_this_node_is_asked_to_stop() -> None:
    switch = StopSwitch()
    deadline = SaveDeadline(0.0, switch, grace=0.1)
    assert deadline.left <= 0
    assert not deadline.is_over
    switch.signalled.set()
    switch.ask(Stop(message="asked to stop"))
    assert deadline.is_over
    assert SaveDeadline(0.0).is_over


@pytest.mark.parametrize("cause", [Cause.NODE, Cause.HANG])
def test_a_watch_that_finds_this_node_cut_off_ends_no_saving(cause: Cause) -> None:
    switch = StopSwitch()
    deadline = SaveDeadline(60, switch, grace=0.0)
    switch.ask(Stop(message="cut off", cause=cause))
    assert deadline.left > 30


def test_a_lost_node_that_comes_back_while_it_saves_has_no_time_left() -> None:
    switch = StopSwitch()
    deadline = SaveDeadline(60.0, switch)
    switch.ask(Stop(message="another launch"))
    assert not deadline.is_over
    switch.ask(Stop(message="lost", is_lost=True))
    assert deadline.is_over


def test_a_signal_shortens_what_a_request_of_another_node_has_left() -> None:
    switch = StopSwitch()
    deadline = SaveDeadline(3600, switch, grace=5.0)
    switch.ask(Stop(message="node 1 ended the run"))
    assert 200 < deadline.left <= saving.SAVE_LIMIT
    switch.signalled.set()
    assert deadline.left <= 5.0


def test_an_output_that_cannot_be_sent_is_sent_once_it_can(tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("weights")
    target = tmp_path / "safe"
    target.write_text("in the way")
    output = OutputCopy(path="model.txt", source=tmp_path / "model.txt", uri=str(target), required=True)
    with pytest.raises(AgentError, match=r"the output model\.txt cannot be copied"):
        copy_outputs([output], OciAccess())
    threading.Timer(0.5, target.unlink).start()
    began = time.monotonic()
    assert copy_outputs([output], OciAccess(), deadline=SaveDeadline(60)) == (str(target / "model.txt"),)
    assert time.monotonic() - began < 60
    assert (target / "model.txt").read_text() == "weights"


# Before another launch


def another_launch(switch: StopSwitch) -> None:
    failure = Restart(cause=Cause.USER, message="ValueError", rank=1)
    switch.ask(Stop(message="node 1 ended the launch", restarts=(failure,)))


def test_a_request_for_another_launch_shortens_no_saving_and_the_end_of_the_run_does() -> None:
    switch = StopSwitch()
    deadline = SaveDeadline(3600, switch, grace=5.0)
    another_launch(switch)
    assert deadline.left > 3000
    assert not deadline.is_over
    switch.ask(Stop(message="the submitter ended the run"))
    assert 200 < deadline.left <= saving.SAVE_LIMIT
    switch.signalled.set()
    assert deadline.left <= 5.0


def test_a_limit_from_the_first_failure_does_not_count_what_went_well_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])
    deadline = SaveDeadline(10.0, StopSwitch(), from_failure=True)
    now[0] += 1000.0
    assert deadline.left == 10.0
    assert deadline.allows_another(PASSING)
    now[0] += 9.0
    assert deadline.allows_another(PASSING)
    deadline.succeeded()
    now[0] += 5.0
    assert deadline.allows_another(PASSING)
    now[0] += 10.0
    assert not deadline.allows_another(PASSING)
    # What is under way goes on: only no other try begins.
    assert not deadline.is_over


def test_a_stop_request_ends_also_what_has_not_failed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    now, switch = [100.0], StopSwitch()
    monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])
    deadline = SaveDeadline(600.0, switch, grace=5.0, from_failure=True)
    switch.signalled.set()
    switch.ask(Stop(message="this node was stopped by SIGTERM"))
    assert deadline.left == 5.0
    deadline.succeeded()
    now[0] += 5.0
    assert deadline.is_over


# Second by second


class Clock:
    """A clock that a pause moves on."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(saving, "time", found)
    monkeypatch.setattr(saving, "FIRST_PAUSE", 1.0)
    monkeypatch.setattr(saving, "LONGEST_PAUSE", 60.0)
    return found


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_success(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    deadline, pauses = SaveDeadline(1000.0), []
    for number in range(9):
        if number == 8:
            deadline.succeeded()
        before = clock.now
        assert deadline.again("the checkpoint cannot be saved", PASSING)
        pauses.append(clock.now - before)
    assert PAUSES == (1.0, 60.0)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 1.0]
    # Within a pause it is looked whether the time is over.
    assert max(clock.slept) == saving.LOOK_INTERVAL
    assert caplog.messages[:2] == [
        "the checkpoint cannot be saved: 503; trying again in 1 s, for at most 1000 s more",
        "the checkpoint cannot be saved: 503; trying again in 2 s, for at most 999 s more",
    ]


def test_the_last_pause_ends_with_the_time_and_no_try_follows_it(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    deadline = SaveDeadline(1.25)
    assert deadline.again("it", PASSING)
    assert not deadline.again("it", PASSING)
    assert clock.now == 101.25
    assert caplog.messages[-1] == "it: 503; trying again in 0 s, for at most 0 s more"
    assert not deadline.again("it", PASSING)
    assert (clock.now, len(caplog.messages)) == (101.25, 2), "at once, and without a word"


def test_an_upload_is_given_up_at_the_end_of_its_time_and_no_sooner(clock: Clock) -> None:
    deadline = SaveDeadline(10.0)
    clock.now += 9.0
    assert not deadline.is_over
    clock.now += 1.0
    assert deadline.is_over


def test_what_watches_an_upload_keeps_no_process_and_ends_with_the_upload() -> None:
    def watching() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "save-deadline"]

    before = watching()
    with SaveDeadline(60.0).cancelling():
        (thread,) = set(watching()) - set(before)
        assert thread.daemon
    thread.join(60)
    assert not thread.is_alive()


def test_a_stop_request_ends_a_pause(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = StopSwitch()
    deadline = SaveDeadline(1000.0, switch, grace=0.0)
    monkeypatch.setattr(saving, "FIRST_PAUSE", 60.0)
    deadline.succeeded()
    real = clock.sleep

    def asked_amid(seconds: float) -> None:
        real(seconds)
        if clock.now == 103.0:
            switch.signalled.set()
            switch.ask(Stop(message="asked to stop"))

    monkeypatch.setattr(clock, "sleep", asked_amid)
    assert not deadline.again("it", PASSING)
    assert clock.now == 103.0


def test_a_refusal_is_tried_again_for_ten_minutes_unless_something_else_comes_between(clock: Clock) -> None:
    deadline = SaveDeadline(1e6)
    assert saving.REFUSED_LIMIT == 600.0
    assert deadline.allows_another(REFUSED)
    clock.now += 599.0
    assert deadline.allows_another(REFUSED)
    clock.now += 1.0
    assert not deadline.allows_another(REFUSED)
    assert deadline.allows_another(PASSING)
    clock.now += 599.0
    assert deadline.allows_another(REFUSED), "the refusals before do not count"
    clock.now += 599.0
    assert deadline.allows_another(REFUSED)
    deadline.succeeded()
    clock.now += 599.0
    assert deadline.allows_another(REFUSED)


def test_what_can_never_be_published_is_not_tried_again() -> None:
    deadline = SaveDeadline(1e6)
    assert not deadline.allows_another(Unpublishable("a name that no store takes", retryable=True))


def test_a_file_that_would_lie_behind_a_link_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "models").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="is a link to") as caught:
        LocalStore(tmp_path).write("models/x", b"")
    assert not SaveDeadline(60.0).allows_another(caught.value)


def test_a_stop_request_says_how_long_it_leaves_and_only_a_shorter_one_counts_after_it(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    switch = StopSwitch()
    deadline = SaveDeadline(3600.0, switch, grace=20.0)
    switch.ask(Stop(message="node 1 ended the run"))
    assert deadline.left == 300.0 == saving.SAVE_LIMIT
    clock.now += 10.0
    assert deadline.left == 290.0
    switch.signalled.set()
    assert deadline.left == 20.0
    clock.now += 5.0
    assert deadline.left == 15.0
    assert caplog.messages == [
        "got a stop request while saving: at most 300 s more (node 1 ended the run)",
        "got a stop request while saving: at most 20 s more (node 1 ended the run)",
    ]
    # What is left anyway is not made longer.
    late = SaveDeadline(3.0, switch, grace=20.0)
    assert late.left == 3.0


def test_a_limit_has_the_name_of_the_job_file_unless_it_has_another() -> None:
    assert SaveDeadline(1.0).named == "limits.save_timeout"
    assert SaveDeadline(1.0, named="limits.stop_grace").named == "limits.stop_grace"


@pytest.mark.parametrize(
    "error, is_passing",
    [
        (PASSING, True),
        (REFUSED, False),
        (BackendError("429", retryable=True), True),
        (BackendError("401"), False),
        (AgentError("no", cause=Cause.DATA), False),
        (OSError("no"), False),
    ],
)
def test_what_may_pass_is_a_fault_of_the_service_and_anything_else_one_of_the_data(
    error: Exception, *, is_passing: bool
) -> None:
    assert saving.passes(error) is is_passing
    assert cause_of_failed_save(error) is (Cause.SERVICE if is_passing else Cause.DATA)


# Whether it makes progress


def test_each_sign_is_progress_and_silence_is_none(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_bytes_read", lambda: 0)
    movement = Movement()
    assert movement.why("x") == "saving made no progress for 0 s (x)"
    clock.now += 7.0
    assert movement.still_for() == 7.0
    movement.further("/mnt/a")
    assert movement.still_for() == 0.0
    clock.now += 3.0
    movement.further()
    assert movement.at == "/mnt/a"
    assert movement.still_for() == 0.0
    clock.now += 30.4
    assert movement.why("limits.save_timeout") == (
        "saving made no progress for 30 s (limits.save_timeout): it stands at /mnt/a, whose file system may not answer"
    )
    movement.further("")
    clock.now += 5.0
    # It is looked at from time to time: a sign counts from the look on that sees it.
    assert movement.still_for() == 0.0
    clock.now += 5.0
    assert movement.why("x") == "saving made no progress for 5 s (x)"


def test_what_has_not_moved_before_the_first_look_stands_still_since_it_began(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_bytes_read", lambda: saving.READ_STEP - 1)
    movement = Movement()
    clock.now += 10.0
    assert movement.still_for() == 10.0


def test_an_upload_is_aborted_within_the_grace_that_a_node_has_after_a_stop_request() -> None:
    # For the upload's thread, and for the links that it holds.
    assert Limits().stop_grace > 2 * saving.ABORT_WITHIN


def test_to_read_much_is_progress_and_to_read_little_is_none(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = [5]
    monkeypatch.setattr(saving, "_bytes_read", lambda: read[0])
    movement = Movement()
    movement.still_for()
    clock.now += 10.0
    read[0] = saving.READ_STEP - 1
    assert movement.still_for() == 10.0
    read[0] += 1
    assert movement.still_for() == 0.0


def test_what_this_process_reads_is_counted(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(1 << 20))
    before = saving._bytes_read()
    (tmp_path / "large").read_bytes()
    assert 1 << 20 <= saving._bytes_read() - before < 1 << 22


def test_a_machine_that_does_not_count_what_is_read_shows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "io").write_text("rchar: many")
    for name in ("nowhere", "io"):
        monkeypatch.setattr(saving, "Path", lambda _, name=name: tmp_path / name)
        assert saving._bytes_read() == 0
