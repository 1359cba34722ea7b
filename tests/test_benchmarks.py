"""What benchmarks say: intervals that hold for few pairs, who won, pages as results.json has it, no busy machine."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any

import pytest

import benchmarks
from airflow_provider_ocidist.model.drill import FaultKind
from benchmarks import conditions, import_cost, lost_work, pages, run
from benchmarks.comparison import CONFIDENCE, FEWEST, Comparison, Interval, Samples, coverage
from benchmarks.conditions import BUSY, Conditions
from benchmarks.known_rows import known_rows
from benchmarks.validity import valid

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("values", range(1, 12))
def test_an_interval_holds_as_often_as_it_says_whatever_the_distribution(values: int) -> None:
    # Each value lies below or above the true median, one as probable as the other: all cases are counted.
    for left_out in range((values + 1) // 2):
        within = sum(
            left_out < sum(above) < values - left_out for above in itertools.product((0, 1), repeat=values)
        )
        assert coverage(values, left_out) == pytest.approx(within / 2**values)


def test_an_interval_is_the_narrowest_that_reaches_its_confidence() -> None:
    for _ in range(200):
        sample = [random.lognormvariate(0, 1) for _ in range(random.randint(1, 30))]
        interval, ordered = Interval.of(sample), sorted(sample)
        assert interval.median == statistics.median(sample)
        place = ordered.index(interval.low)
        assert interval.high == ordered[-1 - place]
        assert interval.coverage == coverage(len(sample), place)
        if len(sample) >= 6:
            assert interval.coverage >= CONFIDENCE
            assert coverage(len(sample), place + 1) < CONFIDENCE
        else:
            assert (interval.low, interval.high) == (ordered[0], ordered[-1])
    assert Interval.of([1.0, 2.0, 3.0, 4.0, 5.0]).coverage == 0.9375


class Known(Comparison):
    """Takes what the test says."""

    name, title, peer_name, unit, target = "P0", "something", "a rival", "s", "faster"

    def __init__(self, ours: Sequence[float], peer: Sequence[float], *, afresh: bool) -> None:
        self._values = {"ours": iter(ours), "peer": iter(peer)}
        self.afresh = afresh
        self.order: list[str] = []

    @contextmanager
    def setting(self) -> Iterator[None]:
        self.order.append("setting")
        yield

    def _next(self, side: str) -> float:
        self.order.append(side)
        return next(self._values[side])

    def ours(self) -> float:
        return self._next("ours")

    def peer(self) -> float:
        return self._next("peer")

    def met(self, samples: Samples) -> bool:
        return samples.ratio.low > 1


@pytest.mark.parametrize("afresh", [True, False])
def test_a_result_keeps_every_pair_and_a_pair_that_the_peer_wins_is_shown_as_such(afresh: bool) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(50):
        pairs = chance.randint(FEWEST, 12)
        ours, peer = ([chance.uniform(1, 3) for _ in range(pairs)] for _ in range(2))
        row = Known(ours, peer, afresh=afresh)
        samples = row.measure(pairs, lambda _: None)
        assert (samples.ours, samples.peer) == (ours, peer)
        assert Counter(row.order) == {"ours": pairs, "peer": pairs, "setting": pairs if afresh else 1}
        sides = [side for side in row.order if side != "setting"]
        assert sides[:4] == ["ours", "peer", "peer", "ours"]
        result = json.loads(json.dumps(row.result(samples)))
        lost = sum(theirs < own for own, theirs in zip(ours, peer, strict=True))
        words = pages.winner(result)
        assert (f"the peer won {lost} of {pairs} pairs" in words) == bool(lost)
        assert words.startswith("**the peer**") == (result["ratio"] < 1)
        assert f"{pairs} pairs" in pages.ratio_words(result)
        assert "%" in pages.ratio_words(result)


MEASURED = {"date": "2026-11-24", "commit": "359eadce2f", "machine": "2 cores of something", "load": 0.3}


def a_result(pairs: int = FEWEST, **conditions: Any) -> dict[str, Any]:
    row = Known([1.0] * pairs, [2.0] * pairs, afresh=False)
    return {**row.result(row.measure(pairs, lambda _: None)), "measured": {**MEASURED, **conditions}}


@pytest.mark.parametrize(
    "result, why",
    [
        (a_result(FEWEST - 1), "4 of 5 pairs"),
        ({**a_result(), "samples": None}, "single pairs were not kept"),
        (a_result(load=None), "the load was not written down"),
        (a_result(load=BUSY + 0.01), "a load of 0.51"),
        (a_result(commit="359eadce2f+"), "in no commit"),
        (a_result(machine="2 cores; more was not written down"), "the machine was not"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_was_not_measured_validly_is_shown_as_that_and_in_no_table(
    result: dict[str, Any], why: str
) -> None:
    assert valid({"P7": a_result()}) == {"P7": a_result()}
    assert valid({"P7": result}) == {}
    place = "<!-- results: {} -->\n<!-- end of results -->\n"
    page = pages.written(place.format("rows") + place.format("unmeasured"), {"P7": result})
    (line,) = [line for line in page.splitlines() if "P7" in line]
    assert line.startswith("* P7: ")
    assert f"{pages.NOT_VALID} (" in line
    assert why in line


def test_a_table_shows_each_value_with_its_interval_and_none_without() -> None:
    some = Interval.of([1.0, 2.0, 3.0]).to_json()
    names = ["ours", "floor", "ours, process", "cli, process", "floor/ours", "ocifs/ours", "cli/ours"]
    row = {"peak_mb": 9, "conditions": {"0 ms": {"intervals": dict.fromkeys(names, some)}}}
    assert pages.copies({"P8": row}).count("2 s (1 to 3)") == 4
    assert pages.copies({"P8": row}).count("2 (1 to 3)") == 3
    # Measured once, or without its pairs.
    del row["conditions"]["0 ms"]["intervals"]["ocifs/ours"]
    (line,) = [line for line in pages.copies({"P8": row}).splitlines() if line.startswith("| P8 ")]
    assert line.count("2 (1 to 3)") == 2
    assert line.count("| - |") == 1
    row["conditions"]["0 ms"] = {"seconds": {"ours": 2.0}, "ocifs/ours": 65.5}
    assert pages.copies({"P8": row}) == pages.NONE


def test_the_page_is_what_the_results_say() -> None:
    page = pages.PAGE.read_text()
    assert pages.written(page, json.loads(pages.RESULTS.read_text())) == page, "python -m benchmarks.pages"
    assert {found[1] for found in pages.PLACE.findall(page)} == set(pages.TABLES)


def test_every_row_that_has_results_can_be_measured_and_counts_or_is_listed_as_not_measured() -> None:
    results, known = json.loads(pages.RESULTS.read_text()), known_rows()
    assert set(results) <= set(known)
    page = pages.PAGE.read_text()
    listed = set(re.findall(rf"^\* (\S+): .*{pages.NOT_VALID} \(", page, re.MULTILINE))
    for name, row in results.items():
        assert set(row["measured"]) == {"date", "commit", "machine", "load"}, name
        assert (row["title"], row["peer_name"]) == (known[name].title, known[name].peer_name), name
        if name not in listed:
            assert row["pairs"] >= FEWEST, name
            assert len(row["samples"]["ours"]) == len(row["samples"]["peer"]) == row["pairs"], name
            assert row["measured"]["load"] <= BUSY, name
            assert re.fullmatch("[0-9a-f]{10}", row["measured"]["commit"]), name
            assert re.match(r"\d+ cores of ", row["measured"]["machine"]), name
    assert all(row.pairs >= FEWEST for row in known.values())


class Clock:
    """A time that only passes while somebody waits, and the loads that are read meanwhile."""

    def __init__(self, loads: Sequence[float]) -> None:
        self.now = 0.0
        self._loads = list(loads)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def load(self) -> tuple[float, float, float]:
        load = self._loads.pop(0) if len(self._loads) > 1 else self._loads[0]
        return (load * len(os.sched_getaffinity(0)), 0.0, 0.0)


@pytest.mark.parametrize("loads, measured", [([0.9, 0.9, 0.4], 0.4), ([0.9], None)])
def test_each_row_waits_until_the_machine_is_quiet_and_is_not_measured_otherwise(
    monkeypatch: pytest.MonkeyPatch, loads: list[float], measured: float | None
) -> None:
    clock = Clock(loads)
    monkeypatch.setattr(os, "getloadavg", clock.load)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=clock.sleep))
    found = run.quiet(60.0)
    assert (found.load if found else None) == measured
    assert clock.now == (10.0 if measured else 60.0)


@pytest.mark.parametrize(
    "commit, arguments, load, words",
    [
        ("359eadce2f", ["--rows", "P7"], BUSY + 0.01, "busy"),
        ("359eadce2f", ["--rows", "P7", "--pairs", str(FEWEST)], 50.0, "busy"),
        ("359eadce2f+", ["--rows", "P7"], 0.0, "differ from the commit"),
    ],
)
def test_nothing_is_measured_on_a_busy_machine_or_of_files_in_no_commit(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    commit: str,
    arguments: list[str],
    load: float,
    words: str,
) -> None:
    before = pages.RESULTS.read_text()
    monkeypatch.setattr(os, "getloadavg", Clock([load]).load)
    monkeypatch.setattr(conditions, "commit", lambda: commit)
    monkeypatch.setattr(run, "QUIET_WITHIN_S", 0.0)
    monkeypatch.setattr("sys.argv", ["run", *arguments])
    assert run.main() == run.REFUSED
    assert words in capsys.readouterr().err
    assert pages.RESULTS.read_text() == before


def test_a_row_that_needs_what_this_machine_has_not_is_left_out_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    here, elsewhere = (Known([1.0] * FEWEST, [2.0] * FEWEST, afresh=False) for _ in range(2))
    monkeypatch.setattr(elsewhere, "lacks", lambda: "sextant")
    monkeypatch.setattr(run, "known_rows", lambda: {"P7": here, "P8": elsewhere})
    monkeypatch.setattr(run, "quiet", lambda _: Conditions(**MEASURED))
    monkeypatch.setattr(conditions, "commit", lambda: "359eadce2f")
    kept: dict[str, Any] = {}
    monkeypatch.setattr(run, "keep", kept.update)
    monkeypatch.setattr(run, "write_pages", lambda: None)
    monkeypatch.setattr("sys.argv", ["run", "--pairs", str(FEWEST)])
    assert run.main() == 0
    assert list(kept) == ["P7"]
    assert "this machine has no sextant: P8 was not measured" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["run", "--rows", "P8"])
    assert run.main() == run.REFUSED


def test_conditions_name_the_moment_the_commit_and_the_machine() -> None:
    now = Conditions.now().to_json()
    assert all(now[name] for name in ("date", "commit", "machine"))
    assert now["load"] >= 0
    assert os.uname().nodename not in now["machine"]


def test_what_rows_name_of_this_project_is_there() -> None:
    # Rows are measured seldom: what moves away would be missed hours later.
    modules = [
        importlib.import_module(f"benchmarks.{item.name}") for item in iter_modules(benchmarks.__path__)
    ]
    named = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Path) and value.is_relative_to(ROOT) and ".venv" not in str(value)
    }
    assert len(named) >= 4
    assert [path for path in named if not path.exists() and path.name != "results.json"] == []
    assert [name for name in import_cost.OURS if not find_spec(f"airflow_provider_ocidist.{name}")] == []


def test_both_sides_of_lost_work_lose_the_same_nodes_at_the_same_steps() -> None:
    first, second = lost_work.kills(7), lost_work.kills(7)
    drawn = [next(first) for _ in range(200)]
    assert drawn == [next(second) for _ in range(200)]
    assert {each.node for each in drawn} == set(range(lost_work.NODES))
    steps = [each.step for each in drawn]
    assert 1 <= min(steps) < lost_work.INTERVAL
    assert lost_work.LAST_KILL - lost_work.INTERVAL < max(steps) <= lost_work.LAST_KILL


def test_lost_work_is_met_by_few_steps_each_and_many_times_fewer_in_all() -> None:
    few, many = float(lost_work.INTERVAL), 100.0
    for ours, peer, met in (
        ([few] * 6, [many] * 6, True),
        ([1.0] * 5 + [40.0], [many] * 6, False),
        ([few] * 6, [few * 4] * 6, False),
    ):
        samples = Samples(ours=ours, peer=peer)
        assert lost_work.ROW.met(samples) is met
        assert lost_work.ROW.result(samples)["mean"] == {"ours": sum(ours) / 6, "peer": sum(peer) / 6}


def test_the_program_of_lost_work_reports_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def recovers(kind: FaultKind, changes: Any, **how: Any) -> Any:
        text = Path(changes["program.source"], lost_work.PROGRAM.name).read_text()
        asked.append((kind, changes.get("checkpoints", "as it is"), how["step"], how["node"]))
        assert "if rank == 0 and True:" in text
        return SimpleNamespace(lost_steps=0)

    monkeypatch.setattr(lost_work, "recovery_from", recovers)
    samples = lost_work.LostWork().measure(2, lambda _: None)
    # A kill just after a checkpoint costs the step that it cuts off: no ratio divides by nothing.
    assert samples.ours == samples.peer == [1.0, 1.0]
    assert [each[1] for each in asked] == ["as it is", None, None, "as it is"]
    assert asked[0][2:] == asked[1][2:]
    assert asked[2][2:] == asked[3][2:]
