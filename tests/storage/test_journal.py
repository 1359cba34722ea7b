"""The journal of a copy: what a killed one has finished, and when that must not be trusted."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.storage.stores import journal as module
from airflow_provider_ocidist.storage.stores.journal import Journal, cache_folder, places_digest, this_boot


def opened(path: Path, **subject: object) -> Journal:
    journal = Journal.open(path, subject)
    assert journal is not None
    return journal


def lines_of(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can grow (EFBIG, as Python ignores SIGXFSZ)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_journal_is_locked_while_it_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "journal"
    first = opened(path, of="this")
    before = open_files()
    assert Journal.open(path, {"of": "this"}) is None
    assert open_files() == before
    first.add("one")
    first.close()
    again = opened(path, of="this")
    assert again.records == ["one"]
    assert path.parent == tmp_path / "a" / "b"


def test_only_its_user_reads_a_journal(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        opened(tmp_path / "journal", of="this")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o600


def test_the_first_line_is_the_subject_and_each_record_a_line(tmp_path: Path) -> None:
    journal = opened(tmp_path / "journal", of="this", size=7)
    journal.add({"part": 1})
    journal.add([2])
    assert lines_of(tmp_path / "journal") == [{"of": "this", "size": 7}, {"part": 1}, [2]]


@pytest.mark.parametrize("cut", [b'{"part": ', b"\xff\xfe", b"nonsense\n[3]\n"])
def test_what_was_cut_off_ends_the_journal_and_the_next_record_is_read_again(
    tmp_path: Path, cut: bytes
) -> None:
    path = tmp_path / "journal"
    journal = opened(path, of="this")
    journal.add([1])
    journal.close()
    with path.open("ab") as file:
        file.write(cut)
    again = opened(path, of="this")
    assert again.records == [[1]]
    again.add([2])
    again.close()
    assert lines_of(path) == [{"of": "this"}, [1], [2]]


def test_records_of_another_subject_are_stale_and_are_not_there_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = opened(path, of="this")
    journal.add(1)
    journal.close()
    other = opened(path, of="that")
    assert (other.records, other.stale) == ([], [1])
    other.close()
    again = opened(path, of="that")
    assert (again.records, again.stale) == ([], [])
    assert lines_of(path) == [{"of": "that"}]


def test_an_empty_file_is_a_new_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.touch()
    journal = opened(path, of="this")
    assert (journal.records, journal.stale, journal.path) == ([], [], path)


def test_what_is_forgotten_does_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = opened(path, of="this")
    journal.add(1)
    journal.close()
    again = opened(path, of="this")
    again.forget()
    assert again.records == []
    assert lines_of(path) == [{"of": "this"}]
    again.add(2)
    again.close()
    assert opened(path, of="this").records == [2]


def test_a_removed_journal_is_gone_unlocked_and_closed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    before = open_files()
    journal = opened(path, of="this")
    journal.add(1)
    journal.remove()
    assert not path.exists()
    assert open_files() == before
    journal.add(2)
    journal.close()
    journal.remove()
    assert not path.exists()
    assert opened(path, of="this").records == []


def test_a_journal_that_was_removed_by_others_can_be_removed(tmp_path: Path) -> None:
    before = open_files()
    journal = opened(tmp_path / "journal", of="this")
    (tmp_path / "journal").unlink()
    journal.remove()
    assert open_files() == before


def test_a_journal_in_a_folder_that_became_a_file_can_be_removed(tmp_path: Path) -> None:
    journal = opened(tmp_path / "folder" / "journal", of="this")
    (tmp_path / "folder" / "journal").unlink()
    (tmp_path / "folder").rmdir()
    (tmp_path / "folder").touch()
    before = open_files()
    journal.remove()
    assert open_files() == before - 1


def test_where_nothing_can_be_written_there_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert Journal.open(tmp_path / "file" / "journal", {"of": "this"}) is None
    assert Journal.open(tmp_path, {"of": "this"}) is None


def test_on_a_full_disk_there_is_no_journal_and_none_is_left(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    before = open_files()
    with full_disk():
        assert Journal.open(path, {"of": "this"}) is None
    assert not path.exists()
    assert open_files() == before


def test_a_disk_that_fills_costs_the_journal_and_not_the_copy(tmp_path: Path) -> None:
    journal = opened(tmp_path / "journal", of="this")
    journal.add(1)
    with full_disk():
        journal.add(2)
    journal.close()
    assert opened(tmp_path / "journal", of="this").records == [1]


def test_who_waits_for_a_journal_that_is_removed_makes_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    before = open_files()
    lock = fcntl.flock
    removed: list[int] = []

    def as_its_owner_removes_it(descriptor: int, operation: int) -> None:
        if len(removed) < 2:
            path.unlink()
            removed.append(descriptor)
        lock(descriptor, operation)

    monkeypatch.setattr(module.fcntl, "flock", as_its_owner_removes_it)
    journal = opened(path, of="this")
    journal.add(1)
    assert lines_of(path) == [{"of": "this"}, 1]
    assert len(removed) == 2
    journal.close()
    assert open_files() == before


def test_records_of_many_threads_are_whole(tmp_path: Path) -> None:
    journal = opened(tmp_path / "journal", of="this")

    def add(number: int) -> None:
        for count in range(50):
            journal.add({"of": number, "count": count, "more": "x" * 300})

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    found = opened(tmp_path / "journal", of="this").records
    assert sorted((line["of"], line["count"]) for line in found) == [
        (n, c) for n in range(8) for c in range(50)
    ]


TOKENS = ("https://user:pass@example.com/data?sig=abc", "https://example.com/data?sig=xyz")


def test_a_journal_holds_no_secret_and_goes_on_with_another_token(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = opened(path, **{"from": TOKENS[0], "size": 3})
    journal.add(1)
    journal.close()
    assert "pass" not in path.read_text()
    assert "abc" not in path.read_text()
    assert lines_of(path)[0] == {"from": "https://example.com/data", "size": 3}
    assert opened(path, **{"from": TOKENS[1], "size": 3}).records == [1]


def test_a_key_is_of_the_places_in_their_order_whatever_token_opens_them() -> None:
    key = places_digest(TOKENS[0], "/target")
    assert key == places_digest(TOKENS[1], "/target")
    assert len(key) == 8
    assert int(key, 16) >= 0
    others = {
        places_digest("/target", TOKENS[0]),
        places_digest(TOKENS[0]),
        places_digest("https://example.com/other", "/target"),
        places_digest("a", "b"),
        places_digest("ab"),
        places_digest("\udcff"),
    }
    assert len(others | {key}) == 7


def test_a_key_stays_the_same_from_one_version_to_the_next() -> None:
    assert places_digest("/a", "oci://b@n/c") == "fd67b541"


def test_journals_of_far_targets_live_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "xdg" / "ocidist" / "transfers"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == tmp_path / "home" / ".cache" / "ocidist" / "transfers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / "home" / ".cache" / "ocidist" / "transfers"


def test_a_boot_has_a_name_of_its_own() -> None:
    name = this_boot()
    assert name == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert len(name) == 36


def test_without_a_name_of_the_boot_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise FileNotFoundError("/proc is not mounted")

    monkeypatch.setattr(Path, "read_text", refuse)
    assert this_boot() == ""
