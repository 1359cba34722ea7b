"""Retention keeps the last, every n-th and the best; never loses the newest, never acts for a late attempt."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import Fenced, StorageError
from airflow_provider_ocidist.job import Best, Checkpoints
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage import fences, retention
from airflow_provider_ocidist.storage.checkpoint_names import place
from airflow_provider_ocidist.storage.checkpoints import complete, newest
from airflow_provider_ocidist.storage.companions import MOST
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest, ManifestFile
from airflow_provider_ocidist.storage.retention import Retention, retain, superfluous
from airflow_provider_ocidist.storage.stores import local
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.agent.save.naming import Name, some_names
from tests.storage.published import publish
from tests.storage.unruly_proxy import Fault

SEED = int(os.environ.get("RETENTION_SEED", "20261122"))
FIRST = Fence(attempt=1)


def manifest(
    order: int, *, attempt: int = 1, step: int | None = None, loss: float | None = None, **metrics: float
):
    return Manifest(
        version=2,
        name="x",
        step=step,
        loss=loss,
        created_at=0.0,
        files=(ManifestFile(path="x", size=1, sha256=""),),
        attempt=attempt,
        sequence=order,
        metrics=metrics,
    )


def left(manifests: list[Manifest], rule: Retention, fence: Fence = FIRST) -> list[int]:
    gone = superfluous(manifests, rule, fence)
    return [each.sequence for each in manifests if each not in gone]


def test_the_last_k_stay_whatever_their_steps():
    found = [
        manifest(5, step=1),
        manifest(4, step=900),
        manifest(3),
        manifest(2, step=2),
        manifest(1, step=7),
    ]
    assert left(found, Retention(keep=2)) == [5, 4]
    assert left(found, Retention(keep=9)) == [5, 4, 3, 2, 1]


@pytest.mark.parametrize("keep", [1, 0, -3])
def test_the_newest_stays_whatever_the_rule(keep):
    assert left([manifest(2), manifest(1)], Retention(keep=keep)) == [2]


def test_every_nth_step_stays_once_by_its_newest():
    found = [manifest(6, step=205), manifest(5, step=200), manifest(4, step=150), manifest(3, step=100)]
    found += [manifest(2, step=100), manifest(1)]
    assert left(found, Retention(keep=1, every=100)) == [6, 5, 3]


def test_the_best_stays_and_of_equal_ones_the_newest():
    found = [
        manifest(5, loss=0.9),
        manifest(4, loss=0.2),
        manifest(3, loss=0.2),
        manifest(2),
        manifest(1, loss=0.5),
    ]
    assert left(found, Retention(keep=1, best=Best(metric="loss"))) == [5, 4]
    assert left(found, Retention(keep=1, best=Best(metric="loss", mode="max"))) == [5]
    assert left(found, Retention(keep=1, best=Best(metric="acc"))) == [5]


def test_the_best_by_a_metric_of_the_name_stays():
    found = [manifest(3, val_acc=0.1), manifest(2, val_acc=0.7), manifest(1, val_acc=0.5)]
    assert left(found, Retention(keep=1, best=Best(metric="val_acc", mode="max"))) == [3, 2]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_metric_that_is_no_number_is_never_the_best(value):
    found = [manifest(3, loss=0.9), manifest(2, loss=float(value)), manifest(1, loss=0.5)]
    assert left([*found[1:], manifest(0, loss=0.7)], Retention(keep=1, best=Best())) == [2, 1]
    for mode in ("min", "max"):
        assert 2 not in left(found, Retention(keep=1, best=Best(metric="loss", mode=mode)))


def test_nothing_of_a_later_attempt_is_superfluous():
    found = [manifest(2, attempt=2), manifest(1, attempt=2), manifest(9), manifest(8)]
    assert left(found, Retention(keep=1), Fence(attempt=1)) == [2, 1]
    assert left(found, Retention(keep=1), Fence(attempt=2)) == [2]


@pytest.mark.parametrize("number", range(20))
def test_what_any_rule_leaves_is_what_it_says(number):
    seed = random.Random(SEED + number)
    for _ in range(100):
        found = [
            manifest(
                order,
                attempt=seed.randrange(1, 4),
                step=seed.choice([None, seed.randrange(0, 400, 10)]),
                loss=seed.choice([None, seed.random()]),
            )
            for order in range(seed.randrange(1, 12))
        ]
        found.sort(key=lambda each: each.order, reverse=True)
        best = seed.choice([None, Best(metric="loss"), Best(metric="loss", mode="max")])
        rule = Retention(keep=seed.randrange(1, 5), every=seed.choice([None, 50, 100]), best=best)
        fence = Fence(attempt=seed.randrange(1, 4))
        gone = superfluous(found, rule, fence)
        says = (SEED + number, found, rule, fence)
        assert found[0] not in gone, says
        assert not any(each in gone for each in found[: rule.keep]), says
        assert not any(each.fence > fence for each in gone), says
        if rule.every:
            before = {each.step for each in found if each.step is not None and each.step % rule.every == 0}
            assert before <= {each.step for each in found if each not in gone}, says
        if best:
            losses = [each.loss for each in found if each.loss is not None]
            if losses:
                extreme = min(losses) if best.mode == "min" else max(losses)
                assert extreme in [each.loss for each in found if each not in gone], says
        kept = sum(each not in gone and each.fence <= fence for each in found)
        most = (
            rule.keep
            + len({each.step for each in found if each.step is not None}) * bool(rule.every)
            + bool(best)
        )
        assert kept <= most, says


def is_new_each_time(name: str) -> bool:
    placed = place(name)
    return placed is not None and placed.number is None and re.search("[-_][0-9a-f]{8}[.]", name) is not None


class Program:
    """A program that saves under some names at each of its steps, some more often; what is superfluous goes at once."""

    def __init__(self, dice: random.Random, names: Sequence[Name]) -> None:
        self.dice = dice
        self.often = [(name, dice.choice([1, 1, 2, 5])) for name in names]
        self.series = [name for name in names if not is_new_each_time(name(1))]
        """The names of which the newest has to stay: a word that is new each time makes no series."""
        self.tells_steps = dice.random() < 0.5
        self.rule = Retention(
            keep=dice.randint(1, 4),
            every=dice.choice([None, 50, 200]),
            best=dice.choice([None, Best(metric="loss"), Best(metric="loss", mode="max")]),
        )
        self.saved: list[tuple[Name, Manifest]] = []
        self.stored: list[Manifest] = []

    def run(self) -> None:
        attempt, sequence, step = 1, 0, 0
        for _ in range(50):
            step += 10
            if self.dice.random() < 0.06:
                # Another attempt, which goes on from an earlier step.
                attempt, sequence, step = attempt + 1, 0, max(10, step - self.dice.randrange(0, 60, 10))
            for name, often in self.often:
                if step // 10 % often == 0:
                    sequence += 1
                    self._save(name, step, manifest(sequence, attempt=attempt))

    def _save(self, name: Name, step: int, blank: Manifest) -> None:
        text = name(step // 10)
        placed = place(text)
        told = step if self.tells_steps else None
        new = replace(
            blank,
            name=text,
            step=placed.step if placed and placed.step is not None else told,
            loss=self.dice.choice([None, self.dice.random()]),
        )
        self.saved.append((name, new))
        before = [new, *self.stored]
        gone = superfluous(before, self.rule, new.fence)
        self.stored = [each for each in before if not any(each is other for other in gone)]
        self._check()

    def _check(self) -> None:
        says = (self.rule, [each.name for _, each in self.saved[-12:]], [each.name for each in self.stored])
        saves = [each for _, each in self.saved]
        self._require(saves[-max(1, self.rule.keep) :], "the last", says)
        if self.rule.every:
            multiples = {each.step: each for each in saves if each.step and each.step % self.rule.every == 0}
            self._require([*multiples.values()], "every n-th", says)
        if self.rule.best:
            losses = [each.loss for each in saves if each.loss is not None]
            extreme = min if self.rule.best.mode == "min" else max
            assert not losses or extreme(losses) in [each.loss for each in self.stored], ("the best", says)
        newest = [each for name, each in dict(self.saved).items() if name in self.series]
        self._require(newest, "the newest of each series", says)
        nth = len({each.step for each in saves}) if self.rule.every else 0
        most = (self.rule.keep + nth + 1) * 2 * (len(self.often) + MOST)
        assert len(self.stored) <= most, ("what is superfluous stays", says)

    def _require(self, wanted: Iterable[Manifest], which: str, says: object) -> None:
        lost = [each.name for each in wanted if not any(each is other for other in self.stored)]
        assert lost == [], (which, says)


@pytest.mark.parametrize("number", range(60))
def test_whatever_a_program_calls_its_saves_what_the_job_promises_stays(number):
    """The last, every n-th, the best, the newest, and the newest of each series of names (docs/job-file.md)."""
    print("seed", SEED, number)
    dice = random.Random(f"{SEED}.{number}")
    Program(dice, some_names(dice)).run()


def write(tmp_path: Path, name: str, content: str = "weights") -> Path:
    path = tmp_path / "program" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    return path


def test_an_attempt_that_counts_from_0_keeps_what_it_publishes(tmp_path):
    """`resume: false`: until now each was deleted as it came, for those of the former attempt had higher steps."""
    uri = str(tmp_path / "target")
    for step in (1000, 2000, 3000):
        publish(write(tmp_path, f"step-{step}.pt"), uri, step=step)
    again = Fence(attempt=2)
    for step in (1, 2, 3, 4):
        publish(write(tmp_path, f"step-{step}.pt"), uri, step=step, fence=again)
        retain(uri, Retention(keep=3), fence=again)
        assert newest(uri).step == step
    assert [found.step for found in complete(uri)] == [4, 3, 2]


def test_a_place_is_never_taken_again_for_another_version_of_one_name(tmp_path):
    """Who was handed the URI of the one before would find another content there."""
    uri = str(tmp_path / "target")
    seen = set()
    for number in range(6):
        seen.add(publish(write(tmp_path, "last.ckpt", f"version {number}"), uri, step=None).uri)
        retain(uri, Retention(keep=1), fence=FIRST)
    assert len(seen) == 6


def test_a_version_replaces_the_one_before_of_its_folder_and_no_other_save():
    """Two runs' checkpoints, or a copy that a person made, have the same numbers and names."""
    found = [manifest(3), manifest(2), manifest(2), manifest(2), manifest(1)]
    folders = ["c", "x.again-2", "kept/x", "x", "a"]
    gone = superfluous(found, Retention(keep=3), FIRST, folders)
    assert [folder for folder, each in zip(folders, found) if any(each is one for one in gone)] == ["x", "a"]


