"""The pure parts: listings, line cutting, state rules, addresses, ranges."""

from __future__ import annotations

import itertools

import pytest

from airflow_provider_ocidist.emulator.bodies import read_range
from airflow_provider_ocidist.emulator.data_science.artifacts import artifact_name
from airflow_provider_ocidist.emulator.data_science.layout import merged_configuration
from airflow_provider_ocidist.emulator.data_science.lifecycle import (
    CANCELABLE,
    MOVES,
    TERMINAL,
    State,
    after_restart,
)
from airflow_provider_ocidist.emulator.errors import ApiError
from airflow_provider_ocidist.emulator.listening import is_loopback
from airflow_provider_ocidist.emulator.logs.files import LineSplitter
from airflow_provider_ocidist.emulator.nodes.addresses import AddressPool
from airflow_provider_ocidist.emulator.object_storage.index import ListParameters, NameIndex


def test_every_page_of_a_listing_adds_up_to_the_whole():
    names = ["".join(letters) for size in (1, 2, 3) for letters in itertools.product("ab/", repeat=size)]
    index = NameIndex(names)
    for prefix, delimiter, limit in itertools.product(["", "a", "a/", "//"], [None, "/"], [1, 2, 5, 1000]):
        whole = index.list(ListParameters(prefix=prefix, delimiter=delimiter))
        found, start = [], ""
        while start is not None:
            page = index.list(ListParameters(prefix=prefix, delimiter=delimiter, limit=limit, start=start))
            assert len(page.names) + len(page.prefixes) <= limit
            found += page.names + page.prefixes
            start = page.next_start
        assert sorted(found) == sorted(whole.names + whole.prefixes)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_the_same_however_they_arrive(size):
    text = b"one\n\ntwo\r\nthree"
    splitter = LineSplitter()
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    lines = [line for piece in [*pieces, b""] for line in splitter.feed(piece)]
    assert lines == [b"one", b"", b"two", b"three"]


def test_a_line_without_end_takes_no_memory():
    splitter = LineSplitter()
    lines = [line for _ in range(100) for line in splitter.feed(b"x" * 10_000)]
    lines += splitter.feed(b"end\nnext\n")
    assert lines == [b"x" * 10_000, b"next"]


def test_the_states_of_a_run_have_one_way_out():
    assert set(MOVES) == set(State)
    for state in State:
        assert (state in CANCELABLE) == (State.CANCELING in MOVES[state])
        if state not in TERMINAL:
            assert after_restart(state).state in MOVES[state]


def test_an_address_is_used_once_and_comes_back():
    pool = AddressPool(seed=7)
    try:
        taken = [pool.take() for _ in range(300)]
        assert len(set(taken)) == 300
        pool.give_back(taken[0])
        assert pool.take() not in taken[1:]
    finally:
        pool.close()


@pytest.mark.parametrize(
    "host,expected", [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False), ("no such host", False)]
)
def test_loopback_is_recognised(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize("header", [None, "bytes=", "lines=1-2", "bytes=1-2,4-5", f"bytes={'9' * 5000}-"])
def test_a_range_that_is_none_means_all(header):
    part = read_range(header, 10)
    assert (part.start, part.end, part.partial) == (0, 10, False)


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=-0", "bytes=5-4", f"bytes={'9' * 99}-"])
def test_an_empty_range_is_refused(header):
    with pytest.raises(ApiError):
        read_range(header, 10)


@pytest.mark.parametrize(
    "header,name",
    [
        ("attachment; filename=a.py", "a.py"),
        ('attachment; filename="a b.zip"', "a b.zip"),
        ("attachment; filename=../../etc/x", "x"),
        ("attachment; filename*=UTF-8''%C3%A9.py", "é.py"),
        ("attachment; filename=..", "artifact"),
        ("", "artifact"),
    ],
)
def test_an_artifacts_name_is_a_file_name(header, name):
    assert artifact_name(header) == name


def test_a_runs_configuration_lies_over_its_jobs():
    job = {"environmentVariables": {"A": "1", "B": "1"}, "maximumRuntimeInMinutes": 5}
    run = {"environmentVariables": {"B": "2"}, "commandLineArguments": None}
    assert merged_configuration(job, run) == {
        "environmentVariables": {"A": "1", "B": "2"},
        "maximumRuntimeInMinutes": 5,
    }
