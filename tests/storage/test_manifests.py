"""A manifest says what a checkpoint consists of and where it stands; what could mislead a reader is none."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_ocidist.errors import CheckpointError
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage.manifests import (
    MANIFEST,
    VERSION,
    Manifest,
    ManifestFile,
    SaveFacts,
    is_another_programs,
)

SEED = int(os.environ.get("TEST_SEED", "20261127"))
FILES = (
    ManifestFile(path="model.bin", size=3, sha256="aa"),
    ManifestFile(path="a/optim.bin", size=5, sha256="bb"),
)


def saved(*, single_file: bool = False, **changes: Any) -> Manifest:
    """Return the manifest of a checkpoint as the fourth attempt after two clears publishes it."""
    given: dict[str, Any] = {
        "step": 100,
        "fence": Fence(generation=2, attempt=4),
        "sequence": 7,
        "proof": "renamed into place",
        "loss": 0.25,
        "metrics": {"accuracy": 0.9},
    }
    return Manifest.of_save("step-100", FILES, SaveFacts(**{**given, **changes}), single_file=single_file)


def stored(manifest: Manifest, **changes: Any) -> bytes:
    """Return a manifest's JSON with other values; a value None leaves its key out."""
    found = {**json.loads(manifest.to_json()), **changes}
    return json.dumps({key: value for key, value in found.items() if value is not None}).encode()


def test_what_is_published_now_says_all_of_itself() -> None:
    before = time.time()
    found = saved()
    assert before <= found.created_at <= time.time()
    assert replace(found, created_at=0.0) == Manifest(
        version=2,
        name="step-100",
        step=100,
        loss=0.25,
        created_at=0.0,
        files=FILES,
        single_file=False,
        generation=2,
        attempt=4,
        sequence=7,
        proof="renamed into place",
        metrics={"accuracy": 0.9},
    )
    assert saved(single_file=True).single_file
    assert saved(metrics={}).metrics == {}


def test_of_a_save_nothing_is_known_but_what_is_given() -> None:
    known = SaveFacts(step=None, fence=Fence(), sequence=1, proof="its end")
    assert (known.loss, known.metrics) == (None, {})


@pytest.mark.parametrize("number", range(20))
def test_only_a_whole_file_that_lacks_what_every_manifest_has_is_another_programs(number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    ours = json.loads(saved().to_json())
    gone = draw.sample(sorted(ours), draw.randrange(len(ours)))
    text = stored(saved(), **dict.fromkeys(gone))
    in_all_versions = {"version", "created_at", "files"}
    assert is_another_programs(text) == bool(in_all_versions & set(gone)), gone
    assert not is_another_programs(text[: draw.randrange(len(text))]), (
        "a manifest that was cut off is damaged"
    )
    # Of an application: its names, or none.
    assert is_another_programs(json.dumps(draw.choice([sorted(ours), "manifest", 7, None])).encode())


def test_what_is_written_is_read_again_as_it_was_in_a_file_of_a_name_that_all_versions_know() -> None:
    for manifest in (saved(), saved(step=None, loss=None, metrics={}, single_file=True)):
        assert Manifest.from_json(manifest.to_json()) == manifest
    assert (MANIFEST, VERSION) == ("manifest.json", 2)
    # A person reads it too.
    assert len(saved().to_json().splitlines()) > 10


def test_the_reference_to_a_checkpoint_has_what_orders_and_compares_it() -> None:
    manifest = saved()
    assert manifest.ref("oci://b@n/x") == CheckpointRef(
        uri="oci://b@n/x",
        step=100,
        loss=0.25,
        fence=Fence(generation=2, attempt=4),
        sequence=7,
        digest=manifest.digest,
    )


def test_the_digest_is_that_of_the_name_and_the_content_whatever_their_order() -> None:
    draw = random.Random(SEED)
    files = [ManifestFile(path=f"part-{number}", size=number, sha256=f"{number:x}") for number in range(9)]
    whole = replace(saved(), files=tuple(files))
    draw.shuffle(files)
    assert replace(saved(), files=tuple(files)).digest == whole.digest
    # Records of earlier versions have digests: it stays as it was.
    listed = [["a/optim.bin", 5, "bb"], ["model.bin", 3, "aa"]]
    text = json.dumps(["step-100", False, listed])
    assert saved().digest == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"name": "last"},
        {"single_file": True},
        {"files": FILES[:1]},
        *(
            {"files": (replace(FILES[0], **each), FILES[1])}
            for each in ({"path": "x"}, {"size": 4}, {"sha256": "ab"})
        ),
    ],
)
def test_another_content_or_name_has_another_digest(change: dict[str, Any]) -> None:
    assert replace(saved(), **change).digest != saved().digest


@pytest.mark.parametrize(
    "change",
    [{"step": 1}, {"loss": 1.0}, {"created_at": 1.0}, {"attempt": 9}, {"sequence": 9}, {"proof": "-"}],
)
def test_what_is_no_content_changes_no_digest(change: dict[str, Any]) -> None:
    assert replace(saved(), **change).digest == saved().digest