NAMES_OF_NO_STEP = ["epoch_{}", "model_{}.pt", "last.ckpt", "best-val_loss=0.{}.ckpt"]


@pytest.mark.parametrize("number", range(12))
def test_versions_of_one_save_count_once_whatever_step_the_program_has_reached(tmp_path, number):
    """The program adds a file to a published entry; meanwhile its step, which is in the folder's name, has moved."""
    print("seed", SEED, number)
    dice = random.Random(f"{SEED}.versions.{number}")
    uri, keep = str(tmp_path / "target"), dice.randint(1, 3)
    name, fence = dice.choice(NAMES_OF_NO_STEP), Fence(attempt=dice.randint(1, 3), launch=dice.randint(0, 2))
    step = None
    last: list[str] = []
    for sequence in range(1, 6):
        for version in range(dice.randint(1, 3)):
            if dice.random() < 0.7:
                step = (step or 0) + dice.randint(1, 600)
            content = f"{sequence} {version}"
            ref = publish(
                write(tmp_path, name.format(sequence), content),
                uri,
                step=step,
                fence=fence,
                sequence=sequence,
            )
            last[sequence - 1 :] = [ref.uri]
            retain(uri, Retention(keep=keep), fence=fence)
    stay = [each.uri for each in complete(uri)]
    assert stay[:keep] == last[::-1][:keep]
    # More stay of those that the newest needs beside it, but no former version.
    assert set(stay) <= set(last)


