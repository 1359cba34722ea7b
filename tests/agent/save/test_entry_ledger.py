"""A checkpoint folder that outlives an attempt, as on a mounted file system."""

from __future__ import annotations

import errno
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from airflow_provider_ocidist.agent.save import entries, entry_ledger
from airflow_provider_ocidist.agent.save.entries import candidates
from airflow_provider_ocidist.agent.save.entry_ledger import (
    Ledger,
    aside_of,
    discard,
    forget_aside,
    set_aside,
    stamps_of,
)
from airflow_provider_ocidist.errors import AgentError, Cause, StoreUnavailable
from airflow_provider_ocidist.job import Checkpoints
from tests.agent.gangs import Gang, until

PROGRAM = """
import os, sys, time
from pathlib import Path
folder = Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(exist_ok=True)
print("found", sorted(path.name for path in folder.iterdir() if path.name[0] != "."), flush=True)
if sys.argv[1] == "cut":
    folder.joinpath("new.tmp").write_bytes(b"1" * 1000)
    folder.joinpath("new.tmp").rename(folder / "step-1.bin")
    folder.joinpath("step-2.bin").write_bytes(b"2" * 500)
    print("written", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "checkpoints"
    found.mkdir()
    return found


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_half_that_stays_in_the_folder_is_offered_to_no_retry_and_never_published(
    tmp_path: Path, end: signal.Signals
) -> None:
    shared, safe = tmp_path / "mounted", tmp_path / "safe"
    shared.mkdir()
    (shared / "step-0.bin").write_bytes(b"the user's own")
    checkpoints = Checkpoints(path=str(shared), uri=str(safe))
    with Gang(tmp_path / "first", PROGRAM, args=("cut",), checkpoints=checkpoints) as gang:
        (agent,) = gang.start()
        agent.prints("written")
        until(lambda: list(safe.glob("step-1*/manifest.json")))
        agent.signal(end)
        agent.wait()
    assert (shared / "step-2.bin").exists()
    with Gang(tmp_path / "second", PROGRAM, args=("go on",), checkpoints=checkpoints) as gang:
        assert gang.run() == [0]
        assert "found ['step-0.bin', 'step-1.bin']" in gang.agents[0].stdout.read_text()
        assert "step-2.bin was left by an interrupted attempt" in gang.agents[0].stderr.read_text()
    assert (aside_of(shared) / "step-2.bin").stat().st_size == 500
    assert not list(safe.glob("step-2*"))


@pytest.mark.parametrize("seed", range(20))
def test_exactly_what_was_neither_there_before_nor_proved_nor_fetched_is_set_aside(
    folder: Path, seed: int
) -> None:
    random = Random(seed)

    def write(name: str) -> None:
        place = folder / name
        if name.endswith(".pt"):
            place.write_bytes(random.randbytes(random.randint(1, 50)))
        else:
            place.mkdir(exist_ok=True)
            (place / "model.bin").write_bytes(random.randbytes(random.randint(51, 99)))

    names = [f"step-{number}{random.choice(['', '.pt'])}" for number in range(random.randint(1, 12))]
    own = [name for name in names if random.random() < 0.3]
    for name in own:
        write(name)
    first = Ledger(folder)
    assert first.begin() == []
    written = [name for name in names if name not in own]
    proved = [name for name in written if random.random() < 0.5]
    for name in written:
        write(name)
    for item in candidates(folder):
        if item.path.name in proved:
            first.add(item)
    changed = [name for name in own + proved if random.random() < 0.2]
    for name in changed:
        (folder / name / "later.bin" if (folder / name).is_dir() else folder / name).write_bytes(b"x" * 200)
    fetched = {name for name in names if random.random() < 0.2}
    aside = set(Ledger(folder).begin(fetched))
    assert aside == (set(written) - set(proved) | set(changed)) - fetched
    assert {item.path.name for item in candidates(folder)} == set(names) - aside
    # Once more, for a third attempt: what stayed stays.
    assert Ledger(folder).begin() == []
    forget_aside(folder)
    assert not aside_of(folder).exists()


def test_a_ledger_that_cannot_be_read_sets_nothing_aside(folder: Path) -> None:
    Ledger(folder).begin()
    (folder / "step-1.pt").write_bytes(b"half")
    Ledger(folder).file.write_text("{")
    assert Ledger(folder).begin() == []


def unreadable_ledger(folder: Path) -> tuple[Path, Path]:
    """Begin a ledger beside a half entry, and let it be unreadable; return its place, and where its text is kept."""
    Ledger(folder).begin()
    (folder / "step-1.pt").write_bytes(b"half")
    ledger = Ledger(folder).file
    kept = ledger.with_name("kept")
    ledger.replace(kept)
    # To read a folder is an OSError, as it is to read from a mount whose server starts again.
    ledger.symlink_to(folder)
    return ledger, kept


def test_a_ledger_that_cannot_be_read_for_a_moment_is_none_of_a_first_attempt(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, kept = unreadable_ledger(folder)
    pauses: list[float] = []

    class Waiting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            kept.replace(ledger)
            return False

    assert Ledger(folder, stopped=Waiting()).begin() == ["step-1.pt"]
    assert len(pauses) == 1
    assert not [each for each in caplog.messages if "cannot be read" in each]


def test_a_request_to_end_is_not_kept_waiting_by_a_ledger_that_cannot_be_read_which_stays_as_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, kept = unreadable_ledger(folder)
    stopped = threading.Event()
    monkeypatch.setattr(entry_ledger, "READ_AGAIN", (600.0,))
    timer = threading.Timer(0.2, stopped.set)
    timer.start()
    begun = Ledger(folder, stopped=stopped)
    assert begun.begin() == []
    timer.join()
    (whole,) = candidates(folder)
    begun.add(whole)
    assert ledger.is_symlink()
    # Nothing of what this attempt could not know is recorded as whole.
    kept.replace(ledger)
    assert Ledger(folder).begin() == ["step-1.pt"]


def test_what_cannot_be_moved_out_of_a_folder_is_hidden_within_it_until_it_is_forgotten(folder: Path) -> None:
    (folder / "step-1.pt").write_bytes(b"half")
    # As where the folder is the root of a mount, nothing can be moved beside it.
    aside_of(folder).write_text("in the way")
    set_aside(folder, ["step-1.pt", "step-2.pt"])
    assert candidates(folder) == []
    (hidden,) = folder.iterdir()
    assert hidden.name.startswith(".")
    assert (hidden / "step-1.pt").read_bytes() == b"half"
    forget_aside(folder)
    assert list(folder.iterdir()) == []


def write(folder: Path, name: str, content: bytes = b"weights") -> Path:
    """Write a file, or where the name has no ending a folder of one."""
    path = folder / name
    if path.suffix:
        path.write_bytes(content)
    else:
        path.mkdir(exist_ok=True)
        (path / "model.bin").write_bytes(content)
    return path


def test_before_a_first_attempt_all_stays_and_afterwards_what_nobody_has_proved_is_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, "step-1.pt")
    assert Ledger(folder).begin() == []
    write(folder, "step-2.pt")
    write(folder, "step-3")
    write(folder, "notes.log")
    caplog.clear()
    ledger = Ledger(folder)
    assert sorted(ledger.begin()) == ["step-2.pt", "step-3"]
    aside = folder.parent / "checkpoints-unproved"
    assert aside == aside_of(folder)
    assert {path.name for path in aside.iterdir()} == {"step-2.pt", "step-3"}
    assert sorted(caplog.messages) == [
        f"{name} was left by an interrupted attempt and may be incomplete: it was moved to {aside}. "
        f"Remedy: if it is complete, delete {ledger.file} and move it back before the next attempt"
        for name in ("step-2.pt", "step-3")
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert ledger.file == folder.parent / ".checkpoints.ocidist.json"
    assert not ledger.file.with_name(".checkpoints.ocidist.json.new").exists()
    # As the remedy says.
    ledger.file.unlink()
    (aside / "step-3").rename(folder / "step-3")
    assert Ledger(folder).begin() == []
    assert Ledger(folder).begin() == []


def test_only_what_the_pattern_fits_is_set_aside(folder: Path) -> None:
    Ledger(folder, r"run-\d+").begin()
    write(folder, "step-1.pt")
    write(folder, "run-1")
    assert Ledger(folder, r"run-\d+").begin() == ["run-1"]
    assert set(stamps_of(folder)) == {"step-1.pt"}
    assert stamps_of(folder, r"run-\d+") == {}


def test_what_was_set_aside_before_gives_way_to_what_is_set_aside_now(folder: Path) -> None:
    for content in (b"first", b"second"):
        for name in ("step-1", "step-2.pt"):
            write(folder, name, content)
        set_aside(folder, ["step-2.pt", "step-1"])
    assert (aside_of(folder) / "step-1" / "model.bin").read_bytes() == b"second"
    assert (aside_of(folder) / "step-2.pt").read_bytes() == b"second"


@pytest.mark.parametrize("content", ["{", "[]", "null", ""])
def test_a_ledger_that_is_none_sets_nothing_aside_and_stays_until_the_user_deletes_it(
    folder: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, "step-1.pt")
    Ledger(folder).begin()
    write(folder, "step-2.pt", b"half")
    file = Ledger(folder).file
    kept = file.read_text()
    file.write_text(content)
    for _ in range(2):
        caplog.clear()
        ledger = Ledger(folder)
        assert ledger.begin() == []
        (message,) = caplog.messages
        assert message.startswith(f"{file} cannot be read, so that all entries stay: ")
        assert "delete the file, if all entries are complete" in message
        write(folder, "step-3.pt")
        ledger.add(next(item for item in candidates(folder) if item.step == 3))
        assert file.read_text() == content
    file.write_text(kept)
    # The half was recorded as whole by none of the two.
    assert sorted(Ledger(folder).begin()) == ["step-2.pt", "step-3.pt"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_cannot_be_read_at_a_begin_no_whole_entry_is_ever_set_aside_and_no_half_one_becomes_whole(
    folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six attempts, of which each may find the folder, an entry or the ledger unreadable, for a moment or longer."""
    random = Random(seed)
    for pauses in ("READ_AGAIN", "READ_AGAIN_AT_FIRST"):
        monkeypatch.setattr(entry_ledger, pauses, (0.0,))
    names = [f"step-{number}.pt" for number in range(random.randint(2, 6))]
    hidden = folder.with_name("hidden")
    # Whole are those of the user, before the first attempt that reads all, and those that are proved.
    whole = {name for name in names if random.random() < 0.5}
    for name in whole:
        write(folder, name)
    for attempt in range(6):
        if attempt and not Ledger(folder).file.exists():
            # No attempt has begun yet, so that all is still the user's.
            assert {path.name for path in folder.iterdir()} <= whole
        fault = random.choice(["none", "folder", "entry", "ledger"])
        entry = folder / random.choice(names)
        ledger = Ledger(
            folder, stopped=Mending(lambda: mend(folder, hidden)) if random.random() < 0.4 else None
        )
        if fault == "folder":
            folder.rename(hidden)
            folder.write_text("a mount that is not there shows what lies below it")
        elif fault == "entry" and entry.exists():
            entry.rename(hidden)
            # The kernel refuses to follow it, which is another error than that nothing is there.
            entry.symlink_to("x" * 300)
        elif fault == "ledger" and ledger.file.exists():
            ledger.file.rename(hidden)
            ledger.file.symlink_to(folder)
        try:
            aside = ledger.begin()
        except StoreUnavailable:
            assert fault == "folder"
            assert not ledger.file.exists()
            continue
        finally:
            mend(folder, hidden)
        assert not whole & set(aside), f"attempt {attempt}, {fault}"
        recorded = ledger._known if not ledger._is_unread else {}
        assert set(recorded) <= whole, f"attempt {attempt}, {fault}: a half counts as whole"
        new = f"step-{100 + attempt}.pt"
        names.append(new)
        write(folder, new, random.randbytes(random.randint(10, 50)))
        if random.random() < 0.5:
            ledger.add(next(item for item in candidates(folder) if item.path.name == new))
            if not ledger._is_unread:
                whole.add(new)


