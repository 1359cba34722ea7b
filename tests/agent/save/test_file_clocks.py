"""How far a folder's stamps are ahead, and whether the clock that stamps files was set back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save import file_clocks
from airflow_provider_ocidist.agent.save.file_clocks import (
    TICK_NS,
    WallClock,
    ahead_ns,
    nearest_to_none,
)


@pytest.mark.parametrize(
    "lowest, highest, nearest",
    [
        (0, 0, 0),
        (TICK_NS, 2 * TICK_NS, 0),
        (TICK_NS + 1, 2 * TICK_NS, TICK_NS + 1),
        (-2 * TICK_NS, -TICK_NS, 0),
        (-2 * TICK_NS, -TICK_NS - 1, -TICK_NS - 1),
        (-(10**12), 10**12, 0),
    ],
)
def test_of_what_a_measurement_allows_the_least_difference_counts(
    lowest: int, highest: int, nearest: int
) -> None:
    assert nearest_to_none(lowest, highest) == nearest


@pytest.mark.parametrize("ahead", [-3600, 0, 3600])
def test_a_server_whose_clock_differs_is_measured_and_no_probe_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    real, probes = file_clocks._stamped, []

    def stamped(handle: int) -> int:
        probes.append(handle)
        # The folder's is the second of the two that are open.
        return real(handle) + (ahead * 10**9 if handle == max(probes) and len(probes) == 2 else 0)

    monkeypatch.setattr(file_clocks, "_stamped", stamped)
    found = ahead_ns(tmp_path)
    assert abs(found - ahead * 10**9) < 10**9
    assert (found == 0) is (ahead == 0)
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_no_difference_is_known(tmp_path: Path) -> None:
    assert ahead_ns(tmp_path / "missing") == 0


class Clocks:
    """This machine's two clocks, which a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.passed = 1_700_000_000.0, 50.0
        monkeypatch.setattr(time, "time", lambda: self.wall)
        monkeypatch.setattr(time, "monotonic", lambda: self.passed)

    def run(self, seconds: float, wall: float | None = None) -> None:
        self.passed += seconds
        self.wall += seconds if wall is None else wall


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


@pytest.mark.parametrize(
    "wall, went_back", [(60, False), (59.6, False), (59.4, True), (-3600, True), (7200, False)]
)
def test_a_clock_was_set_back_where_it_falls_behind_by_more_than_a_correction(
    clocks: Clocks, wall: float, went_back: bool
) -> None:
    clock = WallClock()
    clocks.run(60, wall)
    assert (clock.went_back(), clock.was_set_back) == (went_back, went_back)
    clocks.run(60)
    assert (clock.went_back(), clock.was_set_back) == (False, went_back), "each time is said once"


def test_a_stamp_that_is_still_to_come_is_of_before_the_clock_was_set_back(clocks: Clocks) -> None:
    clock = WallClock()
    now = int(clocks.wall * 1e9)
    assert clock.not_ahead(now + 1000) == now + 1000, "by a server's clock, perhaps"
    clocks.run(1, -99)
    clock.went_back()
    assert clock.not_ahead(now) == 0
    assert clock.not_ahead(now - 100 * 10**9) == now - 100 * 10**9
    clocks.run(200)
    assert clock.not_ahead(now) == now