def test_a_copy_that_is_named_otherwise_is_no_version():
    found = [replace(manifest(2, step=9), name="epoch_3") for _ in range(4)]
    folders = ["epoch_3.step-9", "epoch_3.step-9-keep", "epoch_3.step-9.mine", "of-epoch_3.step-9"]
    assert superfluous(found, Retention(keep=4), FIRST, folders) == []


def test_a_copy_of_a_checkpoint_beside_it_is_deleted_only_by_a_rule(tmp_path):
    uri = str(tmp_path / "target")
    for step in (10, 20, 30):
        publish(write(tmp_path, f"step-{step}", "content"), uri, step=step)
    shutil.copytree(tmp_path / "target" / "step-30", tmp_path / "target" / "step-30-keep")
    assert retain(uri, Retention(keep=4), fence=FIRST) == ()


@pytest.mark.parametrize("lost", [None, "step-3", MANIFEST])
def test_the_disk_has_a_checkpoint_before_it_counts_and_an_older_one_is_deleted(tmp_path, monkeypatch, lost):
    """`lost`: the file of which the disk reports, once, that it has lost what was written."""
    out = tmp_path / "out"
    for step in (1, 2):
        publish(write(tmp_path, f"step-{step}"), str(out), step=step)
    before = {each.uri for each in complete(str(out))}
    real, synced, faults = local.fsync, [], [lost]

    def fsync(path: Path) -> None:
        real(path)
        if path.name == "step-3" and path.is_file():
            assert {each.uri for each in complete(str(out))} == before, (
                f"it counts before {path} is on the disk"
            )
        synced.append(path)
        if path.name in faults:
            faults.remove(path.name)
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(local, "fsync", fsync)
    if lost:
        with pytest.raises(StorageError, match="input/output error"):
            publish(write(tmp_path, "step-3"), str(out), step=3)
        assert {each.uri for each in complete(str(out))} == before
        # The next look of the kernel reports nothing more.
        assert retain(str(out), Retention(keep=2), fence=FIRST) == ()
        return
    (new,) = {publish(write(tmp_path, "step-3"), str(out), step=3).uri}
    folders = [folder for folder in Path(new).parents if folder.is_relative_to(out)]
    assert set(synced) >= {*Path(new).rglob("*"), Path(new), *folders}
    monkeypatch.setattr(local, "fsync", lambda path: pytest.fail(f"{path} was synced before"))
    assert len(retain(str(out), Retention(keep=2), fence=FIRST)) == 1


