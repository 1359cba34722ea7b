"""Exactly once: what becomes of a task's gang when others have tried before. With the emulator."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.gangs import canceller
from airflow_provider_ocidist.gangs.attempt_notes import NOTE
from airflow_provider_ocidist.gangs.canceller import Canceller, end_unless_claimed
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.model.attempts import Attempt, End
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunKey, RunRef
from airflow_provider_ocidist.work_dir.parallel import in_parallel
from scripts.emulator_process import Access
from tests.http_client import http
from tests.training_jobs import a_job, a_key, wait_until

Ends = Callable[[RunRef], RunRef]


class MemoryNotes(dict[str, Any]):
    """A task state store that forgets with the test."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


def submit(
    backend: OciDataScience, job: TrainingJob, key: RunKey, notes: MemoryNotes | None = None, **event: bool
) -> RunRef:
    stop = threading.Event()
    if event.get("stopped"):
        stop.set()
    gang = GangSubmitter(backend, job, logging.getLogger("test"), notes, stop)
    return gang.adopt_or_submit(key, None).ref


def test_a_live_gang_is_adopted(backend: OciDataScience, ends: Ends) -> None:
    key, job = a_key(), a_job(seconds=30)
    first = ends(submit(backend, job, key))
    assert submit(backend, job, key) == first


def test_a_gang_that_has_succeeded_is_adopted(backend: OciDataScience, ends: Ends) -> None:
    key, job = a_key(), a_job(seconds=0.2)
    first = ends(submit(backend, job, key))
    wait_until(backend, first, lambda status: status.ended)
    assert submit(backend, job, key) == first


def test_after_a_failure_the_next_attempt_is_a_new_gang(backend: OciDataScience, ends: Ends) -> None:
    key, job = a_key(), a_job(seconds=30)
    first = ends(submit(backend, job, key))
    backend.cancel(first)
    wait_until(backend, first, lambda status: status.ended)
    second = ends(submit(backend, job, key))
    assert second.key == dataclasses.replace(key, attempt=2)
    assert second.job_id != first.job_id


def test_a_gang_that_is_just_being_ended_is_not_waited_for(
    backend: OciDataScience, ends: Ends, tmp_path: Path
) -> None:
    (tmp_path / "deaf.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('step 1', flush=True)\ntime.sleep(60)\n"
    )
    program = {"source": str(tmp_path), "script": "deaf.py"}
    key, job = a_key(), a_job(program=program, limits={"stop_grace": 5})
    first = ends(submit(backend, job, key))
    wait_until(backend, first, lambda status: all(_has_begun(node) for node in status.nodes))
    backend.cancel(first)
    wait_until(backend, first, lambda status: all(node.state is NodeState.ENDING for node in status.nodes))
    second = ends(submit(backend, job, key))
    assert second.key.attempt == 2
    (status,) = backend.status([first])
    assert status.ended


def test_a_try_that_airflow_gave_up_does_not_end_what_a_later_one_waits_for(
    backend: OciDataScience, ends: Ends
) -> None:
    key, job, log = a_key(), a_job(seconds=30), logging.getLogger("test")
    ref = ends(submit(backend, job, key))
    assert GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(key, None, 2).ref == ref
    end_unless_claimed(backend, ref, 1, log)
    (status,) = backend.status([ref])
    assert not {node.state for node in status.nodes} & {NodeState.ENDING, NodeState.CANCELED}
    end_unless_claimed(backend, ref, 2, log)
    wait_until(backend, ref, lambda status: status.ended)


def _has_begun(node: NodeStatus) -> bool:
    return bool(node.report and node.report.progress and node.report.progress.step == 1)


def test_after_a_clear_the_old_gang_has_ended_before_the_new_one_exists(
    backend: OciDataScience, ends: Ends
) -> None:
    key, job = a_key(), a_job(seconds=60)
    old = ends(submit(backend, job, key))
    new = ends(submit(backend, job, dataclasses.replace(key, generation=3)))
    (status,) = backend.status([old])
    assert status.ended
    assert new.key.generation == 3
    assert new.checkpoints_uri != old.checkpoints_uri


def test_after_a_clear_the_old_gang_ends_also_while_the_service_refuses_everything(
    backend: OciDataScience, emulator: Access, ends: Ends, faults: Callable[..., None]
) -> None:
    key, job = a_key(), a_job(nodes=1, seconds=60)
    old = ends(submit(backend, job, key))
    wait_until(backend, old, lambda status: all(node.report is not None for node in status.nodes))
    faults(path="/20190101/.*", status=401, times=10_000)
    with pytest.raises(BackendError):
        submit(backend, job, dataclasses.replace(key, generation=1))
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    wait_until(backend, old, lambda status: status.ended)


