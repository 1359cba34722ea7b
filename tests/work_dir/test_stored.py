"""The checkpoint of an ended gang, as a store shows it from look to look: one bad answer ends nothing."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import Cause, StorageError
from airflow_provider_ocidist.gangs.actions import Fail, Succeed, Wait
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.kept_evidence import Kept, Missed
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import (
    Lacking,
    NodeState,
    NodeStatus,
    RunKey,
    RunRecord,
    RunRef,
    RunStatus,
)
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import checkpoints
from airflow_provider_ocidist.storage.manifests import MANIFEST
from airflow_provider_ocidist.work_dir import stored as stored_module
from airflow_provider_ocidist.work_dir.stored import StoredCheckpoints

FENCE = Fence(generation=1, attempt=1)
LOOKS = ("whole", "no manifest", "no file", "cut short", "unreadable")


class Folder:
    """A folder of checkpoints, which shows the newest one as a test wants it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        source = place.parent / "step-10"
        source.mkdir()
        for name in ("model.pt", "optimizer.pt"):
            (source / name).write_bytes(name.encode() * 20)
        self.newest = self.publish(source, 1)
        (self.content,) = (path.parent for path in place.rglob(MANIFEST))
        self.files = {path.name: path.read_bytes() for path in self.content.iterdir()}

    def publish(self, source: Path, sequence: int) -> CheckpointRef:
        save = checkpoints.SaveFacts(step=10 * sequence, fence=FENCE, sequence=sequence, proof="a test")
        return checkpoints.publish(source, str(self.place), save)

    def show(self, how: str) -> None:
        if self.content.is_file():
            self.content.unlink()
        self.content.mkdir(exist_ok=True)
        for name, content in self.files.items():
            (self.content / name).write_bytes(content)
        match how:
            case "no manifest":
                (self.content / MANIFEST).unlink()
            case "no file":
                (self.content / "model.pt").unlink()
            case "cut short":
                (self.content / "model.pt").write_bytes(b"x")
            case "unreadable":
                for path in self.content.iterdir():
                    path.unlink()
                self.content.rmdir()
                self.content.write_bytes(b"no folder")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "checkpoints")


def ref_of(folder: Folder, run_dir: str = "dir") -> RunRef:
    return RunRef(
        backend="x",
        key=RunKey(dag_id="d", run_id="r", task_id="t", generation=1, attempt=1),
        nodes=1,
        job_id="job",
        run_ids=("run0",),
        run_dir=run_dir,
        submitted_at=0.0,
        checkpoints_uri=str(folder.place),
    )


def ended(checkpoint: CheckpointRef, phase: Phase = Phase.DONE) -> RunStatus:
    report = NodeReport(
        rank=0, phase=phase, address="", started_at=0.0, heartbeat_at=0.0, exit_code=0, checkpoint=checkpoint
    )
    return RunStatus(nodes=(NodeStatus(rank=0, run_id="run0", state=NodeState.SUCCEEDED, report=report),))


def test_a_place_that_does_not_answer_holds_up_a_look_once_and_its_answer_counts_when_it_comes(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_module, "ANSWERS_WITHIN", 0.3)
    stored, status, ref = StoredCheckpoints(), ended(folder.newest), ref_of(folder)
    manifest = folder.content / MANIFEST
    manifest.unlink()
    # Who reads it waits in the kernel for a writer, as for a mount whose server is gone.
    os.mkfifo(manifest)
    found: list[RunStatus] = []
    look = threading.Thread(
        target=lambda: found.extend(stored.with_checkpoint(status, ref, OciAccess()) for _ in range(50)),
        daemon=True,
    )
    look.start()
    look.join(30)
    assert len(found) == 50, "it waits for the place, at each look"
    assert not any(each.checkpoint_readable for each in found)
    assert "has not answered yet" in str(found[0].checkpoint_problem)
    manifest.write_bytes(folder.files[MANIFEST])
    late: RunStatus | None = None
    deadline = time.monotonic() + 30
    while late is None or not late.checkpoint_readable:
        assert time.monotonic() < deadline
        late = stored.with_checkpoint(status, ref, OciAccess())
    assert late.checkpoint_problem is None