def test_a_late_attempt_deletes_nothing(tmp_path):
    uri = str(tmp_path / "target")
    for step in range(5):
        publish(write(tmp_path, f"step-{step}.pt"), uri, step=step)
    fences.advance_fence(open_store(uri), Fence(attempt=2))
    with pytest.raises(Fenced):
        retain(uri, Retention(keep=1), fence=Fence(attempt=1))
    assert len(complete(uri)) == 5


def test_the_fence_is_read_before_each_deletion(bucket, access, unruly, proxy, tmp_path):
    """A later attempt that begins while a retention runs ends it."""
    for step in range(1, 6):
        publish(write(tmp_path, f"step-{step}.pt"), bucket, step=step, access=access)
    store = open_store(bucket, access)
    proxy.faults = [Fault(method="DELETE", meanwhile=lambda: fences.advance_fence(store, Fence(attempt=2)))]
    with pytest.raises(Fenced):
        retain(bucket, Retention(keep=1), fence=FIRST, access=unruly)
    assert len(complete(bucket, access)) == 4


def test_what_nothing_proves_counts_in_nothing_and_stays(tmp_path):
    uri = str(tmp_path / "target")
    for step in (1, 2, 3):
        publish(write(tmp_path, f"step-{step}.pt"), uri, step=step)
    store = open_store(uri)
    long_ago = time.time() - 86_400
    store.write("unproved/step-4.pt/step-4.pt", b"half")
    os.utime(tmp_path / "target/unproved/step-4.pt/step-4.pt", (long_ago, long_ago))
    store.write("step-5.pt/step-5.pt", b"on its way")
    retain(uri, Retention(keep=2), fence=FIRST)
    assert [found.step for found in complete(uri)] == [3, 2]
    assert store.exists("unproved/step-4.pt/step-4.pt")
    assert store.exists("step-5.pt/step-5.pt")