def test_nodes_are_waited_for_from_when_they_were_asked_for_and_not_from_when_somebody_began(
    backend: OciDataScience, ends: Ends
) -> None:
    key, job = a_key(), a_job(nodes=1, seconds=30)
    (begun,) = backend.gangs.begin(backend.plan(job, key))
    time.sleep(2)
    log = logging.getLogger("test")
    record = GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(key, None)
    ends(record.ref)
    assert record.ref.job_id == begun.job_id
    assert record.ref.submitted_at - begun.submitted_at >= 2
    assert record.start_deadline == record.ref.submitted_at + job.limits.start_timeout
    assert backend.gangs.find(backend.plan(job, key)) == [record.ref]
    assert backend.open(record.ref.job_id).ref == record.ref


def test_after_a_clear_the_training_goes_on_where_the_job_says_so(
    backend: OciDataScience, ends: Ends
) -> None:
    key = a_key()
    old = ends(submit(backend, a_job(nodes=1), key))
    had = wait_until(backend, old, lambda status: status.ended).checkpoint
    assert had is not None
    job = a_job(nodes=1, checkpoints={"resume_after_clear": True})
    new = ends(submit(backend, job, dataclasses.replace(key, generation=3)))
    assert wait_until(backend, new, lambda status: status.ended).checkpoint is not None
    words = [line.text for line in backend.logs(new, [0.0])]
    assert any(f"resuming from step {had.step}: {had.uri}" in text for text in words), words


def test_half_a_gang_is_completed_while_its_nodes_live(backend: OciDataScience, ends: Ends) -> None:
    key, job = a_key(), a_job(nodes=3, seconds=60)
    plan = backend.plan(job, key)
    half = ends(backend.submit(dataclasses.replace(plan, requests=plan.requests[:4], nodes=2)))
    whole = ends(submit(backend, job, key))
    assert whole.key.attempt == 1
    assert whole.complete
    assert whole.run_ids[:2] == half.run_ids[:2]


def test_half_a_gang_that_lost_a_node_is_given_up(backend: OciDataScience, ends: Ends) -> None:
    key, job = a_key(), a_job(nodes=3, seconds=60)
    plan = backend.plan(job, key)
    half = ends(backend.submit(dataclasses.replace(plan, requests=plan.requests[:4], nodes=2)))
    backend.cancel(half)
    wait_until(backend, half, lambda status: status.ended)
    whole = ends(submit(backend, job, key))
    assert whole.key.attempt == 2
    assert whole.complete


def test_the_attempt_that_was_noted_is_begun_again_though_no_list_shows_it(
    backend: OciDataScience, ends: Ends
) -> None:
    key = a_key()
    notes = MemoryNotes({NOTE: {"generation": 0, "attempt": 4}})
    ref = ends(submit(backend, a_job(seconds=5), key, notes))
    assert ref.key.attempt == 4


def test_the_notes_of_an_earlier_generation_count_for_nothing(backend: OciDataScience, ends: Ends) -> None:
    key = dataclasses.replace(a_key(), generation=2)
    notes = MemoryNotes({NOTE: {"generation": 0, "attempt": 4}})
    ref = ends(submit(backend, a_job(seconds=5), key, notes))
    assert ref.key.attempt == 1
    (noted,) = notes[NOTE]["attempts"]
    assert Attempt.from_json(noted).ref == ref


def test_a_task_that_was_killed_meanwhile_leaves_nothing_running(backend: OciDataScience) -> None:
    key, job = a_key(), a_job(seconds=60)
    with pytest.raises(BackendError, match="stopped"):
        submit(backend, job, key, stopped=True)
    for ref in backend.gangs.find(backend.plan(job, key)):
        status = wait_until(backend, ref, lambda status: status.ended)
        assert NodeState.RUNNING not in {node.state for node in status.nodes}


def test_a_job_file_that_was_edited_before_any_node_existed_counts_as_edited(
    backend: OciDataScience, ends: Ends
) -> None:
    key = a_key()
    (begun,) = backend.gangs.begin(backend.plan(a_job(seconds=60), key))
    job = a_job(seconds=5)
    ref = ends(submit(backend, job, key))
    assert ref.key.attempt == 1
    assert ref.job_id != begun.job_id
    assert '"5"' in str(
        backend._client.get_job(ref.job_id).data.job_configuration_details.environment_variables
    )
    assert [found.job_id for found in backend.gangs.find(backend.plan(job, key))] == [ref.job_id]
    assert submit(backend, job, key) == ref


def test_a_job_file_that_is_edited_while_its_gang_lives_changes_nothing(
    backend: OciDataScience, ends: Ends
) -> None:
    key = a_key()
    first = ends(submit(backend, a_job(seconds=60), key))
    assert submit(backend, a_job(seconds=5), key) == first
    assert submit(backend, a_job(nodes=3, seconds=5), key) == first