@pytest.mark.parametrize("answers", [True, False])
def test_a_place_is_asked_anew_after_minutes_unless_its_late_answer_has_come(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setattr(stored_module, "ANSWERS_WITHIN", 0.3)
    now, calls, go_on, over = [0.0], [0], threading.Event(), threading.Event()

    def look(*_: object) -> tuple[str | None, CheckpointRef | None]:
        calls[0] += 1
        if calls[0] == 1:
            go_on.wait(60)
            over.set()
        return None, None

    monkeypatch.setattr(stored_module, "_look", look)
    stored, status, ref = StoredCheckpoints(lambda: now[0]), ended(folder.newest), ref_of(folder)
    assert not stored.with_checkpoint(status, ref, OciAccess()).checkpoint_readable
    if answers:
        go_on.set()
        assert over.wait(30)
        call = stored._left_open[ref.run_dir].call
        assert call.is_made(30)
    now[0] = stored_module.ASKED_AGAIN
    assert stored.with_checkpoint(status, ref, OciAccess()).checkpoint_readable
    assert calls[0] == (1 if answers else 2)
    go_on.set()


@pytest.mark.parametrize("seed", range(12))
def test_a_checkpoint_is_damaged_only_when_that_was_seen_several_times_over_two_minutes(
    folder: Folder, seed: int
) -> None:
    dice, now = random.Random(seed), 0.0
    stored, status, ref = StoredCheckpoints(lambda: now), ended(folder.newest), ref_of(folder)
    damaged: list[float] = []
    for _ in range(40):
        now += dice.choice((1.0, 15.0, 30.0, 121.0))
        how = dice.choices(LOOKS, (1, 2, 2, 2, 2))[0]
        folder.show(how)
        seen = stored.with_checkpoint(status, ref, OciAccess())
        if how == "whole":
            damaged.clear()
        elif how != "unreadable":
            damaged.append(now)
        is_certain = how not in ("whole", "unreadable") and len(damaged) >= 4 and now - damaged[0] >= 120
        assert seen.checkpoint_readable is (how == "whole" or is_certain), how
        assert (seen.checkpoint_problem is None) is (how == "whole")
        if is_certain:
            assert "the newest checkpoint is not whole" in str(seen.checkpoint_problem)


def test_each_gang_has_evidence_of_its_own_and_none_once_it_is_forgotten(folder: Folder) -> None:
    now = [0.0]
    stored, status = StoredCheckpoints(lambda: now[0]), ended(folder.newest)
    folder.show("no file")
    seen: dict[str, RunStatus] = {}
    for now[0] in (0.0, 50.0, 100.0, 150.0):
        for run_dir in ("one", "forgotten"):
            seen[run_dir] = stored.with_checkpoint(status, ref_of(folder, run_dir), OciAccess())
        stored.forget(ref_of(folder, "forgotten"))
    late = stored.with_checkpoint(status, ref_of(folder, "late"), OciAccess())
    assert [each.checkpoint_readable for each in (seen["one"], seen["forgotten"], late)] == [
        True,
        False,
        False,
    ]


def test_a_damaged_checkpoint_that_a_newer_one_has_replaced_is_no_problem(folder: Folder) -> None:
    newer = folder.place.parent / "step-20"
    newer.mkdir()
    (newer / "model.pt").write_bytes(b"model")
    second = folder.publish(newer, 2)
    folder.show("no manifest")
    seen = StoredCheckpoints().with_checkpoint(ended(folder.newest), ref_of(folder), OciAccess())
    assert (seen.checkpoint_problem, seen.checkpoint_readable, seen.checkpoint) == (None, True, second)


def test_a_gang_that_lives_is_not_looked_at(folder: Folder) -> None:
    folder.show("no manifest")
    (node,) = ended(folder.newest).nodes
    alive = RunStatus(nodes=(replace(node, state=NodeState.RUNNING),))
    assert StoredCheckpoints().with_checkpoint(alive, ref_of(folder), OciAccess()) is alive


# Reports that a list does not have


def succeeded(*reported: bool) -> RunStatus:
    """Return the state of a gang whose nodes have all succeeded; a list has the reports of some."""
    done = NodeReport(rank=0, phase=Phase.DONE, address="", started_at=0.0, heartbeat_at=0.0, exit_code=0)
    nodes = (
        NodeStatus(
            rank=rank,
            run_id=f"run{rank}",
            state=NodeState.SUCCEEDED,
            report=replace(done, rank=rank) if there else None,
        )
        for rank, there in enumerate(reported)
    )
    return RunStatus(nodes=tuple(nodes))


@pytest.mark.parametrize("seed", range(12))
def test_a_report_is_missing_only_when_that_was_seen_several_times_over_two_minutes(
    folder: Folder, seed: int
) -> None:
    dice, now = random.Random(seed), 0.0
    stored, ref, known = StoredCheckpoints(lambda: now), ref_of(folder), RunRecord(ref=ref_of(folder))
    lacking: list[float] = []
    for _ in range(40):
        now += dice.choice((1.0, 15.0, 30.0, 121.0))
        how = dice.choices(("whole", "lacks one", "lacks all", "unreadable"), (1, 4, 2, 2))[0]
        status = {
            "whole": succeeded(True, True, True),
            "lacks one": succeeded(True, True, False),
            "lacks all": succeeded(False, False, False),
            "unreadable": replace(succeeded(False, False, False), reports_readable=False),
        }[how]
        seen = stored.with_checkpoint(status, ref, OciAccess())
        if how == "whole":
            lacking.clear()
        elif how != "unreadable":
            lacking.append(now)
        is_certain = how.startswith("lacks") and len(lacking) >= 4 and now - lacking[0] >= 120
        action = decide(known, seen, now)
        if how == "whole":
            assert isinstance(action, Succeed)
        elif is_certain:
            assert isinstance(action, Fail)
            assert action.cause is Cause.NODE
        else:
            assert action == Wait(), how


def test_a_gang_has_no_evidence_of_missing_reports_once_it_is_forgotten(folder: Folder) -> None:
    now, ref = [0.0], ref_of(folder)
    stored, lacks = StoredCheckpoints(lambda: now[0]), succeeded(True, False)
    for now[0] in (0.0, 50.0, 100.0, 150.0):
        seen = stored.with_checkpoint(lacks, ref, OciAccess())
    assert seen.reports_readable
    stored.forget(ref)
    assert not stored.with_checkpoint(lacks, ref, OciAccess()).reports_readable


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["report", "checkpoint"])
def test_looks_of_one_process_each_count_as_those_of_one(folder: Folder, kind: str, seed: int) -> None:
    dice, ref = random.Random(seed), ref_of(folder)
    print("seed", seed)
    kept: Mapping[str, Missed] = {}
    if kind == "checkpoint":
        folder.show("cut short")
    now, looks = [0.0], 0
    while True:
        stored = StoredCheckpoints(lambda: now[0])
        stored.recall(kept)
        looks += 1
        status = succeeded(True, False) if kind == "report" else ended(folder.newest)
        seen = stored.with_checkpoint(status, ref, OciAccess())
        if not seen.doubtful:
            break
        gap = dice.choice((10.0, 45.0, 130.0))
        kept = codec.decode(Kept, codec.encode(Kept(missed=stored.missed(ref)))).after(gap).missed
        now[0] += gap
        assert looks < 20
    assert looks >= 4
    assert now[0] >= 120
    assert seen.reports_readable
    assert seen.checkpoint_readable


