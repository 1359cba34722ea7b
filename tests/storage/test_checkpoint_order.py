"""The newest checkpoint is the last one of the latest attempt; a late attempt publishes nothing and deletes nothing."""

from __future__ import annotations

import itertools
import json
import os
import random
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import Fenced, StorageError
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage import checkpoints, fences
from airflow_provider_ocidist.storage.checkpoints import (
    Manifest,
    SaveFacts,
    complete,
    fetch,
    newest,
    next_sequence,
    reserve,
    seal,
    send_part,
)
from airflow_provider_ocidist.storage.retention import Retention, retain
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.storage.published import publish
from tests.storage.unruly_proxy import Fault

SEED = int(os.environ.get("ORDER_SEED", "20261122"))


@pytest.fixture(params=["local", "oci", "memory"])
def place(request, tmp_path):
    if request.param == "local":
        return str(tmp_path / "target"), None
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}", None
    return request.getfixturevalue("bucket"), request.getfixturevalue("access")


def write(tmp_path: Path, name: str, content: str = "weights") -> Path:
    path = tmp_path / "program" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    return path


def test_fences_grow_with_the_generation_then_with_the_attempt():
    order = [Fence(), Fence(attempt=1), Fence(attempt=2), Fence(generation=1), Fence(generation=1, attempt=1)]
    random.Random(SEED).shuffle(shuffled := [*order])
    assert sorted(shuffled) == order


def test_an_attempt_that_counts_from_0_is_newest(place, tmp_path):
    uri, access = place
    for step in (100, 200):
        publish(write(tmp_path, f"step-{step}.pt"), uri, step=step, fence=Fence(attempt=1), access=access)
    again = publish(
        write(tmp_path, "step-1.pt"), uri, step=1, fence=Fence(attempt=2), sequence=1, access=access
    )
    assert newest(uri, access) == again
    assert [found.step for found in complete(uri, access)] == [1, 200, 100]


def test_within_an_attempt_the_last_that_was_saved_is_newest_whatever_its_step(place, tmp_path):
    uri, access = place
    for sequence, step in enumerate((90, 1000, None, 5), 1):
        publish(write(tmp_path, f"save-{sequence}.pt"), uri, step=step, sequence=sequence, access=access)
    assert [found.step for found in complete(uri, access)] == [5, None, 1000, 90]


def test_versions_of_one_name_get_a_place_each_and_come_back_under_their_name(place, tmp_path):
    uri, access = place
    for number in (1, 2, 3):
        publish(write(tmp_path, "last.ckpt", f"version {number}"), uri, step=None, access=access)
    found = complete(uri, access)
    assert len({each.uri for each in found}) == 3
    assert fetch(found[0].uri, tmp_path / "in", access).read_text() == "version 3"
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["last.ckpt"]


def test_what_a_later_attempt_has_fenced_an_earlier_one_does_not_publish(place, tmp_path):
    uri, access = place
    old = publish(write(tmp_path, "step-1.pt"), uri, step=1, fence=Fence(attempt=1), access=access)
    fences.advance_fence(open_store(uri, access), Fence(attempt=2))
    with pytest.raises(Fenced, match="attempt 2 has begun to save there"):
        publish(write(tmp_path, "step-2.pt"), uri, step=2, fence=Fence(attempt=1), access=access)
    assert complete(uri, access) == [old]


def test_a_node_that_was_lost_publishes_and_deletes_nothing_once_the_next_launch_has_begun(place, tmp_path):
    uri, access = place
    lost, new = (Fence(attempt=2, launch=launch) for launch in (0, 1))
    old = publish(write(tmp_path, "step-1.pt"), uri, step=1, fence=lost, access=access)
    fences.advance_fence(open_store(uri, access), new)
    with pytest.raises(Fenced, match="launch 1 of attempt 2 has begun to save there"):
        publish(write(tmp_path, "step-3.pt"), uri, step=3, fence=lost, access=access)
    with pytest.raises(Fenced):
        retain(uri, Retention(keep=1), fence=lost, access=access)
    assert next_sequence(uri, new, access) == old.sequence + 1
    again = publish(
        write(tmp_path, "step-2.pt"), uri, step=2, fence=new, sequence=old.sequence + 1, access=access
    )
    assert complete(uri, access) == [again, old]
    assert again.fence == old.fence == Fence(attempt=2), "both are of one attempt"


def test_a_checkpoint_in_parts_is_not_sealed_by_an_attempt_that_was_followed(place, tmp_path):
    uri, access = place
    folder = tmp_path / "step-5"
    folder.mkdir()
    (folder / "__0_0.distcp").write_text("weights")
    late, new = Fence(attempt=1), Fence(attempt=2)
    save = SaveFacts(step=5, fence=late, sequence=1, proof="")
    at = reserve(uri, "step-5", save, access)
    files = send_part(folder, at, access=access)
    fences.advance_fence(open_store(uri, access), new)
    with pytest.raises(Fenced):
        seal(at, "step-5", files, save, access)
    assert newest(uri, access) is None
    assert reserve(uri, "step-5", replace(save, fence=new), access) != at


