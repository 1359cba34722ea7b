"""Nodes count their own hours, and end a run that has used up its job's limit, also when no process waits for it."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.monitor import node_hours
from airflow_provider_ocidist.agent.monitor.node_hours import (
    LONGEST_PAUSE,
    READERS,
    BudgetWatch,
    reports_of,
    seconds_in,
    spent_before,
)
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints, Limits
from airflow_provider_ocidist.model.budget import Budget, Spent
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.stores.local import LocalStore
from tests.agent.gangs import Gang

SEED = random.randrange(10_000)
BEAT = 2.0
WORKS = """
import os, pathlib, signal, sys, time
def save(*_):
    folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
    (folder / "step-7.tmp").write_text("last weights")
    (folder / "step-7.tmp").rename(folder / "step-7.txt")
    sys.exit(0)
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(float(sys.argv[1]))
"""


def a_report(rank: int, began: float, beat: float, *, ended: bool = False, **more: float) -> NodeReport:
    # A clock of its own: only differences count.
    shift = 1000.0 * rank
    return NodeReport(
        rank=rank,
        phase=Phase.TRAINING,
        address="",
        started_at=began + shift,
        heartbeat_at=beat + shift,
        finished_at=beat + shift if ended else None,
        **more,
    )


class Gangs:
    """A gang whose nodes start at different times, and whose reports some looks cannot read."""

    def __init__(self, draw: random.Random) -> None:
        self.now, self.draw = 0.0, draw
        self.starts = [0.0, *(draw.choice([0.0, draw.uniform(0, 4000)]) for _ in range(draw.randrange(6)))]
        draw.shuffle(self.starts)
        self.before = draw.choice([0.0, draw.uniform(0, 20_000)])
        self.ended_at: float | None = None
        self.watches: dict[int, BudgetWatch] = {}
        self.reads = 0

    def total(self, at: float) -> float:
        return self.before + sum(max(0.0, at - start) for start in self.starts)

    def others_of(self, rank: int) -> list[NodeReport | None]:
        self.reads += 1
        return [
            a_report(other, start, self.now) if start <= self.now and self.draw.random() > 0.05 else None
            for other, start in enumerate(self.starts)
            if other != rank
        ]

    def run(self, budget: float) -> None:
        """Beat until a node declares the end."""
        while self.ended_at is None:
            for rank, start in enumerate(self.starts):
                if start <= self.now:
                    self._beat(rank, budget)
            self.now += BEAT

    def _beat(self, rank: int, budget: float) -> None:
        if rank not in self.watches:
            self.watches[rank] = BudgetWatch(
                Budget(node_seconds=budget),
                None,
                len(self.starts),
                others=lambda: self.others_of(rank),
                declare=self._declared,
                clock=lambda: self.now,
            )
            self.watches[rank].before = Spent(node_seconds=self.before)
        self.watches[rank].look()

    def _declared(self, _: str) -> None:
        self.ended_at = self.now if self.ended_at is None else self.ended_at


def test_a_run_ends_when_its_nodes_together_have_used_the_budget_and_not_before() -> None:
    print("seed", SEED)
    for case in range(60):
        draw = random.Random(f"{SEED} {case}")
        gang = Gangs(draw)
        budget = gang.before + draw.uniform(1, 40_000)
        gang.run(budget)
        assert gang.ended_at is not None
        # A report that cannot be read costs a look; three in a row are rare.
        late = len(gang.starts) * 3 * (LONGEST_PAUSE + BEAT)
        assert budget <= gang.total(gang.ended_at) + 1e-6, case
        assert gang.total(gang.ended_at) <= budget + late, case


def test_the_reports_of_others_are_read_only_near_the_end() -> None:
    draw = random.Random(SEED)
    gang = Gangs(draw)
    gang.starts, gang.before = [0.0, 0.0, 0.0], 0.0
    gang.run(3 * 30_000.0)
    assert gang.reads < 60


def test_earlier_attempts_of_the_generation_count_and_those_of_others_do_not(tmp_path: Path) -> None:
    print("seed", SEED)
    draw = random.Random(SEED)
    expected = 0.0
    for attempt in range(1, 5):
        for rank in range(draw.randrange(4)):
            seconds = draw.uniform(1, 9000)
            expected += seconds
            write(tmp_path / f"task-g1-a{attempt}", a_report(rank, 50.0, 50.0 + seconds, ended=bool(rank)))
    for other in ("task-g0-a1", "task-g1-a6", "other-g1-a1"):
        write(tmp_path / other, a_report(0, 0.0, 5000.0))
    (tmp_path / "task-g1-a2" / "nodes").mkdir(parents=True, exist_ok=True)
    (tmp_path / "task-g1-a2" / "nodes" / "9.json").write_text("{half")
    found = spent_before(str(tmp_path / "task-g1-a5"), 5, OciAccess(), None)
    assert abs(found.node_seconds - expected) < 1e-6
    assert spent_before(str(tmp_path / "task-g1-a1"), 1, OciAccess(), None) == Spent()


def test_an_attempt_that_has_counted_those_before_it_spares_reading_them(tmp_path: Path) -> None:
    write(tmp_path / "t-g0-a1", a_report(0, 0.0, 7777.0))
    write(tmp_path / "t-g0-a2", a_report(0, 0.0, 100.0, spent_before=5000.0))
    assert spent_before(str(tmp_path / "t-g0-a3"), 3, OciAccess(), None).node_seconds == 5100.0


class ReadTogether(LocalStore):
    """A store that answers a read once a certain number of others are under way."""

    def __init__(self, folder: str, together: threading.Barrier) -> None:
        super().__init__(folder)
        self.together = together

    def read(self, name: str) -> bytes:
        self.together.wait(20)
        return super().read(name)


def test_the_reports_of_an_earlier_attempt_are_read_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(READERS):
        write(tmp_path / "run-a1", a_report(rank, 0.0, 100.0))
    together = threading.Barrier(READERS)
    monkeypatch.setattr(node_hours, "open_store", lambda uri, _: ReadTogether(uri, together))
    found = reports_of(str(tmp_path / "run-a2"), 2, 1, OciAccess())
    assert sorted(report.rank for report in found) == list(range(READERS))


def test_each_attempt_costs_the_price_of_its_own_machines(tmp_path: Path) -> None:
    write(tmp_path / "t-g0-a1", a_report(0, 0.0, 3600.0, price=10.0))
    write(tmp_path / "t-g0-a2", a_report(0, 0.0, 3600.0, price=2.0))
    # As a version before this one has reported it.
    write(tmp_path / "t-g0-a2", a_report(1, 0.0, 3600.0))
    found = spent_before(str(tmp_path / "t-g0-a3"), 3, OciAccess(), 1.0)
    assert found == Spent(node_seconds=3 * 3600, cost=13.0)
    write(tmp_path / "t-g0-a3", a_report(0, 0.0, 0.0, spent_before=3 * 3600.0, cost_before=13.0))
    assert spent_before(str(tmp_path / "t-g0-a4"), 4, OciAccess(), 5.0) == found


def test_a_node_that_has_never_beaten_has_used_nothing() -> None:
    assert seconds_in([None, a_report(0, 10.0, 10.0)]) == 0.0


def write(run_dir: Path, report: NodeReport) -> None:
    place = run_dir / "nodes" / f"{report.rank}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(report.to_json())


def test_a_gang_that_nobody_waits_for_ends_at_its_limit_with_its_last_checkpoint(tmp_path: Path) -> None:
    limits = Limits(max_node_hours=9 / 3600, stop_grace=5.0, join_timeout=30.0)
    kept = Checkpoints(uri=str(tmp_path / "safe"))
    with Gang(tmp_path, WORKS, nodes=2, args=["120"], limits=limits, checkpoints=kept, price=90.0) as gang:
        codes = gang.run()
        reports = [agent.report for agent in gang.agents]
    assert 77 in codes
    assert Cause.BUDGET in {report.cause for report in reports}
    said = next(report.message for report in reports if report.cause is Cause.BUDGET)
    assert said
    assert "all that limits.max_node_hours 0.0025 allows" in said
    assert "(cost 0." in said
    assert reports[0].checkpoint
    assert reports[0].checkpoint.step == 7
    assert seconds_in(reports) >= 9


def test_a_later_attempt_gets_what_the_earlier_ones_have_left(tmp_path: Path) -> None:
    write(tmp_path / "run" / "t-g0-a1", a_report(0, 0.0, 3000.0))
    write(tmp_path / "run" / "t-g0-a1", a_report(1, 0.0, 599.0))
    limits = Limits(max_node_hours=3604 / 3600, stop_grace=5.0, join_timeout=30.0)
    with Gang(tmp_path, WORKS, args=["120"], limits=limits, attempt=2) as gang:
        gang.run_dir = tmp_path / "run" / "t-g0-a2"
        gang.config = replace(gang.config, run_dir=str(gang.run_dir))
        (code,) = gang.run()
        (report,) = (agent.report for agent in gang.agents)
    assert (code, report.cause, report.spent_before) == (77, Cause.BUDGET, 3599.0)


def test_what_an_earlier_attempt_has_cost_on_dearer_machines_counts_against_the_limit(tmp_path: Path) -> None:
    write(tmp_path / "run" / "t-g0-a1", a_report(0, 0.0, 3600.0, price=10.0))
    # Ten are spent; the second that is left is worth one at this price.
    limits = Limits(max_cost=10 + 1 / 3600, stop_grace=5.0, join_timeout=30.0)
    with Gang(tmp_path, WORKS, args=["120"], limits=limits, attempt=2, price=1.0) as gang:
        gang.run_dir = tmp_path / "run" / "t-g0-a2"
        gang.config = replace(gang.config, run_dir=str(gang.run_dir))
        (code,) = gang.run()
        (report,) = (agent.report for agent in gang.agents)
    assert (code, report.cause, report.price, report.cost_before) == (77, Cause.BUDGET, 1.0, 10.0)
    assert "all that limits.max_cost 10.0003 allows" in str(report.message)


def test_a_budget_that_is_used_up_is_declared_again_and_again_but_the_others_are_not_read_at_each_beat() -> (
    None
):
    """An end that is declared while a node makes ready for another launch is dropped."""
    now = [0.0]
    said: list[str] = []
    reads: list[float] = []

    def others() -> list[NodeReport | None]:
        reads.append(now[0])
        return [a_report(1, 0.0, now[0])]

    watch = BudgetWatch(
        Budget(node_seconds=200.0), None, 2, others=others, declare=said.append, clock=lambda: now[0]
    )
    while now[0] < 400.0:
        watch.look()
        now[0] += BEAT
    assert len(said) >= 300.0 // (LONGEST_PAUSE + BEAT)
    assert all(later - earlier >= LONGEST_PAUSE for earlier, later in zip(reads[-5:], reads[-4:]))
