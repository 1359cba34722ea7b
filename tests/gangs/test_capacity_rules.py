"""When a task without machines asks again, and when it gives up (docs/failures/service.md)."""

from __future__ import annotations

import pytest

from airflow_provider_ocidist.gangs.capacity import CapacitySearch, NoCapacity, pause_between_requests


@pytest.mark.parametrize(
    "failures, pause",
    [(0, 60.0), (1, 60.0), (2, 120.0), (3, 240.0), (5, 960.0), (6, 1800.0), (11, 1800.0), (100_000, 1800.0)],
)
def test_pauses_double_from_a_minute_to_half_an_hour(failures: int, pause: float) -> None:
    assert pause_between_requests(failures) == pause


@pytest.mark.parametrize(
    "left, failures, expected",
    [
        (59.5, 1, None),
        (60.0, 1, 60.0),
        (60.0, 3, 60.0),
        (100.0, 2, 100.0),
        (1000.0, 1, 60.0),
        (1000.0, 3, 240.0),
        (-5.0, 1, None),
    ],
)
def test_the_last_request_is_at_the_end_of_the_time_unless_less_than_a_minute_is_left(
    left: float, failures: int, expected: float | None
) -> None:
    search = CapacitySearch(give_up_at=5000.0 + left, failures=failures)
    assert search.next_at(5000.0) == (None if expected is None else 5000.0 + expected)


def test_each_request_that_found_no_machine_counts() -> None:
    search = CapacitySearch(give_up_at=5000.0)
    assert search.failures == 0
    assert search.failed().failed() == CapacitySearch(give_up_at=5000.0, failures=2)


def test_over_a_pause_the_seconds_that_are_left_are_kept_and_no_time_of_a_clock() -> None:
    search = CapacitySearch(give_up_at=5000.0, failures=3)
    kept = search.after(60.0, 4000.0)
    assert kept == {"give_up_at": 5000.0, "failures": 3, "left": 940.0}
    # The clock of the next machine is another.
    assert CapacitySearch.kept(kept, 100.0) == CapacitySearch(give_up_at=1040.0, failures=3)
    assert search.after(60.0, 4950.0)["left"] == 0.0
    older = {"give_up_at": 5000.0, "failures": 3}
    assert CapacitySearch.kept(older, 100.0) == search
    assert CapacitySearch.kept({**older, "left": 0.0}, 100.0) == CapacitySearch(give_up_at=100.0, failures=3)


def test_while_a_gang_is_watched_the_services_time_is_kept_for_the_next_process() -> None:
    search = CapacitySearch(give_up_at=5000.0, failures=3)
    kept = search.handed_over(-700.0)
    assert kept == {"give_up_at": 5000.0, "failures": 3, "give_up_at_service": 4300.0}
    taken = CapacitySearch.kept(kept, 100.0)
    # Until the service has answered, its time is passed on as it is.
    assert taken.handed_over(50.0) == kept
    assert taken.here(-100.0) == CapacitySearch(give_up_at=4400.0, failures=3)
    assert taken.here(-100.0).here(33.0) == taken.here(-100.0), "once is enough"
    assert search.here(-100.0) == search


def test_who_asks_again_knows_the_search_and_its_time() -> None:
    search = CapacitySearch(give_up_at=5000.0)
    found = NoCapacity("no machine", search, 60.0)
    assert (str(found), found.search, found.ask_at) == ("no machine", search, 60.0)