def test_two_attempts_or_launches_never_write_to_one_place(place, tmp_path):
    """An upload of the earlier one that arrives late would damage what the later one has published."""
    uri, access = place
    seen = set()
    for attempt, launch in itertools.product((1, 2, 3, 12), (0, 1)):
        fence = Fence(attempt=attempt, launch=launch)
        saves = (("step-5.pt", 5), ("step-5.pt", 7), ("last", None))
        for sequence, (name, step) in enumerate(saves, 1):
            save = SaveFacts(step=step, fence=fence, sequence=sequence, proof="")
            seen.add(reserve(uri, name, save, access))
    assert len(seen) == 24


def test_a_fence_is_never_taken_back(place):
    uri, access = place
    store = open_store(uri, access)
    assert fences.current_fence(store) is None
    fences.advance_fence(store, Fence(attempt=3))
    fences.advance_fence(store, Fence(attempt=3))
    for lower in (Fence(), Fence(attempt=2)):
        with pytest.raises(Fenced):
            fences.advance_fence(store, lower)
    fences.advance_fence(store, Fence(generation=1))
    assert fences.current_fence(store) == Fence(generation=1)


def test_of_many_that_fence_at_once_the_highest_holds(place):
    uri, access = place
    wanted = [Fence(attempt=number) for number in range(12)]
    random.Random(SEED).shuffle(wanted)

    def advance(fence: Fence) -> None:
        try:
            fences.advance_fence(open_store(uri, access), fence)
        except Fenced:
            assert fence != max(wanted)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(advance, wanted))
    store = open_store(uri, access)
    fences.advance_fence(store, max(wanted))
    assert fences.current_fence(store) == max(wanted)


def test_a_fence_that_cannot_be_read_is_an_error_and_no_permission(bucket, access, unruly, proxy):
    fences.advance_fence(open_store(bucket, access), Fence(attempt=2))
    proxy.faults = [Fault(method="GET", status=503, times=100)]
    with pytest.raises(StorageError):
        fences.advance_fence(open_store(bucket, unruly), Fence(attempt=1))


def test_a_fence_that_is_damaged_is_named(place):
    uri, access = place
    store = open_store(uri, access)
    store.write(fences.FENCE_FILE, b"{")
    with pytest.raises(StorageError, match=rf"{fences.FENCE_FILE}.*delete it"):
        fences.advance_fence(store, Fence(attempt=2))


def test_an_attempt_that_is_overtaken_while_it_sends_writes_no_manifest(
    bucket, access, unruly, proxy, tmp_path
):
    store = open_store(bucket, access)
    path = write(tmp_path, "step-1.pt")
    overtake = Fault(
        method="PUT", path="step-1.pt", meanwhile=lambda: fences.advance_fence(store, Fence(attempt=2))
    )
    proxy.faults = [overtake]
    with pytest.raises(Fenced):
        publish(path, bucket, step=1, fence=Fence(attempt=1), access=unruly)
    assert not any(method == "PUT" and "manifest.json" in path for method, path in proxy.seen)


def test_a_manifest_that_arrives_while_the_next_attempt_begins_is_withdrawn(tmp_path, monkeypatch):
    """Between the look at the fence and the manifest there is time for another."""
    uri = str(tmp_path / "target")
    real = Manifest.to_json

    def and_the_next_attempt_begins(manifest: Manifest) -> bytes:
        fences.advance_fence(open_store(uri), Fence(attempt=2))
        return real(manifest)

    monkeypatch.setattr(Manifest, "to_json", and_the_next_attempt_begins)
    with pytest.raises(Fenced):
        publish(write(tmp_path, "step-1.pt"), uri, step=1, fence=Fence(attempt=1))
    assert newest(uri) is None


def test_a_manifest_that_is_too_late_is_withdrawn_though_the_store_does_not_answer_at_once(
    bucket, access, unruly, proxy, tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoints, "_WITHDRAWN_AGAIN_AFTER", (0.0,) * 6)
    store, once = open_store(bucket, access), replace(unruly, max_attempts=1)
    proxy.faults = [
        Fault(
            method="PUT",
            path="manifest.json",
            meanwhile=lambda: fences.advance_fence(store, Fence(attempt=2)),
        ),
        Fault(method="DELETE", path="manifest.json", status=503, times=2),
        Fault(method="DELETE", path="manifest.json", lose_answer=True),
    ]
    with pytest.raises(Fenced):
        publish(write(tmp_path, "step-1.pt"), bucket, step=1, fence=Fence(attempt=1), access=once)
    assert newest(bucket, access) is None