@pytest.mark.parametrize("owner, is_removed", [(".attempt-3", False), (".attempt-2", True), ("", True)])
def test_old_remains_of_this_attempt_and_of_earlier_ones_are_removed(tmp_path, owner, is_removed):
    uri = str(tmp_path / "target")
    fence = Fence(attempt=2)
    store = open_store(uri)
    name = f"step-9.pt{owner}/step-9.pt"
    store.write(name, b"cut off")
    long_ago = time.time() - 86_400
    os.utime(tmp_path / "target" / name, (long_ago, long_ago))
    publish(write(tmp_path, "step-1.pt"), uri, step=1, fence=fence)
    retain(uri, Retention(keep=2), fence=fence)
    assert store.exists(name) is not is_removed


def test_a_manifest_of_a_later_version_is_left_alone(tmp_path):
    uri = str(tmp_path / "target")
    for step in (1, 2, 3):
        publish(write(tmp_path, f"step-{step}.pt"), uri, step=step)
    store = open_store(uri)
    text = store.read("step-1.pt/manifest.json").replace(b'"version": 2', b'"version": 99')
    store.write("step-1.pt/manifest.json", text)
    long_ago = time.time() - 86_400
    for name in ("step-1.pt", "manifest.json"):
        os.utime(tmp_path / "target/step-1.pt" / name, (long_ago, long_ago))
    retain(uri, Retention(keep=1), fence=FIRST)
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == [
        "fence.json",
        "step-1.pt",
        "step-3.pt",
    ]


class History:
    """Attempts that publish and retain, late and cut off, on one place; checks I4 and I5 after each."""

    def __init__(self, bucket, access, unruly, proxy, root: Path, number: int) -> None:
        self.uri, self.access, self.unruly, self.proxy, self.root = bucket, access, unruly, proxy, root
        self.seed = random.Random(SEED + number)
        self.highest = Fence()
        self.sequences: dict[Fence, int] = {}

    @property
    def store(self) -> Store:
        return open_store(self.uri, self.access)

    def act(self) -> Iterator[str]:
        fence = Fence(attempt=max(1, self.highest.attempt + self.seed.choice([-2, -1, 0, 0, 0, 0, 1])))
        before, listed = newest(self.uri, self.access), self.listed()
        action = self.seed.choice([self.publish, self.publish, self.retain, self.retain_cut_off])
        yield f"{action.__name__} by {fence}"
        try:
            published = action(fence)
        except Fenced:
            assert fence < self.highest
            assert self.listed() == listed
            return
        assert fence >= self.highest
        self.highest = fence
        after = newest(self.uri, self.access)
        if published:
            assert after == published
        else:
            assert after == before

    def publish(self, fence: Fence) -> CheckpointRef:
        self.sequences[fence] = sequence = self.sequences.get(fence, 0) + 1
        step = self.seed.choice([None, self.seed.randrange(30)])
        path = write(
            self.root, self.seed.choice(["last.ckpt", f"step-{self.seed.randrange(9)}.pt"]), f"{sequence}"
        )
        return publish(path, self.uri, step=step, fence=fence, sequence=sequence, access=self.access)

    def retain(self, fence: Fence) -> None:
        rule = Retention(keep=self.seed.randrange(1, 4), every=self.seed.choice([None, 10]))
        retain(self.uri, rule, fence=fence, access=self.access)

    def retain_cut_off(self, fence: Fence) -> None:
        self.proxy.faults = [Fault(method="DELETE", status=400, skip=self.seed.randrange(5), times=100)]
        try:
            retain(self.uri, Retention(keep=1), fence=fence, access=replace(self.unruly, max_attempts=1))
        except Fenced:
            raise
        except StorageError:
            pass
        finally:
            self.proxy.faults = []

    def listed(self) -> set[tuple[str, str | None]]:
        return {(entry.name, entry.etag) for entry in self.store.list()}