def mend(folder: Path, hidden: Path) -> None:
    """Put back what one fault of the test before has hidden."""
    if not hidden.exists():
        return
    if hidden.is_dir():
        folder.unlink()
        hidden.rename(folder)
        return
    for place in (*folder.iterdir(), Ledger(folder).file):
        if place.is_symlink():
            place.unlink()
            hidden.rename(place)
            return


class Mending(threading.Event):
    """A stop that never comes, in whose wait a fault ends."""

    def __init__(self, mend: Callable[[], None]) -> None:
        super().__init__()
        self._mend = mend

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self._mend()
        return False


def test_an_entry_that_cannot_be_set_aside_is_said_and_stays(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Ledger(folder).begin()
    path = write(folder, "step-1.pt")
    aside_of(folder).write_text("in the way")
    (folder / ".checkpoints-unproved.part").write_text("in the way, too")
    assert Ledger(folder).begin() == []
    assert path.exists()
    (said,) = caplog.messages
    assert said.startswith(f"{path} may be incomplete, and cannot be set aside: ")
    assert "File exists" in said
    with pytest.raises(AgentError) as caught:
        set_aside(folder, ["step-1.pt"])
    assert caught.value.cause is Cause.DATA
    assert str(caught.value).startswith(
        f"not all nodes would go on from {path}, and it cannot be moved away: "
    )


def test_what_not_all_nodes_would_go_on_from_is_moved_away_with_a_word_and_by_one_of_them(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("step-1.pt", "step-2"):
        write(folder, name)
    set_aside(folder, ["step-3.pt", "step-2", "step-0.pt", "step-1.pt"])
    assert caplog.messages == [
        f"not all nodes would go on from {name}: it was moved to {aside_of(folder)}"
        for name in ("step-1.pt", "step-2")
    ]
    assert list(folder.iterdir()) == []


def test_a_folder_in_which_nothing_can_be_recorded_is_no_error(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ledger = Ledger(folder)
    ledger.file.with_name(f"{ledger.file.name}.new").mkdir()
    write(folder, "step-1.pt")
    assert ledger.begin() == []
    (item,) = candidates(folder)
    ledger.add(item)
    said = caplog.messages[-1]
    assert said.startswith(f"{ledger.file} cannot be written: ")
    assert "directory" in said


# Parts of which only some are here


def test_parts_are_deleted_but_for_what_was_fetched_or_is_as_it_was_before(folder: Path) -> None:
    names = ["step-1", "step-2.pt", "step-3", "step-4.pt", "step-5", "step-6.pt"]
    for name in names[:4]:
        write(folder, name)
    before = stamps_of(folder)
    write(folder, "step-3", b"trained on")
    write(folder, "step-4.pt", b"trained on")
    for name in names[4:]:
        write(folder, name)
    discard(folder, fetched=["step-3", "step-6.pt"], before=before)
    assert {item.path.name for item in candidates(folder)} == {"step-1", "step-2.pt", "step-3", "step-6.pt"}
    discard(folder, r"step-\d+", fetched=["step-3"])
    assert {path.name for path in folder.iterdir()} == {"step-2.pt", "step-3", "step-6.pt"}
    discard(folder)
    assert list(folder.iterdir()) == []


def test_what_the_program_deletes_meanwhile_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("step-1", "step-2.pt"):
        write(folder, name)
    found = candidates(folder)
    (folder / "step-2.pt").unlink()
    monkeypatch.setattr(entry_ledger, "candidates", lambda *_: found)
    monkeypatch.setattr(entry_ledger.shutil.os, "rmdir", refuse)
    discard(folder)
    assert [path.name for path in folder.rglob("*") if path.is_file()] == []


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOTEMPTY, "Directory not empty")


def test_no_file_names_an_entry_as_the_latest_that_was_set_aside_or_deleted(folder: Path) -> None:
    def save(name: str) -> None:
        (folder / name).mkdir()
        (folder / name / "mp_rank_00_model_states.pt").write_bytes(b"weights")
        (folder / "latest").write_text(f"{name}\n")

    def names() -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    Ledger(folder).begin()
    save("global_step10")
    assert Ledger(folder).begin() == ["global_step10"]
    assert names() == []
    # Who moves the entry back finds the file beside it.
    assert (aside_of(folder) / "latest").read_text() == "global_step10\n"

    save("global_step20")
    set_aside(folder, ["global_step20"])
    assert names() == []

    save("global_step30")
    discard(folder)
    assert names() == []

    save("global_step40")
    save("global_step50")
    set_aside(folder, ["global_step40"])
    assert (names(), (folder / "latest").read_text()) == (["global_step50", "latest"], "global_step50\n")


@pytest.mark.parametrize("attempt", [1, 2])
def test_an_entry_that_cannot_be_read_for_a_moment_is_the_users_and_stays(folder: Path, attempt: int) -> None:
    def refuse(path: Path) -> None:
        path.rename(folder.with_name("kept"))
        path.symlink_to("x" * 300)

    def grant(path: Path) -> None:
        path.unlink()
        folder.with_name("kept").rename(path)

    entry = write(folder, "step-5.pt", b"whole")
    refuse(entry)
    before = stamps_of(folder)
    grant(entry)
    discard(folder, before=before)
    assert entry.read_bytes() == b"whole"
    if attempt == 2:
        assert Ledger(folder).begin() == []
    refuse(entry)
    assert Ledger(folder, stopped=Mending(lambda: None)).begin() == []
    grant(entry)
    write(folder, "step-6.pt", b"half")
    assert Ledger(folder).begin() == ["step-6.pt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_folder_that_refuses_to_be_read_is_no_entry_without_files() -> None:
    """In a process of another user, who may read the folder and not what lies in it."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        folder = Path(place, "checkpoints")
        folder.mkdir(0o755)
        write(folder, "checkpoint-5").chmod(0o000)
        assert found_by_another_user(folder) == 42


def found_by_another_user(folder: Path) -> int:
    """Return 42 where one that is refused finds `checkpoint-5` unreadable, and nothing else."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setuid(65534)
            found = entries.listing(folder)
            code = 42 if found.unreadable == {"checkpoint-5"} and not found.items else 41
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
