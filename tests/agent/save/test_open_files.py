"""Which files a process could still write to, as the kernel shows it of real ones."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save import open_files
from airflow_provider_ocidist.agent.save.open_files import files_by_writer, open_files_in, open_for_writing

PROGRAM = """
import mmap, os, subprocess, sys
from pathlib import Path

folder, how = Path(sys.argv[1]), sys.argv[2].split()
kept = []


def drop(file):
    # Python keeps a descriptor for each mapping, other languages do not.
    for number in os.listdir("/proc/self/fd"):
        if os.path.lexists(f"/proc/self/fd/{number}") and os.readlink(f"/proc/self/fd/{number}") == str(file):
            os.close(int(number))


for each in how:
    file = folder / each
    file.write_bytes(b"x" * 5000)
    if each == "write":
        kept.append(file.open("wb"))
    elif each == "append":
        kept.append(file.open("ab"))
    elif each == "update":
        kept.append(file.open("r+b"))
    elif each == "read":
        kept.append(file.open("rb"))
    elif each == "closed":
        file.open("wb").close()
    elif each in ("shared", "private"):
        with file.open("r+b") as opened:
            access = mmap.MAP_SHARED if each == "shared" else mmap.MAP_PRIVATE
            kept.append(mmap.mmap(opened.fileno(), 5000, access))
        drop(file)
    elif each == "seen":
        with file.open("rb") as opened:
            kept.append(mmap.mmap(opened.fileno(), 5000, prot=mmap.PROT_READ))
    elif each == "device":
        kept += [open("/dev/null", "wb"), open("/proc/self/oom_score_adj", "r+b", buffering=0)]
    elif each == "child":
        script = f"import time; file = open({str(file)!r}, 'w'); print(1, flush=True); time.sleep(600)"
        command = [sys.executable, "-c", script]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        child.stdout.readline()
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def process(folder: Path, how: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that has files open, each by the way that its name says."""
    command = [sys.executable, "-c", PROGRAM, str(folder), how]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, start_new_session=True, **pipes) as running:  # type: ignore[call-overload]  # as below
        try:
            assert running.stdout.readline() == b"ready\n"
            yield running
        finally:
            os.killpg(running.pid, 9)


def below(folder: Path, names: Iterable[str]) -> set[str]:
    """Return those of the files that are in a folder: other tests may have left processes that write elsewhere."""
    return {name for name in names if name.startswith(f"{folder}/")}


@pytest.mark.parametrize(
    "how, mapped, written",
    [
        ("write append update", True, {"write", "append", "update"}),
        ("read closed seen private device", True, set()),
        ("shared write", True, {"shared", "write"}),
        ("shared write", False, {"write"}),
        ("child", True, {"child"}),
        ("", True, set()),
    ],
)
def test_what_is_open_for_writing_or_mapped_so_is_found(
    tmp_path: Path, how: str, mapped: bool, written: set[str]
) -> None:
    with process(tmp_path, how):
        assert below(tmp_path, open_for_writing(mapped=mapped)) == {str(tmp_path / name) for name in written}
    assert below(tmp_path, open_for_writing()) == set()


@pytest.mark.parametrize(
    "name", ["with blanks and \u6b65 (deleted)", os.fsdecode(b"caf\xe9")], ids=["text", "bytes"]
)
def test_names_with_any_characters_are_found(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with process(folder, "write shared"):
        assert below(tmp_path, open_for_writing()) == {str(folder / "write"), str(folder / "shared")}


def test_each_process_has_files_of_its_own_and_those_of_other_programs_do_not_count(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    others = files_by_writer().keys()
    with process(tmp_path / "a", "write shared device child") as one, process(tmp_path / "b", "read") as two:
        found = {pid: files for pid, files in files_by_writer().items() if pid not in others}
        theirs = found.pop(one.pid)
        assert below(tmp_path, theirs) == {str(tmp_path / "a" / name) for name in ("write", "shared")}
        # Neither its pipes nor devices are files that it could leave half written.
        assert [name for name in theirs if not name.startswith("/tmp/") and not below(tmp_path, [name])] == []
        assert below(tmp_path, found.pop(two.pid)) == set(), "it lives, and has none open"
        assert [below(tmp_path, each) for each in found.values()] == [{str(tmp_path / "a/child")}]
        # Below a process, without itself.
        inner = files_by_writer(one.pid).values()
        assert [below(tmp_path, each) for each in inner] == [{str(tmp_path / "a/child")}]
        assert files_by_writer(two.pid) == {}


def test_a_process_that_has_ended_is_not_there_though_nobody_has_waited_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = files_by_writer().keys()
    with process(tmp_path, "write") as running:
        os.kill(running.pid, 9)
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
        assert files_by_writer().keys() <= others
        # As it is for a moment when it is found as it ends.
        monkeypatch.setattr(open_files.guard, "descendants", lambda _: [running.pid])
        assert files_by_writer() == files_by_writer(mapped=False) == {}


def test_what_is_closed_as_it_is_looked_at_hides_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.listdir
    with process(tmp_path, "write"):
        monkeypatch.setattr(open_files.os, "listdir", lambda place: [*real(place), "99999"])
        assert below(tmp_path, open_for_writing()) == {str(tmp_path / "write")}


@pytest.mark.parametrize("error, found", [(PermissionError, {7: frozenset()}), (FileNotFoundError, {})])
def test_a_process_of_another_user_has_none_and_one_that_ends_meanwhile_is_not_there(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError], found: dict[int, frozenset[str]]
) -> None:
    def refuse(_: object) -> list[str]:
        raise error

    monkeypatch.setattr(open_files.guard, "descendants", lambda _: [7])
    monkeypatch.setattr(open_files.os, "listdir", refuse)
    assert files_by_writer() == found
    assert open_for_writing() == frozenset()


def test_the_files_of_an_entry_are_named_from_its_folder_on(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    (tmp_path / "real").mkdir()
    below = [
        str(tmp_path / "real" / name) for name in ("step-1/b", "step-1/a/x", "step-10/a", "step-1.pt", "step")
    ]
    for folder in ("real", "link"):
        found = open_files_in(tmp_path / folder / "step-1", frozenset(below))
        assert found == ("step-1/a/x", "step-1/b")
        assert open_files_in(tmp_path / folder / "step-1.pt", frozenset(below)) == ("step-1.pt",)
        assert open_files_in(tmp_path / folder / "step-2", frozenset(below)) == ()
    assert open_files_in(tmp_path / "real" / "step-1", frozenset()) == ()