def test_a_gang_whose_job_somebody_deleted_is_made_again_and_heeds_no_old_word(
    backend: OciDataScience, ends: Ends
) -> None:
    key, job = a_key(), a_job(seconds=1)
    first = submit(backend, job, key)
    backend.cancel(first)
    wait_until(backend, first, lambda status: status.ended)
    backend.delete(first)
    wait_until(backend, first, lambda _: not backend.gangs.find(backend.plan(job, key)))
    second = ends(submit(backend, job, key))
    assert second.job_id != first.job_id
    assert set(second.run_ids).isdisjoint(first.run_ids)
    status = wait_until(backend, second, lambda status: status.ended)
    assert {node.state for node in status.nodes} == {NodeState.SUCCEEDED}, status


def test_a_try_that_still_creates_a_gang_that_was_cleared_finds_no_job_for_its_nodes(
    backend: OciDataScience, fields: dict[str, Any], ends: Ends
) -> None:
    key, job = a_key(), a_job(nodes=3, seconds=60)
    plan = backend.plan(job, key)
    found = backend.gangs.begin(plan)
    half = ends(backend.submit(dataclasses.replace(plan, requests=plan.requests[:3], nodes=1), None, found))
    new = ends(submit(backend, job, dataclasses.replace(key, generation=1)))
    late = OciDataScience.connect(fields)
    with pytest.raises(BackendError):
        late.submit(plan, found=[half])
    assert [ref.job_id for ref in backend.gangs.find(plan)] == [new.job_id]


def test_a_cancel_that_had_no_effect_is_repeated_before_the_next_gang_is_made(
    backend: OciDataScience, emulator: Access, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canceller, "CANCEL_AGAIN_AFTER", 1.0)
    key, job = a_key(), a_job(nodes=1, seconds=60)
    old = ends(submit(backend, job, key))
    rule = {"path": f".*/{old.main_run_id}/actions/cancelJobRun", "status": 409, "times": 1}
    http.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()
    new = ends(submit(backend, job, dataclasses.replace(key, generation=1)))
    (status,) = backend.status([old])
    assert status.ended
    assert new.complete


def test_two_who_come_at_once_with_an_edited_job_file_make_one_gang(
    backend: OciDataScience, fields: dict[str, Any], ends: Ends
) -> None:
    key, job = a_key(), a_job(seconds=30)
    backend.gangs.begin(backend.plan(a_job(seconds=60), key))
    backends = [backend, OciDataScience.connect(fields)]
    first, second = in_parallel(lambda each: submit(each, job, key), backends)
    assert ends(first) == second
    assert backend.gangs.find(backend.plan(job, key)) == [first]


def test_a_left_over_gang_that_does_not_end_is_named_after_its_limit_with_the_way_to_end_it(
    backend: OciDataScience, ends: Ends, tmp_path: Path
) -> None:
    (tmp_path / "deaf.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('step 1', flush=True)\ntime.sleep(60)\n"
    )
    program = {"source": str(tmp_path), "script": "deaf.py"}
    ref = ends(submit(backend, a_job(program=program, limits={"stop_grace": 20}), a_key()))
    wait_until(backend, ref, lambda status: all(_has_begun(node) for node in status.nodes))
    canceller = Canceller(backend, logging.getLogger("test"), threading.Event())
    with pytest.raises(BackendError, match=f"ocidist cancel {ref.job_id}") as caught:
        canceller.end([ref], "for a test", within=1.0)
    assert caught.value.retryable
    assert all(run_id in str(caught.value) for run_id in ref.run_ids)


def test_a_job_that_cannot_be_removed_does_not_hold_a_worker_for_ever(
    backend: OciDataScience, emulator: Access, ends: Ends
) -> None:
    (begun,) = backend.gangs.begin(backend.plan(a_job(), a_key()))
    rule = {"method": "DELETE", "path": f".*/{begun.job_id}", "status": 409, "code": "IncorrectState"}
    http.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()
    try:
        canceller = Canceller(backend, logging.getLogger("test"), threading.Event())
        with pytest.raises(BackendError, match=f"its job {begun.job_id} could not be deleted within 1 s"):
            canceller.end([ends(begun)], "for a test", within=1.0)
    finally:
        http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()


def test_a_success_that_is_cleared_with_fewer_retries_trains_again_and_one_that_is_retried_does_not(
    backend: OciDataScience, ends: Ends
) -> None:
    key, job, log = (
        dataclasses.replace(a_key(), generation=3),
        a_job(nodes=1, seconds=0.2),
        logging.getLogger("test"),
    )

    def train(number: int, retries: int) -> RunRef:
        gang = GangSubmitter(backend, job, log, None, threading.Event())
        ref = ends(gang.adopt_or_submit(key, None, number, retries).ref)
        wait_until(backend, ref, lambda status: status.ended)
        backend.gangs.close(ref, End(succeeded=True, try_number=number))
        return ref

    first = train(1, retries=3)
    # What a task does after its training failed: Airflow's numbers stay.
    assert train(2, retries=3) == first
    # Cleared after two tries with one retry: `max_tries` is 3 again.
    again = train(3, retries=1)
    assert again.job_id != first.job_id
    assert again.key.generation == 4
    assert train(4, retries=1) == again