@pytest.mark.parametrize("number", range(4))
def test_no_history_of_attempts_loses_the_newest_or_lets_a_late_one_act(
    number, bucket, access, unruly, proxy, tmp_path
):
    history = History(bucket, access, unruly, proxy, tmp_path, number)
    told = [f"seed {SEED + number}"]
    for _ in range(25):
        for what in history.act():
            told.append(what)
            print(what)
    assert newest(bucket, access) is not None, told


def test_the_rules_of_a_job_are_those_of_its_checkpoints():
    best = Best(metric="acc", mode="max")
    asked = Checkpoints(keep=7, keep_every=50, keep_best=best)
    assert Retention.of(asked) == Retention(keep=7, every=50, best=best)
    assert Retention.of(Checkpoints()) == Retention(keep=3)


def test_where_there_is_no_checkpoint_nothing_is_deleted(tmp_path):
    open_store(str(tmp_path)).write("step-1.pt/step-1.pt", b"on its way")
    assert retain(str(tmp_path), Retention(keep=1), fence=FIRST) == ()


def two_saves(tmp_path, bucket, access) -> Store:
    """Publish two checkpoints of attempt 2, of which `keep: 1` leaves one."""
    for step in (1, 2):
        publish(write(tmp_path, f"step-{step}.pt"), bucket, step=step, fence=Fence(attempt=2), access=access)
    return open_store(bucket, access)


@pytest.mark.parametrize("is_old", [True, False])
def test_uploads_of_earlier_attempts_are_aborted_and_old_ones_of_this(
    bucket, access, tmp_path, monkeypatch, is_old
):
    assert retention.ABANDONED_AFTER_S == 3600
    monkeypatch.setattr(retention, "ABANDONED_AFTER_S", -3600.0 if is_old else 3600.0)
    store = two_saves(tmp_path, bucket, access)
    names = ["step-7/a", "step-8.attempt-2/a/b", "step-9.attempt-3/a", "unproved/step-6/a", "loose"]
    for name in names:
        store.upload(name, 2, 1).write(0, 0, b"x")
    retain(bucket, Retention(keep=1), fence=Fence(attempt=2), access=access)
    aborted = {"step-7/a", "step-8.attempt-2/a/b", "unproved/step-6/a"} if is_old else {"step-7/a"}
    assert {upload.name for upload in store.open_uploads()} == set(names) - aborted
    for upload in store.open_uploads():
        store.abort_upload(upload)


def test_who_may_delete_and_not_list_uploads_deletes(bucket, access, unruly, proxy, tmp_path):
    two_saves(tmp_path, bucket, access)
    proxy.faults = [Fault(method="GET", path="/u", status=403, times=100)]
    gone = retain(bucket, Retention(keep=1), fence=Fence(attempt=2), access=unruly)
    assert [name.partition(".")[0] for name in gone] == ["step-1"]
    assert [found.step for found in complete(bucket, access)] == [2]


def test_of_a_deletion_that_is_cut_off_no_half_is_ever_found(bucket, access, unruly, proxy, tmp_path):
    store = two_saves(tmp_path, bucket, access)
    proxy.faults = [Fault(method="DELETE", status=400, skip=1)]
    with pytest.raises(StorageError):
        retain(bucket, Retention(keep=1), fence=Fence(attempt=2), access=unruly)
    assert [entry.name for entry in store.list("step-1.pt")] == ["step-1.pt.attempt-2/step-1.pt"]
