"""Inputs read by several nodes together: the store's checksums decide, and it is read alone where they do not fit."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.prepare import shared_input
from airflow_provider_ocidist.agent.prepare.inputs import fetch_inputs
from airflow_provider_ocidist.agent.share import exchange as exchanges
from airflow_provider_ocidist.agent.share import patience
from airflow_provider_ocidist.agent.share.exchange import Exchange
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.job import Input
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.testing import OciEmulator
from tests.http_client import http

PART = 8 << 20
FILES = {
    "large.bin": bytes(range(256)) * (9 << 12),
    "a.bin": b"a" * 70_000,
    "b/b.bin": b"b" * 300_000,
    "empty": b"",
}


@pytest.fixture(autouse=True)
def _small_inputs_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_input, "WORTH_SHARING", 1)
    monkeypatch.setattr(patience, "LEAST", 120.0)
    monkeypatch.setattr(patience, "ALLOWANCE", 1e6)


@pytest.fixture
def corpus(oci_emulator: OciEmulator) -> Input:
    place = (oci_emulator.access.namespace, oci_emulator.access.bucket)
    objects = oci_emulator.client("object_storage")
    for name, content in FILES.items():
        objects.put_object(*place, f"corpus/{name}", content)
    return Input(source=f"oci://{place[1]}@{place[0]}/corpus/", target="data")


class Nodes:
    """Nodes that fetch, each in a thread of this process."""

    def __init__(self, root: Path, emulator: OciEmulator, count: int) -> None:
        self.root = root
        self.access = OciAccess(config_file=emulator.access.config_file, endpoint=emulator.url)
        run = LocalStore(root / "run")
        self.exchanges = [Exchange(rank, count, run, lambda: "127.0.0.1") for rank in range(count)]

    def fetch(self, *ranks: int, **inputs: Input) -> None:
        threads = [
            threading.Thread(target=self._fetch, args=(rank, *inputs.values()), name=f"node-{rank}")
            for rank in ranks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _fetch(self, rank: int, *inputs: Input) -> None:
        fetch_inputs(inputs, self.folder(rank), self.access, StopSwitch(), exchange=self.exchanges[rank])
        self.exchanges[rank].has_read()

    def folder(self, rank: int) -> Path:
        return self.root / f"node-{rank}"

    def has_all(self, rank: int) -> bool:
        data = self.folder(rank) / "data"
        found = {str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*") if path.is_file()}
        return found == FILES

    def close(self) -> None:
        for each in self.exchanges:
            each.close()


@pytest.fixture
def nodes(tmp_path: Path, oci_emulator: OciEmulator) -> Iterator[Nodes]:
    made = Nodes(tmp_path, oci_emulator, 3)
    yield made
    made.close()


def reads(emulator: OciEmulator) -> list[str]:
    wanted = {"method": "GET", "path": ".*/o/corpus.*"}
    calls = http.get(f"{emulator.url}/_emulator/calls", params=wanted).json()
    return sorted(call["path"].rpartition("%2F")[2] for call in calls)


ONCE = ["a.bin", "b.bin", "empty", "empty", "empty", "large.bin", "large.bin"]
"""What is read from the store; nothing is saved by passing on an empty file."""


def test_each_piece_is_read_once(nodes: Nodes, corpus: Input, oci_emulator: OciEmulator) -> None:
    nodes.fetch(0, 1, 2, corpus=corpus)
    assert [nodes.has_all(rank) for rank in range(3)] == [True] * 3
    assert [name for name in reads(oci_emulator) if name != "empty"] == [
        name for name in ONCE if name != "empty"
    ]


def test_who_comes_late_takes_all_from_who_was_there(
    nodes: Nodes, corpus: Input, oci_emulator: OciEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "MEETING", 0.0)
    for rank in range(3):
        nodes.fetch(rank, corpus=corpus)
    assert [nodes.has_all(rank) for rank in range(3)] == [True] * 3
    assert [name for name in reads(oci_emulator) if name != "empty"] == [
        name for name in ONCE if name != "empty"
    ]


def test_one_file_that_gets_another_name_is_shared_too(
    nodes: Nodes, corpus: Input, oci_emulator: OciEmulator
) -> None:
    nodes.fetch(0, 1, 2, one=Input(source=f"{corpus.source}large.bin", target="renamed.bin"))
    assert {(nodes.folder(rank) / "renamed.bin").read_bytes() for rank in range(3)} == {FILES["large.bin"]}
    assert reads(oci_emulator) == ["large.bin"] * 2


@pytest.mark.parametrize("name", ["large.bin", "a.bin"])
def test_what_a_node_lies_about_is_read_from_the_store(
    name: str,
    nodes: Nodes,
    corpus: Input,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(exchanges, "MEETING", 0.0)
    nodes.fetch(1, corpus=corpus)
    path = nodes.folder(1) / "data" / name
    path.write_bytes(b"\xff" * len(FILES[name]))
    shelf = nodes.exchanges[1].shelf
    for piece, held in list(shelf._held.items()):
        if held.place.final == path:
            wrong = hashlib.blake2b(b"\xff" * held.length, digest_size=16).hexdigest()
            shelf._held[piece] = replace(held, digest=wrong)
    nodes.fetch(0, corpus=corpus)
    assert nodes.has_all(0)
    said = [record.getMessage() for record in caplog.records]
    expected = "from the store alone" if name == "large.bin" else "its bytes are not those in the store"
    assert [line for line in said if expected in line]


def test_what_the_program_has_changed_meanwhile_is_not_passed_on(
    nodes: Nodes, corpus: Input, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(exchanges, "MEETING", 0.0)
    nodes.fetch(1, corpus=corpus)
    (nodes.folder(1) / "data" / "large.bin").write_bytes(b"\xff" * len(FILES["large.bin"]))
    nodes.fetch(0, corpus=corpus)
    assert nodes.has_all(0)
    assert not [record for record in caplog.records if "from the store alone" in record.getMessage()]


def test_a_file_that_changed_between_two_nodes_is_not_mixed(
    nodes: Nodes, corpus: Input, oci_emulator: OciEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "MEETING", 0.0)
    nodes.fetch(1, corpus=corpus)
    place = (oci_emulator.access.namespace, oci_emulator.access.bucket)
    newer = bytes(reversed(FILES["large.bin"]))
    oci_emulator.client("object_storage").put_object(*place, "corpus/large.bin", newer)
    nodes.fetch(0, corpus=corpus)
    assert (nodes.folder(0) / "data" / "large.bin").read_bytes() == newer