# A last report that was lost


def with_phases(checkpoint: CheckpointRef | None, *nodes: tuple[NodeState, Phase | None]) -> RunStatus:
    """Return the state of a gang whose nodes have ended so, by the service, and reported this phase at last."""
    (first,) = ended(checkpoint).nodes if checkpoint else succeeded(True).nodes
    assert first.report is not None
    return RunStatus(
        nodes=tuple(
            NodeStatus(
                rank=rank,
                run_id=f"run{rank}",
                state=state,
                report=replace(first.report, rank=rank, phase=phase) if phase else None,
            )
            for rank, (state, phase) in enumerate(nodes)
        )
    )


WELL, FAILED = NodeState.SUCCEEDED, NodeState.FAILED


@pytest.mark.parametrize(
    "nodes, is_looked_for",
    [
        ([(WELL, Phase.SAVING), (WELL, Phase.DONE)], True),
        ([(WELL, Phase.DONE), (WELL, Phase.DONE)], False),
        # What has failed has published nothing more than it says.
        ([(FAILED, Phase.SAVING), (WELL, Phase.DONE)], False),
        ([(FAILED, None), (FAILED, Phase.TRAINING)], False),
    ],
)
def test_the_store_is_asked_for_the_newest_where_a_node_that_has_done_its_part_did_not_say_so(
    folder: Folder, nodes: list[tuple[NodeState, Phase | None]], *, is_looked_for: bool
) -> None:
    newer = folder.place.parent / "step-20"
    newer.mkdir()
    (newer / "model.pt").write_bytes(b"model")
    second = folder.publish(newer, 2)
    seen = StoredCheckpoints().with_checkpoint(
        with_phases(folder.newest, *nodes), ref_of(folder), OciAccess()
    )
    assert seen.stored == (second if is_looked_for else None)
    nowhere = replace(ref_of(folder), checkpoints_uri=None)
    assert StoredCheckpoints().with_checkpoint(with_phases(None, *nodes), nowhere, OciAccess()).stored is None


def test_a_place_that_cannot_be_read_is_named_by_the_checkpoint_or_as_the_folder_of_all(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.show("unreadable")
    seen = StoredCheckpoints().with_checkpoint(ended(folder.newest), ref_of(folder), OciAccess())
    assert str(seen.checkpoint_problem).startswith(f"the checkpoint {folder.newest.uri} cannot be read: ")

    def is_down(*_: object) -> None:
        raise StorageError("no answer")

    monkeypatch.setattr(checkpoints, "newest", is_down)
    seen = StoredCheckpoints().with_checkpoint(
        with_phases(None, (WELL, Phase.SAVING)), ref_of(folder), OciAccess()
    )
    assert not seen.checkpoint_readable
    assert (
        seen.checkpoint_problem
        == f"the checkpoint {ref_of(folder).checkpoints_uri} cannot be read: no answer"
    )


def test_the_same_checkpoint_replaces_no_damaged_one(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.show("no file")
    monkeypatch.setattr(checkpoints, "newest", lambda *_: folder.newest)
    seen = StoredCheckpoints().with_checkpoint(ended(folder.newest), ref_of(folder), OciAccess())
    assert "the newest checkpoint is not whole" in str(seen.checkpoint_problem)
    assert (seen.checkpoint_readable, seen.proved, seen.doubtful) == (False, (), (Lacking.CHECKPOINT,))
