"""Bytes and seconds are shown to people in one way everywhere."""

from __future__ import annotations

import pytest

from airflow_provider_ocidist.model.amounts import names_text, size_text, time_text


@pytest.mark.parametrize(
    "size, text",
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.4, "999 B"),
        (999.5, "1 kB"),
        (1000, "1 kB"),
        (1234, "1.23 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (41_000, "41 kB"),
        (120_000_000, "120 MB"),
        (15_340_000_000, "15.3 GB"),
        (2.5e12, "2.5 TB"),
        (4.2e15, "4200 TB"),
    ],
)
def test_bytes_are_shown_in_their_largest_unit_with_three_digits(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-1, "0 s"),
        (59, "59 s"),
        (119, "119 s"),
        (120, "2 min"),
        (3599, "59 min"),
        (5400, "90 min"),
        (7200, "2 h"),
        (172_799, "47 h"),
        (200_000, "2 d"),
    ],
)
def test_a_time_span_is_shown_in_the_largest_unit_of_which_there_are_two(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    "names, text", [("", ""), ("a", "a"), ("abc", "a, b, c"), ("abcd", "a, b, c and 1 more")]
)
def test_of_many_names_the_first_are_shown_and_the_others_counted(names: str, text: str) -> None:
    assert names_text(list(names)) == text