def test_a_manifest_of_the_version_before_is_read_and_is_older_than_any_of_now(place, tmp_path):
    uri, access = place
    store = open_store(uri, access)
    for step in (100, 200):
        ref = publish(write(tmp_path, f"step-{step}.pt"), uri, step=step, access=access)
        name = f"{ref.uri.rpartition('/')[2]}/manifest.json"
        manifest = json.loads(store.read(name))
        for key in ("attempt", "generation", "sequence", "proof", "metrics"):
            manifest.pop(key, None)
        store.write(name, json.dumps({**manifest, "version": 1}).encode())
    assert [(found.step, found.fence) for found in complete(uri, access)] == [(200, Fence()), (100, Fence())]
    new = publish(
        write(tmp_path, "step-3.pt"), uri, step=3, fence=Fence(attempt=1), sequence=1, access=access
    )
    assert newest(uri, access) == new


def test_a_reference_of_the_version_before_can_be_ordered():
    from airflow_provider_ocidist.model import codec

    old = [codec.decode(CheckpointRef, {"uri": f"x/{step}", "step": step}) for step in (300, 200)]
    new = CheckpointRef(uri="y", step=None, fence=Fence(attempt=1), sequence=1)
    assert max([*old, new], key=lambda ref: ref.order) == new
    assert max(old, key=lambda ref: ref.order).step == 300


def test_the_digest_is_that_of_the_content(place, tmp_path):
    uri, access = place
    first = publish(write(tmp_path, "last.ckpt", "one"), uri, step=5, access=access)
    same = publish(write(tmp_path, "last.ckpt", "one"), uri, step=5, access=access)
    other = publish(write(tmp_path, "last.ckpt", "two"), uri, step=5, access=access)
    named = publish(write(tmp_path, "best.ckpt", "one"), uri, step=5, sequence=0, access=access)
    assert first.digest == same.digest != other.digest
    assert named.digest != first.digest, "a program that looks for last.ckpt does not find it"
    assert [found.digest for found in complete(uri, access)] == [
        other.digest,
        same.digest,
        first.digest,
        named.digest,
    ]


def test_a_node_that_begins_again_within_its_attempt_goes_on_counting(place, tmp_path):
    uri, access = place
    assert next_sequence(uri, Fence(attempt=1), access) == 1
    publish(write(tmp_path, "a.pt"), uri, step=None, fence=Fence(attempt=1), sequence=7, access=access)
    assert next_sequence(uri, Fence(attempt=1), access) == 8
    assert next_sequence(uri, Fence(attempt=2), access) == 1


@pytest.mark.parametrize("number", range(6))
def test_the_number_of_an_incomplete_checkpoint_is_not_given_again(place, tmp_path, number):
    uri, access = place
    draw = random.Random(SEED + number)
    own, count = Fence(attempt=2, launch=1), draw.randint(1, 5)
    publish(write(tmp_path, "before.pt"), uri, step=None, fence=Fence(attempt=1), sequence=9, access=access)
    for sequence in range(1, count + 1):
        name = f"save-{sequence}.pt"
        ref = publish(write(tmp_path, name), uri, step=sequence, fence=own, sequence=sequence, access=access)
        store = open_store(ref.uri, access)
        lost = draw.choice(["nothing", "all", "the end"])
        if lost == "all":
            store.delete(name)
        if lost == "the end":
            store.write(name, b"w")
    assert next_sequence(uri, own, access) == count + 1
    assert next_sequence(uri, Fence(attempt=3), access) == 1


@pytest.mark.parametrize("number", range(10))
def test_whatever_attempts_do_in_whatever_order_the_newest_is_the_last_of_the_highest(number, tmp_path):
    seed = random.Random(SEED + number)
    uri = str(tmp_path / "target")
    sequences: dict[Fence, int] = {}
    highest = Fence()
    expected: CheckpointRef | None = None
    for at in range(40):
        fence = Fence(attempt=seed.randrange(1, 5))
        sequences[fence] = sequences.get(fence, 0) + 1
        path = write(tmp_path, seed.choice(["last.ckpt", f"step-{seed.randrange(50)}.pt"]), f"content {at}")
        step = seed.choice([None, seed.randrange(50)])
        try:
            found = publish(path, uri, step=step, fence=fence, sequence=sequences[fence])
        except Fenced:
            assert fence < highest, (SEED + number, at)
        else:
            assert fence >= highest, (SEED + number, at)
            highest, expected = fence, found
        assert newest(uri) == expected, (SEED + number, at)
    assert expected is not None