def test_a_later_attempt_then_a_later_save_is_newer_and_the_time_decides_between_versions_of_one() -> None:
    one = saved()
    newer = [{"sequence": 8, "step": 1}, {"attempt": 5, "sequence": 1}, {"generation": 3, "attempt": 1}]
    for change in (*newer, {"created_at": one.created_at + 1}):
        assert replace(one, **change).order > one.order
    assert one.order == (Fence(generation=2, attempt=4), 7, -1, one.created_at)


def test_the_loss_is_a_metric_unless_the_metrics_have_one() -> None:
    assert saved().metric("accuracy") == 0.9
    assert saved().metric("loss") == 0.25
    assert saved(metrics={"loss": 0.5}).metric("loss") == 0.5
    assert saved().metric("other") is None


def test_a_manifest_of_the_first_version_has_neither_attempt_nor_proof() -> None:
    new = ("generation", "attempt", "sequence", "proof", "metrics")
    found = Manifest.from_json(stored(saved(), version=1, **dict.fromkeys(new)))
    assert (found.fence, found.sequence, found.proof, found.metrics) == (Fence(), 0, "", {})
    assert not found.single_file
    least = stored(saved(), version=1, **dict.fromkeys((*new, "step", "loss")))
    assert (Manifest.from_json(least).step, Manifest.from_json(least).loss) == (None, None)


HIGHEST = 2**31 - 1


@pytest.mark.parametrize(
    "change",
    [
        {"generation": 0, "attempt": 0, "sequence": 0},
        {"generation": HIGHEST, "attempt": HIGHEST, "sequence": 2**40},
        {"created_at": 0},
        {"added_by_a_later_version": [1]},
    ],
)
def test_what_is_unusual_and_possible_is_read(change: dict[str, Any]) -> None:
    assert Manifest.from_json(stored(saved(), **change)).files == FILES


def one_file(**changes: Any) -> list[dict[str, Any]]:
    return [{"path": "model.bin", "size": 3, "sha256": "aa", **changes}]


@pytest.mark.parametrize(
    "change, why",
    [
        ({"version": 3}, "it is of version 3 with 2 files"),
        ({"files": []}, "it is of version 2 with 0 files"),
        ({"files": one_file(path="../../elsewhere")}, "does not stay inside its folder"),
        ({"files": one_file(path="/etc/passwd")}, "does not stay inside its folder"),
        ({"files": [*one_file(), *one_file(path="a/../..")]}, "does not stay inside its folder"),
        ({"name": ".."}, "does not stay inside its folder"),
        ({"name": ""}, "does not stay inside its folder"),
        ({"generation": -1}, "its number in the order of checkpoints is not valid"),
        ({"attempt": HIGHEST + 1}, "its number in the order of checkpoints is not valid"),
        ({"sequence": -1}, "its number in the order of checkpoints is not valid"),
        ({"created_at": float("nan")}, "its number in the order of checkpoints is not valid"),
        ({"created_at": float("inf")}, "its number in the order of checkpoints is not valid"),
        ({"sequence": "7"}, "must be of type int, not str"),
        ({"files": None}, "files"),
        ({"files": one_file(size=None)}, "must be of type int"),
        ({"created_at": None}, "created_at"),
    ],
)
def test_what_could_mislead_its_reader_is_refused_with_the_reason(change: dict[str, Any], why: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        Manifest.from_json(stored(saved(), **change))
    assert why in str(caught.value)


@pytest.mark.parametrize("number", range(30))
def test_whatever_happens_to_its_text_it_is_read_as_a_manifest_or_refused(number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    text = bytearray(saved().to_json())
    damage: list[Callable[[], object]] = [
        lambda: text.__delitem__(slice(draw.randrange(len(text)), None)),
        lambda: text.__setitem__(draw.randrange(len(text)), draw.randrange(256)),
        lambda: text.insert(draw.randrange(len(text)), draw.choice(b'{}[]",:0\xff')),
        lambda: text.__setitem__(slice(None), draw.choice([b"", b"[]", b"null", b"7", b"[" * 9999])),
    ]
    draw.choice(damage)()
    try:
        assert Manifest.from_json(bytes(text)).files
    except CheckpointError as error:
        refusal = str(error)
    else:
        return
    assert refusal.startswith("the manifest is corrupt: ")


FOLDER_OF_NOW = b"""{
 "version": 2,
 "name": "step-100",
 "step": 100,
 "created_at": 5.0,
 "files": [{"path": "model.bin", "size": 3, "sha256": "aa"}, {"path": "a/optim.bin", "size": 5, "sha256": "bb"}],
 "attempt": 4,
 "sequence": 7,
 "proof": "renamed into place"
}"""


def test_what_lies_in_buckets_is_read_as_it_was_meant() -> None:
    found = Manifest.from_json(FOLDER_OF_NOW)
    assert found == Manifest(
        version=2,
        name="step-100",
        step=100,
        loss=None,
        created_at=5.0,
        files=FILES,
        single_file=False,
        generation=0,
        attempt=4,
        sequence=7,
        proof="renamed into place",
        metrics={},
    )
    # What is left out is no file, neither by its value nor in the digest.
    assert found.single_file is False
    first = replace(found, version=1, attempt=0, sequence=0)
    assert first.order == (Fence(), 0, 100, 5.0), "the first version had no other order than its steps"
