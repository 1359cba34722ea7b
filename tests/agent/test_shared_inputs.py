"""Inputs that nodes share: real agents read an input from the store once, whatever happens to one of them."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.job import Checkpoints, Input
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoints import SaveFacts, publish
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access
from tests.agent.gangs import REPOSITORY, Gang
from tests.http_client import http

PART = 8 << 20
LARGE = hashlib.shake_256(b"large").digest(3 * PART - 5)
SMALL = [(f"small/{number:02}.bin", f"{number} ".encode() * 20_000) for number in range(12)]
WHOLE = len(LARGE) + sum(len(content) for _, content in SMALL)
PATIENT = """
from airflow_provider_ocidist.agent.share import exchange, patience, peer
patience.LEAST = exchange.FIRST_NEWS = peer.SILENCE = 240.0
patience.ALLOWANCE = 1e6
"""
PROGRAM = """
import hashlib, pathlib
seen = hashlib.sha256()
for path in sorted(pathlib.Path("data").rglob("*.bin")):
    seen.update(path.relative_to("data").as_posix().encode() + path.read_bytes())
print("has", seen.hexdigest())
"""


class Corpus:
    """An input in the emulator, and how much of it was read."""

    def __init__(self, emulator: Access) -> None:
        self.emulator = emulator
        self.name = f"corpus-{uuid.uuid4().hex}"
        self.uri = f"oci://{emulator.bucket}@{emulator.namespace}/{self.name}/"
        access = OciAccess(config_file=emulator.config_file, profile=emulator.profile, endpoint=emulator.url)
        self.sizes = {"large.bin": len(LARGE), **{name: len(content) for name, content in SMALL}}
        store = open_store(self.uri, access)
        for name, content in [("large.bin", LARGE), *SMALL]:
            store.write(name, content)

    @property
    def path(self) -> str:
        return f"/n/.*/o/{self.name}.*"

    @property
    def digest(self) -> str:
        seen = hashlib.sha256()
        for name, content in sorted([("large.bin", LARGE), *SMALL]):
            seen.update(name.encode() + content)
        return seen.hexdigest()

    def bytes_read(self) -> int:
        """Return the bytes of all reads; a part of the large file counts as the largest."""
        calls = http.get(
            f"{self.emulator.url}/_emulator/calls", params={"method": "GET", "path": self.path}
        ).json()
        names = [re.sub("%2F", "/", call["path"]).partition(f"{self.name}/")[2] for call in calls]
        return sum(min(self.sizes[name], PART) for name in names if name)


@pytest.fixture
def corpus(emulator: Access) -> Corpus:
    return Corpus(emulator)


def a_gang(root: Path, corpus: Corpus, nodes: int, **changes: Any) -> Gang:
    inputs = (Input(source=corpus.uri, target="data"),)
    return Gang(root, PROGRAM, nodes=nodes, inputs=inputs, oci_endpoint=corpus.emulator.url, **changes)


def variables(emulator: Access) -> dict[str, str]:
    return {"OCI_CONFIG_FILE": emulator.config_file, "OCI_CLI_PROFILE": emulator.profile}


def patient(root: Path, emulator: Access) -> dict[str, str]:
    """Return variables of nodes that wait for one another for minutes: each may seem slow on a busy machine."""
    folder = root / "patient"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(PATIENT)
    return {**variables(emulator), "PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)])}


def test_four_nodes_read_an_input_once(tmp_path: Path, emulator: Access, corpus: Corpus) -> None:
    with a_gang(tmp_path, corpus, 4) as gang:
        assert gang.run(**patient(tmp_path, emulator)) == [0] * 4
        assert {agent.stdout.read_text().strip() for agent in gang.agents} == {f"has {corpus.digest}"}
        said = "\n".join(agent.stderr.read_text() for agent in gang.agents)
    assert said.count("from other nodes") == 4
    assert corpus.bytes_read() <= 1.1 * WHOLE, said


@pytest.mark.parametrize("nodes, changes", [(1, {}), (2, {"share_inputs": False})])
def test_a_node_alone_or_of_a_job_that_does_not_share_reads_from_the_store(
    tmp_path: Path, emulator: Access, corpus: Corpus, nodes: int, changes: dict[str, Any]
) -> None:
    with a_gang(tmp_path, corpus, nodes, **changes) as gang:
        assert gang.run(**variables(emulator)) == [0] * nodes
        assert not (gang.run_dir / "sharing").exists()
        assert {agent.stdout.read_text().strip() for agent in gang.agents} == {f"has {corpus.digest}"}
    assert corpus.bytes_read() >= nodes * WHOLE


def test_a_node_that_is_killed_amid_sharing_is_replaced_by_the_store(
    tmp_path: Path, emulator: Access, corpus: Corpus, faults: Callable[..., None]
) -> None:
    faults(method="GET", path=corpus.path, bytes_per_s=8e6)
    with a_gang(tmp_path, corpus, 2) as gang:
        gang.start(**variables(emulator))
        survivor, victim = gang.agents
        victim.shows(lambda: list(gang.code(1).rglob("*.part")))
        victim.signal(signal.SIGKILL)
        survivor.shows(lambda: survivor.waits)
        files = sorted(path for path in (gang.code(0) / "data").rglob("*.bin"))
        assert len(files) == 1 + len(SMALL)
        assert files[0].read_bytes() == LARGE


def test_a_frozen_node_is_replaced_by_the_store(
    tmp_path: Path, emulator: Access, corpus: Corpus, faults: Callable[..., None]
) -> None:
    faults(method="GET", path=corpus.path, bytes_per_s=8e6)
    with a_gang(tmp_path, corpus, 2) as gang:
        gang.start(**variables(emulator))
        survivor, victim = gang.agents
        victim.shows(lambda: list(gang.code(1).rglob("*.part")))
        victim.signal(signal.SIGSTOP)
        survivor.shows(lambda: survivor.waits)
        assert (gang.code(0) / "data" / "large.bin").read_bytes() == LARGE


def test_a_store_that_throttles_is_read_once_all_the_same(
    tmp_path: Path, emulator: Access, corpus: Corpus, faults: Callable[..., None]
) -> None:
    faults(method="GET", path=corpus.path, bytes_per_s=8e6)
    with a_gang(tmp_path, corpus, 3) as gang:
        assert gang.run(**patient(tmp_path, emulator)) == [0] * 3
        assert {agent.stdout.read_text().strip() for agent in gang.agents} == {f"has {corpus.digest}"}
        said = "\n".join(agent.stderr.read_text() for agent in gang.agents)
    assert corpus.bytes_read() <= 1.1 * WHOLE, said


RESTORES = """
import hashlib, os, pathlib
(path,) = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"]).glob("*.bin")
print("has", hashlib.sha256(path.read_bytes()).hexdigest())
"""


@pytest.mark.parametrize("shared, times", [(True, 1.1), (False, 3.0)])
def test_nodes_that_resume_read_the_checkpoint_once_as_their_inputs(
    tmp_path: Path, emulator: Access, *, shared: bool, times: float
) -> None:
    name = f"kept-{uuid.uuid4().hex}"
    place = f"oci://{emulator.bucket}@{emulator.namespace}/{name}"
    access = OciAccess(config_file=emulator.config_file, profile=emulator.profile, endpoint=emulator.url)
    saved = tmp_path / "step-7.bin"
    saved.write_bytes(LARGE)
    fence = Fence(generation=0, attempt=1)
    publish(saved, place, SaveFacts(step=7, fence=fence, sequence=1, proof="a test"), access=access)
    changes = {"checkpoints": Checkpoints(uri=place), "attempt": 2, "share_inputs": shared}
    with Gang(tmp_path, RESTORES, nodes=3, oci_endpoint=emulator.url, **changes) as gang:
        assert gang.run(**patient(tmp_path, emulator)) == [0] * 3
        digest = hashlib.sha256(LARGE).hexdigest()
        assert {agent.stdout.read_text().strip() for agent in gang.agents} == {f"has {digest}"}
        said = "\n".join(agent.stderr.read_text() for agent in gang.agents)
    wanted = {"method": "GET", "path": f"/n/.*/o/{name}.*"}
    calls = http.get(f"{emulator.url}/_emulator/calls", params=wanted).json()
    parts = [call for call in calls if call["path"].endswith("step-7.bin")]
    assert (said.count("of the checkpoint came from other nodes") == 3) == shared
    assert len(parts) <= times * 3, said
