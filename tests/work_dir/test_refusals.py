"""Refusals that several tasks meet at once: each is remembered, whatever the order of their requests to the store."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.refusal import Refusal
from airflow_provider_ocidist.model.run import Plan
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.refusals import Refusals
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from tests.service_in_memory import Model
from tests.training_jobs import a_job, a_key

NOW = 1_000_000.0


def plan_of(folder: Path, nodes: int) -> Plan:
    plan = Model().plan(a_job(nodes=nodes), a_key())
    return replace(plan, run_dir=f"{folder}/work/{plan.key.name}", machine={"shape": "VM.GPU.A10.1"})


def refusal_of(nodes: int) -> Refusal:
    """Return a refusal that no other of these makes superfluous: that of more machines is the later one."""
    return Refusal(cause=Cause.CAPACITY, message=f"no {nodes}", at=NOW + nodes, nodes=nodes)


def note(refusals: Refusals, folder: Path, nodes: int) -> None:
    refusals.note(plan_of(folder, nodes), refusal_of(nodes), NOW + 100)


def remembered(folder: Path, counts: Sequence[int]) -> list[str | None]:
    found = Refusals(RunDirStores(open_store)).of([plan_of(folder, nodes) for nodes in counts])
    return [each and each.message for each in found]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_refusal_that_another_task_notes_between_two_requests_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    """Just after the first look at the file, whichever request that is."""
    if is_known:
        note(Refusals(RunDirStores(open_store)), tmp_path, 2)
    others = [4]

    def hook(verb: str) -> None:
        ask = getattr(LocalStore, verb)

        def asked(store: LocalStore, name: str) -> Any:
            try:
                return ask(store, name)
            finally:
                if others:
                    note(Refusals(RunDirStores(open_store)), tmp_path, others.pop())

        monkeypatch.setattr(LocalStore, verb, asked)

    hook("read")
    hook("stat")
    note(Refusals(RunDirStores(open_store)), tmp_path, 8)
    assert not others
    assert remembered(tmp_path, [4, 8]) == ["no 4", "no 8"]


@pytest.mark.parametrize("seed", range(5))
def test_refusals_that_many_tasks_meet_at_once_are_all_remembered(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    counts = dice.sample(range(1, 40), dice.randint(2, 8))
    barrier = threading.Barrier(len(counts))

    def task(nodes: int) -> Callable[[], None]:
        def run() -> None:
            barrier.wait(60)
            note(Refusals(RunDirStores(open_store)), tmp_path, nodes)

        return run

    threads = [threading.Thread(target=task(nodes)) for nodes in counts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert remembered(tmp_path, counts) == [f"no {nodes}" for nodes in counts]


def test_a_file_that_holds_no_refusals_is_replaced(tmp_path: Path) -> None:
    note(Refusals(RunDirStores(open_store)), tmp_path, 2)
    (file,) = (tmp_path / "work").rglob("*.json")
    file.write_text("cut o")
    assert remembered(tmp_path, [2]) == [None]
    note(Refusals(RunDirStores(open_store)), tmp_path, 4)
    assert remembered(tmp_path, [2, 4]) == [None, "no 4"]
