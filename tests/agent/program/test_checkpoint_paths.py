"""A program that writes its checkpoints to `oci://` itself, with ocifs: the same proof, order and retention."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import json
import os
import signal
import subprocess
import sys
import time
import types
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ocifs
import pytest

from airflow_provider_ocidist.agent.diagnose import stacks
from airflow_provider_ocidist.agent.program import checkpoint_paths, checkpoint_saves
from airflow_provider_ocidist.agent.program.checkpoint_paths import adopt
from airflow_provider_ocidist.agent.program.checkpoint_places import Places, is_checkpoint
from airflow_provider_ocidist.agent.program.checkpoint_saves import begin_save, delete_left_behind
from airflow_provider_ocidist.agent.save.checkpoints import ocifs_environment
from airflow_provider_ocidist.job import Checkpoints
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoints import complete, fetch
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access
from tests.agent.gangs import Gang

# As the trainer of minGPT: one name for all snapshots, read back at the start.
SEED = """
import os, pickle, signal, sys, time
import fsspec

path, last, gate = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def save(epoch, cut_off=False):
    data = pickle.dumps({"finished_epoch": epoch, "model_state": bytes(3_000_000)})
    with fsspec.open(path, "wb") as fp:
        if cut_off:
            fp.write(data[: len(data) // 2])
            fp.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        fp.write(data)
    print("saved", epoch, flush=True)


try:
    with fsspec.open(path) as fp:
        finished = pickle.load(fp)["finished_epoch"]
    print("goes on from", finished, flush=True)
except FileNotFoundError:
    finished = 0
    print("from scratch", flush=True)
for epoch in range(finished + 1, last + 1):
    save(epoch)
if gate != "-":
    while not os.path.exists(gate):
        time.sleep(0.02)
    save(last + 1, cut_off=True)
"""


class Bucket:
    """A folder of the emulator's bucket, which no other test uses."""

    def __init__(self, emulator: Access) -> None:
        self.emulator = emulator
        self.path = f"{emulator.bucket}@{emulator.namespace}/{uuid.uuid4().hex}"
        self.uri = f"oci://{self.path}"
        self.checkpoints = Checkpoints(uri=f"{self.uri}/train-g1", keep=2)
        self.access = OciAccess(
            config_file=emulator.config_file, profile=emulator.profile, endpoint=emulator.url
        )

    @property
    def options(self) -> dict[str, Any]:
        """Return what ocifs needs to find the emulator."""
        return {
            "config": self.emulator.config_file,
            "profile": self.emulator.profile,
            "config_kwargs": {"service_endpoint": self.emulator.url},
        }

    @property
    def environment(self) -> dict[str, str]:
        return {
            "OCI_CONFIG_FILE": self.emulator.config_file,
            "OCI_CLI_PROFILE": self.emulator.profile,
            "FSSPEC_OCI": json.dumps(self.options),
        }

    def gang(self, root: Path, script: str, *args: str, **changes: Any) -> Gang:
        changes = {"checkpoints": self.checkpoints, "oci_endpoint": self.emulator.url, **changes}
        return Gang(root, script, args=args, **changes)

    def names(self) -> list[str]:
        return sorted(entry.name for entry in open_store(self.uri, self.access).list())

    def published(self) -> list[str]:
        """Return the checkpoints, the newest first."""
        uri = self.checkpoints.uri or ""
        return [each.uri[len(uri) + 1 :] for each in complete(uri, self.access)]

    def newest(self, target: Path) -> bytes:
        uri = self.checkpoints.uri or ""
        return fetch(complete(uri, self.access)[0].uri, target, self.access).read_bytes()


@pytest.fixture
def bucket(emulator: Access) -> Bucket:
    return Bucket(emulator)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def files(bucket: Bucket, folder: Path) -> Any:
    """Return ocifs as a program on a node has it."""
    core = types.SimpleNamespace(OCIFileSystem=ocifs.core.OCIFileSystem)
    adopt(core, Places(folder, bucket.uri))
    return core.OCIFileSystem(**bucket.options, skip_instance_cache=True, use_listings_cache=False)


@pytest.fixture
def plain(bucket: Bucket) -> Any:
    """Return ocifs as it is."""
    return ocifs.OCIFileSystem(**bucket.options, skip_instance_cache=True, use_listings_cache=False)


# In a training


def test_half_a_snapshot_of_a_killed_program_never_counts_and_the_next_attempt_reads_the_whole_one(
    bucket: Bucket, tmp_path: Path
) -> None:
    path, gate = f"{bucket.uri}/snapshot.pkl", tmp_path / "gate"
    with bucket.gang(tmp_path / "1", SEED, path, "1", str(gate)) as first:
        (agent,) = first.start(**bucket.environment)
        agent.shows(lambda: "saved 1" in agent.stdout.read_text() and agent.report.checkpoint)
        gate.touch()
        assert agent.wait() == 128 + signal.SIGKILL
        assert "from scratch" in agent.stdout.read_text()
    (published,) = bucket.published()
    assert published.startswith("snapshot.pkl")
    assert f"{path} is written to" in first.agents[0].stderr.read_text()
    # Each node's first process saves, as in minGPT.
    with bucket.gang(tmp_path / "2", SEED, path, "3", "-", nodes=2, attempt=2) as second:
        assert second.run(**bucket.environment) == [0, 0]
        shown = [agent.stdout.read_text() for agent in second.agents]
    assert shown == ["goes on from 1\nsaved 2\nsaved 3\n"] * 2
    assert ".attempt-2" in bucket.published()[0]
    assert len(bucket.published()) == 2
    assert b"finished_epoch\x94K\x03" in bucket.newest(tmp_path / "fetched")
    assert all(name.startswith(("train-g1/", ".")) for name in bucket.names())


def test_checkpoints_with_steps_are_ordered_and_thinned_out_and_other_files_go_to_the_store(
    bucket: Bucket, tmp_path: Path
) -> None:
    script = """
import sys
import fsspec
for step in (1, 2, 3, 4):
    with fsspec.open(f"{sys.argv[1]}/step-{step}.bin", "wb") as fp:
        fp.write(b"w" * step)
with fsspec.open(f"{sys.argv[1]}/metrics.json", "w") as fp:
    fp.write("{}")
"""
    with bucket.gang(tmp_path, script, bucket.uri) as one:
        assert one.run(**bucket.environment) == [0]
    assert [name.partition(".")[0] for name in bucket.published()] == ["step-4", "step-3"]
    assert [name for name in bucket.names() if "/" not in name] == ["metrics.json"]


@pytest.mark.parametrize(
    "uri, expected",
    [
        ("oci://b@n/gpt/train-g1", {"OCIDIST_CHECKPOINT_URI": "oci://b@n/gpt"}),
        # The program's other files are in the same bucket.
        ("oci://b@n/train-g1", {}),
        ("/mnt/shared/train-g1", {}),
        (None, {}),
    ],
)
def test_a_program_is_directed_where_the_job_names_a_folder_of_object_storage_and_does_not_forbid_it(
    uri: str | None, expected: Mapping[str, str]
) -> None:
    assert ocifs_environment(Checkpoints(uri=uri)) == expected
    assert ocifs_environment(Checkpoints(uri=uri, redirect=False)) == {}


def test_the_jobs_pattern_decides_which_names_are_checkpoints() -> None:
    checkpoints = Checkpoints(uri="oci://b@n/gpt/train-g1", pattern=r"mine-.*")
    assert ocifs_environment(checkpoints)["OCIDIST_CHECKPOINT_PATTERN"] == r"mine-.*"


# When Python starts


def python(code: str, tmp_path: Path, *paths: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code as a program of a training, which has these folders on its path."""
    path = os.pathsep.join([stacks.PROGRAM_FOLDER, *map(str, paths)])
    ours = {"OCIDIST_CHECKPOINT_URI": "oci://b@n/gpt", "OCIDIST_CHECKPOINT_DIR": str(tmp_path)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **ours, **environ},
        capture_output=True,
        text=True,
        check=True,
    )


def test_a_program_that_does_not_import_ocifs_loads_nothing_more(tmp_path: Path) -> None:
    code = "import sys, json; print([name for name in sys.modules if name.split('.')[0] in {names}])"
    done = python(code.format(names=["airflow_provider_ocidist", "fsspec", "ocifs", "pathlib"]), tmp_path)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_ocifs_is_directed_also_in_a_python_that_has_not_our_package_on_its_path(tmp_path: Path) -> None:
    code = "import ocifs, fsspec\nprint(ocifs.OCIFileSystem.__mro__[1].__name__)"
    code += "\nprint(fsspec.get_filesystem_class('oci') is ocifs.OCIFileSystem is ocifs.core.OCIFileSystem)"
    assert python(code, tmp_path).stdout == "CheckpointPaths\nTrue\n"


def test_an_ocifs_that_cannot_be_directed_is_left_as_it_is(tmp_path: Path) -> None:
    package = tmp_path / "ocifs"
    package.mkdir()
    (package / "__init__.py").write_text("from ocifs.core import THEIRS")
    (package / "core.py").write_text("THEIRS = 1")
    done = python("import ocifs; print(ocifs.THEIRS)", tmp_path, tmp_path)
    assert done.stdout == "1\n"
    assert "what ocifs writes goes straight to the store" in done.stderr


def test_where_there_is_no_ocifs_its_import_fails_as_before(tmp_path: Path) -> None:
    code = "import sys\nsys.path[:] = [each for each in sys.path if 'site-packages' not in each]\ntry:\n"
    code += "    import ocifs.core\nexcept ImportError as error:\n    print(error)"
    assert python(code, tmp_path).stdout == "No module named 'ocifs'\n"


# What a save does


def test_a_checkpoint_appears_in_the_folder_when_its_file_is_closed(
    files: Any, plain: Any, bucket: Bucket, folder: Path
) -> None:
    path = f"{bucket.uri}/snapshot.pt"
    with files.open(path, "wb") as file:
        file.write(b"weights")
        file.flush()
        assert not files.exists(path)
        assert not (folder / "snapshot.pt").exists()
    assert (folder / "snapshot.pt").read_bytes() == b"weights"
    assert files.cat(path) == b"weights"
    assert not plain.exists(path)
    assert os.listdir(folder) == ["snapshot.pt"]


def test_a_save_that_an_exception_ends_leaves_the_one_before(
    files: Any, bucket: Bucket, folder: Path
) -> None:
    path = f"{bucket.uri}/snapshot.pt"
    files.pipe(path, b"before")
    with pytest.raises(ZeroDivisionError):
        save_and_fail(files, path)
    assert files.cat(path) == b"before"
    assert os.listdir(folder) == ["snapshot.pt"]


def save_and_fail(files: Any, path: str) -> None:
    with files.open(path, "wb") as file:
        file.write(b"half")
        _ = 1 / 0


def test_a_save_in_the_handler_of_an_exception_is_whole(files: Any, bucket: Bucket) -> None:
    path = f"{bucket.uri}/snapshot.pt"
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with files.open(path, "wb") as file:
            file.write(b"the last words")
    assert files.cat(path) == b"the last words"


def test_a_save_of_which_a_write_has_failed_leaves_the_one_before(
    files: Any, bucket: Bucket, folder: Path
) -> None:
    path = f"{bucket.uri}/snapshot.pt"
    files.pipe(path, b"before")
    with files.open(path, "wb") as file:
        file.write(b"half")
        with contextlib.suppress(TypeError):
            file.write("no bytes")
    assert files.cat(path) == b"before"
    assert os.listdir(folder) == ["snapshot.pt"]


def test_a_file_that_is_dropped_without_being_closed_is_written_but_proves_nothing(
    files: Any, bucket: Bucket, folder: Path
) -> None:
    path = f"{bucket.uri}/snapshot.pt"
    files.pipe(path, b"before")
    renamed = (folder / "snapshot.pt").stat().st_ino
    files.open(path, "wb").write(b"after")
    gc.collect()
    assert files.cat(path) == b"after"
    # It was not renamed into place, which would count as a proof.
    assert (folder / "snapshot.pt").stat().st_ino == renamed
    assert os.listdir(folder) == ["snapshot.pt"]


def test_unfinished_files_of_killed_processes_are_deleted_and_those_of_others_stay(folder: Path) -> None:
    folder.mkdir()
    old, young, locked = (folder / f".ocidist-{name}.tmp" for name in ("old", "young", "locked"))
    for path in (old, young, locked):
        path.write_bytes(b"half")
    for path in (old, locked):
        os.utime(path, (time.time() - 3600, time.time() - 3600))
    with locked.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        delete_left_behind(folder)
    assert sorted(path.name for path in folder.iterdir()) == [locked.name, young.name]


def test_a_file_that_is_being_written_is_locked(folder: Path) -> None:
    with begin_save(folder, folder / "step-1.pt", "oci://b@n/step-1.pt"):
        (unfinished,) = folder.iterdir()
        os.utime(unfinished, (0, 0))
        delete_left_behind(folder)
        assert unfinished.exists()


# In a transaction


def test_checkpoints_of_a_transaction_appear_when_it_has_succeeded(
    files: Any, bucket: Bucket, folder: Path
) -> None:
    first, second = f"{bucket.uri}/snapshot.pt", f"{bucket.uri}/step-1.pt"
    files.pipe(first, b"before")
    with files.transaction:
        for path in (first, second):
            with files.open(path, "wb", autocommit=False) as file:
                file.write(b"weights")
        assert files.cat(first) == b"before"
        assert not files.exists(second)
        for path in folder.glob(".ocidist-*"):
            os.utime(path, (0, 0))
        # They wait: no other process takes them for those of a killed one.
        delete_left_behind(folder)
    assert (files.cat(first), files.cat(second)) == (b"weights", b"weights")
    assert sorted(os.listdir(folder)) == ["snapshot.pt", "step-1.pt"]


def test_a_transaction_that_fails_leaves_the_checkpoints_before(
    files: Any, bucket: Bucket, folder: Path
) -> None:
    path = f"{bucket.uri}/snapshot.pt"
    files.pipe(path, b"before")
    with pytest.raises(ZeroDivisionError):
        fail_in_a_transaction(files, path)
    assert files.cat(path) == b"before"
    assert os.listdir(folder) == ["snapshot.pt"]
    files.pipe(path, b"after")
    assert files.cat(path) == b"after"


def fail_in_a_transaction(files: Any, path: str) -> None:
    with files.transaction:
        with files.open(path, "wb", autocommit=False) as file:
            file.write(b"after")
        with files.open(path, "wb", autocommit=False) as file:
            file.write(b"half")
            _ = 1 / 0


def test_a_write_that_failed_in_a_transaction_leaves_the_checkpoint_before(
    files: Any, bucket: Bucket, folder: Path
) -> None:
    path = f"{bucket.uri}/snapshot.pt"
    files.pipe(path, b"before")
    with files.transaction, files.open(path, "wb", autocommit=False) as file:
        file.write(b"half")
        with contextlib.suppress(TypeError):
            file.write("no bytes")
    assert files.cat(path) == b"before"
    assert os.listdir(folder) == ["snapshot.pt"]


# What the program sees


def test_what_is_not_in_the_folder_is_read_from_the_store(
    files: Any, plain: Any, bucket: Bucket, folder: Path
) -> None:
    plain.pipe(f"{bucket.uri}/snapshot.pt", b"from before ocidist")
    plain.pipe(f"{bucket.uri}/step-1/weights.bin", b"1")
    assert files.cat(f"{bucket.uri}/snapshot.pt") == b"from before ocidist"
    files.pipe(f"{bucket.uri}/snapshot.pt", b"newer")
    files.pipe(f"{bucket.uri}/step-2/weights.bin", b"22")
    assert files.cat(f"{bucket.uri}/snapshot.pt") == b"newer"
    assert plain.cat(f"{bucket.uri}/snapshot.pt") == b"from before ocidist"
    below = [name[len(bucket.path) + 1 :] for name in files.ls(bucket.uri, detail=False)]
    assert below == ["snapshot.pt", "step-1", "step-2"]
    assert [name.rpartition("/")[2] for name in files.glob(f"{bucket.uri}/step-*")] == ["step-1", "step-2"]
    found = [name[len(bucket.path) + 1 :] for name in files.find(bucket.uri)]
    assert found == ["snapshot.pt", "step-1/weights.bin", "step-2/weights.bin"]
    info = files.info(f"{bucket.uri}/step-2/weights.bin")
    assert (info["name"], info["size"], info["type"]) == (f"{bucket.path}/step-2/weights.bin", 2, "file")
    assert files.isdir(f"{bucket.uri}/step-2")
    assert files.isdir(f"{bucket.uri}/step-1")
    assert not files.exists(f"{bucket.uri}/step-3")
    assert (folder / "step-2" / "weights.bin").read_bytes() == b"22"


def test_what_is_deleted_does_not_come_back_from_the_store(
    files: Any, plain: Any, bucket: Bucket, folder: Path
) -> None:
    plain.pipe(f"{bucket.uri}/snapshot.pt", b"from before ocidist")
    files.pipe(f"{bucket.uri}/snapshot.pt", b"newer")
    files.rm(f"{bucket.uri}/snapshot.pt")
    assert not files.exists(f"{bucket.uri}/snapshot.pt")
    for number in (1, 2):
        files.pipe(f"{bucket.uri}/step-{number}/weights.bin", b"w")
    files.rm(f"{bucket.uri}/step-1", recursive=True)
    assert os.listdir(folder) == ["step-2"]
    files.rm(bucket.uri, recursive=True)
    assert os.listdir(folder) == []
    with pytest.raises(FileNotFoundError):
        files.rm(f"{bucket.uri}/snapshot.pt")


def test_what_is_deleted_with_others_does_not_come_back_from_the_store(
    files: Any, plain: Any, bucket: Bucket, folder: Path
) -> None:
    paths = [f"{bucket.path}/{name}" for name in ("snapshot.pt", "step-1.pt", "old.pt", "notes.txt")]
    for path in (paths[0], *paths[2:]):
        plain.pipe(path, b"from before ocidist")
    for path in paths[:2]:
        files.pipe(path, b"newer")
    files.bulk_delete(paths)
    assert [path for path in paths if files.exists(path)] == []
    assert os.listdir(folder) == []
    with pytest.raises(FileNotFoundError):
        files.bulk_delete(paths[:1])


def test_a_program_may_write_under_another_name_and_move_it(files: Any, bucket: Bucket, folder: Path) -> None:
    for move in (files.mv, files.rename):
        files.pipe(f"{bucket.uri}/step-1.pt.tmp", b"weights")
        move(f"{bucket.uri}/step-1.pt.tmp", f"{bucket.uri}/step-1.pt")
        assert os.listdir(folder) == ["step-1.pt"]
    files.makedirs(f"{bucket.uri}/tmp-checkpoint-2", exist_ok=True)
    files.pipe(f"{bucket.uri}/tmp-checkpoint-2/weights.bin", b"weights")
    files.mv(f"{bucket.uri}/tmp-checkpoint-2", f"{bucket.uri}/checkpoint-2", recursive=True)
    assert sorted(os.listdir(folder)) == ["checkpoint-2", "step-1.pt"]


def test_a_folder_that_is_moved_over_an_older_one_replaces_its_files_and_keeps_the_others(
    files: Any, bucket: Bucket, folder: Path
) -> None:
    for launch, rank in ((0, 0), (0, 1), (1, 0)):
        files.pipe(f"{bucket.uri}/tmp-checkpoint-2/part/{rank}.bin", f"launch {launch}".encode())
        files.mv(f"{bucket.uri}/tmp-checkpoint-2", f"{bucket.uri}/checkpoint-2", recursive=True)
    assert os.listdir(folder) == ["checkpoint-2"]
    found = {path.name: path.read_text() for path in (folder / "checkpoint-2" / "part").iterdir()}
    assert found == {"0.bin": "launch 1", "1.bin": "launch 0"}


def test_copies_go_from_the_folder_to_the_store_and_back(
    files: Any, plain: Any, bucket: Bucket, folder: Path
) -> None:
    files.pipe(f"{bucket.uri}/step-1/weights.bin", b"weights")
    files.copy(f"{bucket.uri}/step-1", f"{bucket.uri}-exported/model", recursive=True)
    assert plain.cat(f"{bucket.uri}-exported/model/weights.bin") == b"weights"
    files.copy(f"{bucket.uri}-exported/model/weights.bin", f"{bucket.uri}/step-2.bin")
    assert (folder / "step-2.bin").read_bytes() == b"weights"


def test_text_is_written_and_appended_to(files: Any, plain: Any, bucket: Bucket, folder: Path) -> None:
    with files.open(f"{bucket.uri}/latest", "w") as file:
        file.write("step-1")
    with files.open(f"{bucket.uri}/latest", "a") as file:
        file.write("0")
    assert (folder / "latest").read_text() == "step-10"
    plain.pipe(f"{bucket.uri}/step-1.pt", b"in the store")
    with files.open(f"{bucket.uri}/step-1.pt", "ab") as file:
        file.write(b", and more")
    assert (folder / "step-1.pt").read_bytes() == b"in the store, and more"


def test_other_places_and_other_names_are_those_of_the_store(
    files: Any, plain: Any, bucket: Bucket, folder: Path
) -> None:
    for path in (f"{bucket.uri}-data/step-1.pt", f"{bucket.uri}/metrics.json", f"{bucket.uri}/preds/a.npz"):
        files.pipe(path, b"theirs")
        assert plain.cat(path) == b"theirs"
    files.touch(f"{bucket.uri}/done.txt")
    assert plain.exists(f"{bucket.uri}/done.txt")
    files.rm(f"{bucket.uri}/preds", recursive=True)
    assert not plain.exists(f"{bucket.uri}/preds")
    assert not folder.exists()


@pytest.mark.parametrize(
    "path, file",
    [
        ("b@n/gpt/snapshot.pt", "snapshot.pt"),
        ("b/gpt/snapshot.pt", "snapshot.pt"),
        ("b@n/gpt/step-1/rank/0.bin", "step-1/rank/0.bin"),
        ("b@other/gpt/snapshot.pt", None),
        ("c@n/gpt/snapshot.pt", None),
        ("b@n/gpt2/snapshot.pt", None),
        ("b@n/gpt", None),
        ("b@n/gpt/step-1/../../../etc/passwd", None),
        ("b@n/gpt//step-1", None),
        ("b@n/gpt/train-1a2b3c4d5e6f7a8b-g1/step-1.pt/manifest.json", None),
    ],
)
def test_a_path_below_the_uri_means_a_file_of_the_folder(path: str, file: str | None) -> None:
    places = Places(Path("/here"), "oci://b@n/gpt")
    assert places.file(path) == (Path("/here", file) if file else None)


@pytest.mark.parametrize(
    "name, pattern, expected",
    [
        ("snapshot.pt", None, True),
        ("step-100", None, True),
        ("epoch=3-step=200.ckpt", None, True),
        ("model.safetensors.tmp", None, True),
        ("step-100.pt.temp", None, True),
        ("latest", None, True),
        ("best", None, False),
        ("metrics.csv", None, False),
        ("config.json", None, False),
        ("events.out.tfevents.1700000000.host", None, False),
        ("best", "best|last", True),
        ("snapshot.pt", "best|last", False),
    ],
)
def test_only_names_that_are_clearly_checkpoints_count(
    name: str, pattern: str | None, expected: bool
) -> None:
    assert is_checkpoint(name, pattern) is expected


def test_a_folder_of_the_program_is_seen_where_only_this_node_has_it(
    files: Any, bucket: Bucket, folder: Path
) -> None:
    assert not files.exists(bucket.uri)
    files.pipe(f"{bucket.uri}/step-1/weights.bin", b"w" * 5)
    assert files.info(bucket.uri) == {"name": bucket.path, "size": 0, "type": "directory"}
    assert files.info(f"{bucket.uri}/step-1") == {
        "name": f"{bucket.path}/step-1",
        "size": 0,
        "type": "directory",
    }
    (listed,) = files.ls(f"{bucket.uri}/step-1", detail=True)
    written = (folder / "step-1" / "weights.bin").stat().st_mtime
    assert listed == {
        "name": f"{bucket.path}/step-1/weights.bin",
        "size": 5,
        "type": "file",
        "mtime": written,
    }
    assert files.ls(f"{bucket.uri}/step-1/weights.bin", detail=True) == [listed]


def test_what_both_have_is_listed_once_as_it_is_on_this_node(files: Any, plain: Any, bucket: Bucket) -> None:
    for name in ("step-1.pt", "step-3.pt"):
        plain.pipe(f"{bucket.uri}/{name}", b"in the store")
    files.pipe(f"{bucket.uri}/step-3.pt", b"here")
    files.pipe(f"{bucket.uri}/step-2.pt", b"here")
    listed = {each["name"].rpartition("/")[2]: each["size"] for each in files.ls(bucket.uri, detail=True)}
    assert listed == {"step-1.pt": 12, "step-2.pt": 4, "step-3.pt": 4}
    names = files.ls(bucket.uri)
    assert names == [f"{bucket.path}/step-{number}.pt" for number in (1, 2, 3)]


def test_what_the_folder_holds_besides_checkpoints_is_not_listed(
    files: Any, bucket: Bucket, folder: Path
) -> None:
    files.pipe(f"{bucket.uri}/step-1.pt", b"w")
    (folder / "notes.txt").write_text("not of the bucket")
    with files.open(f"{bucket.uri}/step-2.pt", "wb"):
        assert files.ls(bucket.uri) == [f"{bucket.path}/step-1.pt"]


def test_a_checkpoint_moves_from_the_store_to_the_folder_and_back(
    files: Any, plain: Any, bucket: Bucket, folder: Path
) -> None:
    plain.pipe(f"{bucket.uri}/step-1.bin", b"weights")
    files.mv(f"{bucket.uri}/step-1.bin", f"{bucket.uri}/step-2.bin")
    assert (folder / "step-2.bin").read_bytes() == b"weights"
    assert not plain.exists(f"{bucket.uri}/step-1.bin")
    files.rename(f"{bucket.uri}/step-2.bin", f"{bucket.uri}-exported/model.bin")
    assert os.listdir(folder) == []
    assert plain.cat(f"{bucket.uri}-exported/model.bin") == b"weights"


def test_a_copy_of_nothing_is_an_error_and_leaves_nothing(files: Any, bucket: Bucket, folder: Path) -> None:
    for move in (files.copy, files.mv):
        with pytest.raises(FileNotFoundError):
            move(f"{bucket.uri}/step-1.bin", f"{bucket.uri}/step-2.bin")
    assert not folder.exists()


def test_an_addition_to_what_cannot_be_read_is_an_error_and_leaves_nothing(
    files: Any, bucket: Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.pipe(f"{bucket.uri}/step-1.pt", b"before")
    real = files.open

    def refuse(path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode == "rb":
            raise OSError("the store does not answer")
        return real(path, mode, **kwargs)

    monkeypatch.setattr(files, "open", refuse)
    with pytest.raises(OSError, match="does not answer"):
        files.open(f"{bucket.uri}/step-1.pt", "ab")
    assert os.listdir(folder) == ["step-1.pt"]
    assert (folder / "step-1.pt").read_bytes() == b"before"


def test_folders_and_empty_files_are_made_and_deleted_where_the_checkpoints_are(
    files: Any, plain: Any, bucket: Bucket, folder: Path
) -> None:
    files.mkdir(f"{bucket.uri}/step-1/part")
    files.mkdir(f"{bucket.uri}/step-1/part")
    files.makedirs(f"{bucket.uri}/step-2")
    files.touch(f"{bucket.uri}/latest")
    assert sorted(os.listdir(folder)) == ["latest", "step-1", "step-2"]
    assert (folder / "latest").read_bytes() == b""
    files.rmdir(f"{bucket.uri}/step-1/part")
    assert os.listdir(folder / "step-1") == []
    plain.pipe(f"{bucket.uri}/step-3.pt", b"in the store")
    files.bulk_delete([f"{bucket.path}/latest", f"{bucket.path}/step-3.pt"])
    assert sorted(os.listdir(folder)) == ["step-1", "step-2"]
    assert not plain.exists(f"{bucket.uri}/step-3.pt")


def test_only_names_of_killed_processes_that_are_a_minute_old_are_deleted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_saves, "time", types.SimpleNamespace(time=lambda: 1000.0))
    folder.mkdir()
    for name, age in (
        (".ocidist-a.tmp", 60),
        (".ocidist-b.tmp", 59),
        ("step-1.pt", 600),
        (".ocidist-c", 600),
    ):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (1000 - age, 1000 - age))
    delete_left_behind(folder)
    assert sorted(path.name for path in folder.iterdir()) == [".ocidist-b.tmp", ".ocidist-c", "step-1.pt"]


def test_a_process_says_once_where_its_checkpoints_go_and_then_looks_for_what_was_left_behind(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.mkdir()
    left = folder / ".ocidist-left.tmp"
    for number in (1, 2):
        left.write_bytes(b"half")
        os.utime(left, (0, 0))
        begin_save(folder, folder / f"step-{number}.pt", f"oci://b@n/step-{number}.pt").close()
        assert left.exists() == (number == 2)
    assert capsys.readouterr().err == (
        f"ocidist: oci://b@n/step-1.pt is written to {folder / 'step-1.pt'}, from where this node uploads it\n"
    )


@pytest.mark.parametrize(
    "path, is_it",
    [
        ("b@n/gpt", True),
        ("b@n/gpt/", True),
        ("b/gpt", True),
        ("b@n", False),
        ("b@n/gpt/step-1", False),
        ("b@other/gpt", False),
        ("c@n/gpt", False),
    ],
)
def test_the_uri_itself_is_known(path: str, is_it: bool) -> None:
    assert Places(Path("/here"), "oci://b@n/gpt").is_root(path) is is_it


@pytest.mark.parametrize("uri", ["oci://b/gpt", "oci://b@n/gpt", "oci://b@n/gpt/"])
@pytest.mark.parametrize("path", ["b@n/gpt/step-1.pt", "b/gpt/step-1.pt"])
def test_a_bucket_is_known_with_and_without_its_namespace(uri: str, path: str) -> None:
    assert Places(Path("/here"), uri).file(path) == Path("/here/step-1.pt")


@pytest.mark.parametrize("path", ["b@n/gpt/step-1/./w.bin", "b@n/gpt/step-1//w.bin", "b@n/gpt/step-1/.."])
def test_a_path_that_leads_elsewhere_means_no_file(path: str) -> None:
    assert Places(Path("/here"), "oci://b@n/gpt").file(path) is None


@pytest.mark.parametrize(
    "name, expected",
    [
        ("MODEL.PT", True),
        ("my.model.pt", True),
        ("pt", False),
        ("weights", False),
        ("step-1.tmp", True),
        ("", False),
    ],
)
def test_a_name_without_a_number_counts_by_its_ending(name: str, expected: bool) -> None:
    assert is_checkpoint(name) is expected


def test_the_jobs_pattern_decides_for_files_too() -> None:
    places = Places(Path("/here"), "oci://b@n/gpt", pattern="best|last")
    assert places.file("b@n/gpt/best/w.bin") == Path("/here/best/w.bin")
    assert places.file("b@n/gpt/step-1.pt") is None


def test_a_folder_is_deleted_only_where_that_is_asked_for(files: Any, bucket: Bucket, folder: Path) -> None:
    files.pipe(f"{bucket.uri}/step-1/weights.bin", b"w")
    with pytest.raises(OSError, match="step-1"):
        files.rm(f"{bucket.uri}/step-1")
    assert (folder / "step-1" / "weights.bin").exists()


def test_a_folder_that_is_there_already_is_no_error(files: Any, bucket: Bucket, folder: Path) -> None:
    for _ in range(2):
        files.makedirs(f"{bucket.uri}/step-1")
    assert os.listdir(folder) == ["step-1"]


def test_a_save_that_is_discarded_never_appears(folder: Path) -> None:
    folder.mkdir()
    save = begin_save(folder, folder / "step-1.pt", "oci://b@n/step-1.pt")
    save.write(b"half")
    save.discard()
    assert os.listdir(folder) == []


# A save by itself


def a_save(folder: Path, name: str = "step-1.pt", *, autocommit: bool = True) -> checkpoint_saves.Save:
    return begin_save(folder, folder / name, f"oci://b@n/{name}", autocommit=autocommit)


def unfinished_in(folder: Path) -> list[Path]:
    return sorted(folder.glob(".ocidist-*"))


def test_a_save_has_its_name_once_it_is_closed(folder: Path) -> None:
    with a_save(folder, "step-1/rank/0.bin") as save:
        save.write(b"weights")
        save.flush()
        assert len(unfinished_in(folder)) == 1
        assert not (folder / "step-1").exists()
    save.close()
    assert (folder / "step-1/rank/0.bin").read_bytes() == b"weights"
    assert unfinished_in(folder) == []


def save_half(folder: Path) -> None:
    with a_save(folder) as save:
        save.write(b"half")
        _ = 1 / 0


def test_an_exception_that_came_after_the_save_was_begun_ends_it_and_one_before_does_not(
    folder: Path,
) -> None:
    with pytest.raises(ZeroDivisionError):
        save_half(folder)
    assert os.listdir(folder) == []
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with a_save(folder) as save:
            save.write(b"the last words")
    assert (folder / "step-1.pt").read_bytes() == b"the last words"
    assert save._handled is None, "an exception that is kept keeps all that its frames hold"


def test_a_save_is_whole_only_if_all_of_it_could_be_written(folder: Path) -> None:
    with a_save(folder) as save:
        save.write(b"half")
        with pytest.raises(TypeError):
            save.write("no bytes")
    assert os.listdir(folder) == []
    # A disk that is full shows it when the last bytes leave the buffer.
    full = checkpoint_saves.Save(io.FileIO("/dev/full", "wb"), folder / "unfinished", folder / "step-1.pt")
    (folder / "unfinished").write_bytes(b"half")
    assert full.write(b"weights") == 7
    with pytest.raises(OSError, match="No space"):
        full.close()
    assert os.listdir(folder) == []


def test_an_interpreter_that_ends_finishes_no_save(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = a_save(folder)
    with monkeypatch.context() as ending:
        ending.setattr(sys, "is_finalizing", lambda: True)
        save.close()
    assert os.listdir(folder) == []


def is_locked(path: Path) -> bool:
    with path.open("r+b") as file:
        return not checkpoint_saves._lock(file)


def test_a_save_of_a_transaction_is_locked_until_it_is_committed(folder: Path) -> None:
    save = a_save(folder, autocommit=False)
    save.write(b"weights")
    save.close()
    (unfinished,) = folder.iterdir()
    assert is_locked(unfinished)
    save.commit()
    assert os.listdir(folder) == ["step-1.pt"]
    assert (folder / "step-1.pt").read_bytes() == b"weights"
    assert not is_locked(folder / "step-1.pt")


@pytest.mark.parametrize("autocommit", [True, False])
def test_what_is_discarded_or_failed_before_is_never_committed(folder: Path, autocommit: bool) -> None:
    for end in ("discard", "commit"):
        save = a_save(folder, autocommit=autocommit)
        with contextlib.suppress(TypeError):
            save.write(b"half" if end == "discard" else "no bytes")
        getattr(save, end)()
        assert save.closed
        assert os.listdir(folder) == []
    closed = a_save(folder, autocommit=False)
    closed.close()
    closed.discard()
    assert os.listdir(folder) == []


def test_a_commit_of_what_has_its_name_already_changes_nothing(folder: Path) -> None:
    save = a_save(folder)
    save.write(b"weights")
    save.commit()
    assert (folder / "step-1.pt").read_bytes() == b"weights"
    assert unfinished_in(folder) == []


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_save_that_is_dropped_takes_the_place_of_no_other_file(folder: Path, autocommit: bool) -> None:
    with a_save(folder) as save:
        save.write(b"before")
    before = (folder / "step-1.pt").stat().st_ino
    a_save(folder, autocommit=autocommit).write(b"after")
    gc.collect()
    assert (folder / "step-1.pt").read_bytes() == (b"after" if autocommit else b"before")
    assert (folder / "step-1.pt").stat().st_ino == before
    assert unfinished_in(folder) == []


def test_saves_of_one_folder_do_not_disturb_one_another(folder: Path) -> None:
    place = folder / "deep" / "below"
    saves = [begin_save(place, place / f"step-{step}.pt", f"oci://b@n/step-{step}.pt") for step in range(2)]
    assert len(unfinished_in(place)) == 2
    for step, save in enumerate(saves):
        save.write(f"of {step}".encode())
        save.close()
    assert [(place / f"step-{step}.pt").read_text() for step in range(2)] == ["of 0", "of 1"]


def test_what_is_left_behind_beside_a_folder_that_is_just_replaced_is_deleted(folder: Path) -> None:
    for name in "ac":
        (folder / f".ocidist-{name}.tmp").mkdir(parents=True)
    (folder / ".ocidist-b.tmp").write_bytes(b"half")
    os.utime(folder / ".ocidist-b.tmp", (0, 0))
    delete_left_behind(folder)
    assert [path.name for path in unfinished_in(folder)] == [".ocidist-a.tmp", ".ocidist-c.tmp"]


# A move by itself


def test_what_is_moved_makes_the_folders_above_it_and_takes_the_place_of_a_file(folder: Path) -> None:
    folder.mkdir()
    for target in ("step-1.pt", "step-1.pt", "deep/below/step-1.pt"):
        (folder / "aside").write_text(target)
        checkpoint_paths._move(folder / "aside", folder / target, folder)
        assert (folder / target).read_text() == target
    checkpoint_paths._move(folder / "deep", folder / "step-2", folder)
    assert (folder / "step-2/below/step-1.pt").exists()
    assert sorted(os.listdir(folder)) == ["step-1.pt", "step-2"]


def test_a_folder_that_is_moved_onto_another_has_the_files_of_both_and_its_own_where_both_have_one(
    folder: Path,
) -> None:
    older, newer = ["a.bin", "below/b.bin", "below/c.bin", "not/there/d.bin"], ["a.bin", "below/b.bin"]
    for place, names in (("step-1", older), ("aside", newer)):
        for name in names:
            (folder / place / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / place / name).write_text(place)
    checkpoint_paths._move(folder / "aside", folder / "step-1", folder)
    found = {name: (folder / "step-1" / name).read_text() for name in older}
    assert found == {name: "aside" if name in newer else "step-1" for name in older}
    assert os.listdir(folder) == ["step-1"]


def test_a_folder_is_moved_onto_another_though_the_older_ones_cannot_be_deleted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Path, *, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError("not yours")

    monkeypatch.setattr(checkpoint_paths.shutil, "rmtree", refused)
    for number in range(3):
        (folder / f"aside-{number}").mkdir(parents=True)
        (folder / f"aside-{number}" / "a.bin").write_text(str(number))
        checkpoint_paths._move(folder / f"aside-{number}", folder / "step-1", folder)
        assert (folder / "step-1" / "a.bin").read_text() == str(number)
    shown = [name for name in os.listdir(folder) if not name.startswith(".")]
    assert shown == ["step-1"]


def test_a_save_is_renamed_into_place_and_one_of_a_transaction_that_failed_is_gone_before_the_commit(
    folder: Path,
) -> None:
    save = a_save(folder)
    written = unfinished_in(folder)[0].stat().st_ino
    save.close()
    assert (folder / "step-1.pt").stat().st_ino == written
    (folder / "unfinished").write_bytes(b"half")
    full = checkpoint_saves.Save(
        io.FileIO("/dev/full", "wb"), folder / "unfinished", folder / "step-2.pt", autocommit=False
    )
    full.write(b"weights")
    with pytest.raises(OSError, match="No space"):
        full.close()
    assert os.listdir(folder) == ["step-1.pt"]
    full.commit()
    assert os.listdir(folder) == ["step-1.pt"]
