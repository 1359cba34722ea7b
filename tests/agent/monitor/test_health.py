"""What shows that a machine is unhealthy, and what does not."""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.monitor import health, usage
from airflow_provider_ocidist.agent.monitor.health import REASONS, HealthWatch, disk_fault, slowed
from tests.agent.gangs import processes_with, until

SEED = int(os.environ.get("HANGS_SEED", "20261123"))


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A nvidia-smi that prints the content of a file, and fails without it."""
    program, table = tmp_path / "bin" / "nvidia-smi", tmp_path / "table"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat {table}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return table


def watch_of(*places: Path, peers: dict[int, str] | None = None) -> HealthWatch:
    return HealthWatch(places, peers or {}, lambda _: None)


def table(*rows: tuple[object, ...]) -> str:
    return "\n".join(", ".join(map(str, (index, *row))) for index, row in enumerate(rows))


@pytest.mark.parametrize("number", range(30))
def test_a_gpu_is_slowed_down_when_its_hardware_says_so(number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    active = [draw.random() < 0.3 for _ in REASONS]
    words = draw.choice([("Not Active", "Active"), ("[N/A]", "Active")])
    row = ["0", *(words[each] for each in active)]
    assert (slowed(row) is not None) == any(active)


def test_memory_errors_count_from_the_start_of_the_training(tmp_path: Path, smi: Path) -> None:
    calm = ("Not Active",) * len(REASONS)
    watch = watch_of()
    smi.write_text(table((7, *calm), ("[N/A]", *calm)))
    assert watch.look() == (), "those of another program's"
    smi.write_text(table((9, *calm), ("[N/A]", *calm)))
    assert watch.look() == ("GPU 0 has had 2 uncorrected memory errors (ECC)",)


def test_a_driver_that_stops_answering_is_found_and_one_that_never_did_is_not(smi: Path) -> None:
    watch = watch_of()
    assert watch.look() == ()
    smi.write_text(table(("0", *("Not Active",) * len(REASONS))))
    assert watch.look() == ()
    smi.unlink()
    assert watch.look() == ("nvidia-smi, which has answered before, fails now",)


@pytest.mark.parametrize("before", [True, False])
def test_a_nvidia_smi_that_is_killed_as_the_training_ends_shows_nothing_of_the_machine(
    smi: Path, *, before: bool
) -> None:
    rows = table(("0", *("Not Active",) * len(REASONS)))
    watch, program = watch_of(), smi.parent / "bin" / "nvidia-smi"
    if before:
        smi.write_text(rows)
        assert watch.look() == ()
        smi.unlink()
    os.mkfifo(smi)
    found: list[tuple[str, ...]] = []
    looking = threading.Thread(target=lambda: found.append(watch.look()))
    looking.start()
    until(lambda: processes_with(str(program)))
    # What `Training` does with all that is left.
    while looking.is_alive():
        for pid in [*processes_with(str(program)), *processes_with(str(smi))]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        looking.join(0.02)
    assert found == [()]
    smi.unlink()
    # Nothing is known of one that has never answered.
    assert watch.look() == (("nvidia-smi, which has answered before, fails now",) if before else ())


def test_a_disk_that_cannot_be_written_or_is_full_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert disk_fault(tmp_path) is None
    assert list(tmp_path.iterdir()) == [], "nothing is left there"
    assert "cannot be written: No such file or directory" in (disk_fault(tmp_path / "gone") or "")
    monkeypatch.setattr(health, "LEAST_SPACE", 1 << 62)
    assert f"the disk at {tmp_path} is full: " in (disk_fault(tmp_path) or "")


def test_a_folder_that_is_not_the_programs_to_write_is_no_fault_of_the_disk() -> None:
    # The system's own: no user may write there, as into a folder of an image that belongs to root.
    watch = watch_of(Path("/sys"))
    assert (watch.look(), watch.look()) == ((), ())


@pytest.mark.parametrize("why", [errno.EROFS, errno.EACCES, errno.EIO])
def test_a_folder_that_could_be_written_and_cannot_any_more_is_a_fault_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    watch = watch_of(tmp_path)
    assert watch.look() == ()

    def refuse(_: Path) -> None:
        raise OSError(why, os.strerror(why))

    # A disk that the kernel makes read-only after an error: none can be had here.
    monkeypatch.setattr(health, "_write_through", refuse)
    assert watch.look() == (f"the disk at {tmp_path} cannot be written: {os.strerror(why)}",)


def test_a_firewall_before_many_peers_is_no_network_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "SLOW_CHECK", 1.0)
    monkeypatch.setattr(health, "PROBES", 2)
    watch = watch_of(peers={rank: f"10.0.0.{rank}" for rank in range(1, 41)})
    seen: set[str] = set()

    def drops(_: str) -> bool:
        time.sleep(0.1)
        seen.update(watch.stuck())
        return False

    monkeypatch.setattr(health, "host_answers", drops)
    began = time.monotonic()
    assert watch.look() == ()
    assert time.monotonic() - began > health.SLOW_CHECK, "together they take longer than one check may"
    assert not seen


def test_a_peer_is_lost_when_it_answered_before(monkeypatch: pytest.MonkeyPatch) -> None:
    # What a lost host looks like depends on the network: no address of this machine is silent everywhere.
    answering = {"10.0.0.1"}
    monkeypatch.setattr(health, "host_answers", answering.__contains__)
    watch = watch_of(peers={1: "10.0.0.1", 2: "10.0.0.2"})
    assert watch.look() == (), "a firewall may drop the probes of the second"
    answering.clear()
    assert watch.look() == ("node 1 at 10.0.0.1 does not answer it any more",)


def test_a_check_that_does_not_come_back_is_a_finding_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "SLOW_CHECK", 0.1)
    comes_back = threading.Event()
    monkeypatch.setattr(health, "disk_fault", lambda _: comes_back.wait(60) and None)
    watch = watch_of(tmp_path)
    watch.start()
    try:
        (found,) = until(watch.stuck)
        assert found.startswith(f"the disk at {tmp_path} has not answered for ")
        comes_back.set()
        until(lambda: not watch.stuck())
    finally:
        comes_back.set()
        watch.close()


@pytest.mark.parametrize("what", ["disk_fault", "host_answers", "ThreadPoolExecutor"])
def test_a_check_that_breaks_off_has_come_back_and_is_no_fault_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def breaks_off(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(health, "SLOW_CHECK", 0.0)
    monkeypatch.setattr(health, what, breaks_off)
    watch = watch_of(tmp_path, peers={1: "10.0.0.1"})
    with pytest.raises(RuntimeError, match="new thread"):
        watch.look()
    assert watch.stuck() == ()


def test_a_nvidia_smi_that_prints_what_is_no_text_is_read_as_far_as_it_is(smi: Path) -> None:
    calm = ("Not Active",) * len(REASONS)
    watch = watch_of()
    smi.write_bytes(table((7, *calm)).encode() + b"\n\xff\xfe\n")
    assert watch.look() == ()
    smi.write_bytes(table((8, *calm)).encode() + b"\n\xff\xfe\n")
    assert watch.look() == ("GPU 0 has had 1 uncorrected memory errors (ECC)",)
    smi.write_bytes(b"93, 20, 5, 80\n\xff\xfe\n")
    assert usage.ask_gpu_usage(str(smi.parent / "bin" / "nvidia-smi")).rows == ((93.0, 20.0, 5.0, 80.0),)


def test_once_it_is_closed_it_asks_no_more_peers_and_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # Behind a firewall each takes its time; the node would end only when all were asked.
    asked: list[str] = []
    first, goes_on = threading.Event(), threading.Event()

    def drops(address: str) -> bool:
        asked.append(address)
        first.set()
        return goes_on.wait(60) and False

    monkeypatch.setattr(health, "host_answers", drops)
    monkeypatch.setattr(health, "PROBES", 2)
    reported: list[tuple[str, ...]] = []
    watch = HealthWatch([], {rank: f"10.0.0.{rank}" for rank in range(1, 41)}, reported.append)
    watch.start()
    (thread,) = [each for each in threading.enumerate() if each.name == "health"]
    assert first.wait(60)
    watch.close()
    goes_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert len(asked) <= 4
    assert reported == []


def test_who_asks_is_answered_soon(tmp_path: Path) -> None:
    seen: list[tuple[str, ...]] = []
    watch = HealthWatch([tmp_path], {}, seen.append)
    watch.start()
    try:
        assert until(lambda: len(seen) == 1)
        watch.ask()
        assert until(lambda: len(seen) == 2)
    finally:
        watch.close()
