"""All nodes go on from the same content, or none trains."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stages.meeting import meet_others
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.agent.train.launch import load_launcher
from airflow_provider_ocidist.errors import Cause, DifferentCheckpoints
from airflow_provider_ocidist.job import Checkpoints, LauncherOptions, Limits, Program, Restarts
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.pauses import SAVED_WITHIN
from airflow_provider_ocidist.model.report import ALL_DAMAGED, NodeReport, Phase
from airflow_provider_ocidist.model.work_dir import report_of
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.testing import OciEmulator
from tests.agent.gangs import Gang, until
from tests.storage.published import publish

LARGE = 24 << 20
"""Bytes of a checkpoint that is sent in parts."""
PROGRAM = "print('trained')"
SHOWS = """
import os, pathlib
folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
print("found", *sorted(path.name for path in folder.iterdir() if path.name[0] != "."))
"""


@pytest.mark.parametrize(
    "contents, steps, trains",
    [
        (("weights", "weights"), (5, 5), True),
        (("weights", "others"), (5, 5), False),
        # The step is a label: of one content two attempts may have said different ones.
        (("weights", "weights"), (5, 6), True),
        (("weights", None), (5, None), False),
        ((None, None), (None, None), True),
    ],
)
def test_nodes_go_on_together_from_one_content_alone(
    tmp_path: Path, contents: tuple[str | None, ...], steps: tuple[int | None, ...], trains: bool
) -> None:
    places = [tmp_path / f"safe-{rank}" for rank in (0, 1)]
    for place, content, step in zip(places, contents, steps):
        if content:
            (tmp_path / "last.txt").write_text(content)
            publish(tmp_path / "last.txt", str(place), step=step)
    checkpoints = Checkpoints(uri=str(places[0]), required=False)
    with Gang(tmp_path / "gang", PROGRAM, nodes=2, checkpoints=checkpoints, attempt=1) as gang:
        # A store that lists late shows its nodes different things; here they look at different places.
        other = replace(gang.config, checkpoints=Checkpoints(uri=str(places[1]), required=False))
        gang.start(0)
        gang.start(1, **other.to_env())
        codes = [agent.wait() for agent in gang.agents]
        told = "".join(agent.stderr.read_text() for agent in gang.agents)
        assert (codes == [0, 0]) is trains, told
        if not trains:
            assert "different checkpoints" in told
            assert f"0: {places[0]}/last.txt" in told
            assert Cause.NODE in {agent.report.cause for agent in gang.agents}
            assert not any("trained" in agent.stdout.read_text() for agent in gang.agents)


@pytest.mark.parametrize("has_checkpoints", [True, False])
@pytest.mark.parametrize("theirs", ["digest", "another", "", ALL_DAMAGED, None])
@pytest.mark.parametrize("own", ["digest", "", None])
def test_a_node_that_has_not_looked_does_not_pass_for_one_that_has_found_the_same(
    tmp_path: Path, own: str | None, theirs: str | None, *, has_checkpoints: bool
) -> None:
    config = AgentConfig(
        run_name="run",
        nodes=2,
        run_dir=str(tmp_path / "run"),
        program=Program(script="program.py"),
        launcher=LauncherOptions(kind="python"),
        checkpoints=Checkpoints(uri=str(tmp_path / "kept")) if has_checkpoints else None,
    )
    environ = {"OCIDIST_NODE_RANK": "0", "HOME": str(tmp_path), "FQDN": "127.0.99.1"}
    context = NodeContext(config, environ, StopSwitch())
    context.heartbeat.update(starts_from=own)
    other = NodeReport(
        rank=1,
        phase=Phase.JOINING,
        address="127.0.99.2",
        started_at=0.0,
        heartbeat_at=0.0,
        starts_from=theirs,
    )
    context.heartbeat.store.write(report_of(1), other.to_json())
    are_alike = own == theirs and not (has_checkpoints and own is None)
    shown = [
        "nothing" if each in (None, "", ALL_DAMAGED) else "checkpoints.start_from" for each in (own, theirs)
    ]
    differ = pytest.raises(DifferentCheckpoints, match=rf"\(of each node: 0: {shown[0]}, 1: {shown[1]}\)")
    with contextlib.nullcontext() if are_alike else differ:
        assert [each.rank for each in meet_others(context, load_launcher(config.launcher))] == [0, 1]


def different_places(root: Path) -> list[Path]:
    """Return two places that hold other content at the same step."""
    places = [root / f"safe-{rank}" for rank in (0, 1)]
    for place, content in zip(places, ("weights", "others")):
        (root / "last.txt").write_text(content)
        publish(root / "last.txt", str(place), step=5)
    return places


def test_nodes_that_would_go_on_from_different_content_fetch_again_in_the_same_run(tmp_path: Path) -> None:
    places = different_places(tmp_path)
    checkpoints = Checkpoints(uri=str(places[0]), required=False)
    with Gang(
        tmp_path / "gang",
        PROGRAM,
        nodes=3,
        checkpoints=checkpoints,
        attempt=1,
        restarts=Restarts(node=1),
    ) as gang:
        other = replace(gang.config, checkpoints=Checkpoints(uri=str(places[1]), required=False))
        gang.start(0)
        gang.start(1, **other.to_env())
        until(lambda: gang.agents[1].waits)
        # What the second node looks at is the same from now on.
        places[1].rename(tmp_path / "before")
        places[1].symlink_to(places[0])
        gang.start(2)
        codes = [agent.wait() for agent in gang.agents]
        assert codes == [0, 0, 0], "".join(agent.stderr.read_text() for agent in gang.agents)
        restarts = [agent.report.restarts for agent in gang.agents]
        assert restarts[0] == restarts[1] == restarts[2]
        (restart,) = restarts[0]
        assert restart.cause is Cause.NODE
        assert "different checkpoints" in restart.message
        assert [agent.stdout.read_text() for agent in gang.agents] == ["trained\n"] * 3


def test_a_difference_that_stays_ends_the_run(tmp_path: Path) -> None:
    places = different_places(tmp_path)
    checkpoints = Checkpoints(uri=str(places[0]), required=False)
    with Gang(
        tmp_path / "gang",
        PROGRAM,
        nodes=2,
        checkpoints=checkpoints,
        attempt=1,
        restarts=Restarts(node=9),
    ) as gang:
        other = replace(gang.config, checkpoints=Checkpoints(uri=str(places[1]), required=False))
        gang.start(0)
        gang.start(1, **other.to_env())
        assert all(agent.wait() for agent in gang.agents)
        messages = " ".join(agent.report.message or "" for agent in gang.agents)
        assert "different checkpoints" in messages
        assert "crash loop" in messages


def test_what_is_damaged_after_one_node_has_read_it_is_stored_again_for_all(tmp_path: Path) -> None:
    kept, found = tmp_path / "kept", "found step-2.txt\n"
    for step in (1, 2):
        (tmp_path / f"step-{step}.txt").write_text("weights")
        publish(tmp_path / f"step-{step}.txt", str(kept), step=step)
    checkpoints = Checkpoints(uri=str(kept), required=False)
    restarts = Restarts(node=1)
    with Gang(
        tmp_path / "gang", SHOWS, nodes=2, checkpoints=checkpoints, attempt=2, restarts=restarts
    ) as gang:
        gang.start(0)
        until(lambda: gang.agents[0].waits)
        (kept / "step-2.txt" / "step-2.txt").write_text("changed")
        gang.start(1)
        codes = [agent.wait() for agent in gang.agents]
        assert codes == [0, 0], "".join(agent.stderr.read_text() for agent in gang.agents)
        assert [agent.stdout.read_text() for agent in gang.agents] == [found] * 2
        assert [len(agent.report.restarts) for agent in gang.agents] == [1, 1]


@pytest.mark.parametrize("reads_first", [0, 1])
@pytest.mark.parametrize("restarts", [Restarts(), Restarts(program=9)], ids=["none", "of the program"])
def test_what_is_damaged_after_one_node_has_read_it_is_stored_again_though_no_launch_follows(
    tmp_path: Path, restarts: Restarts, reads_first: int
) -> None:
    kept = tmp_path / "kept"
    for step in (1, 2):
        (tmp_path / f"step-{step}.txt").write_text("weights")
        publish(tmp_path / f"step-{step}.txt", str(kept), step=step)
    stored = kept / "step-2.txt" / "step-2.txt"
    checkpoints = Checkpoints(uri=str(kept), required=False)
    with Gang(
        tmp_path / "gang", SHOWS, nodes=2, checkpoints=checkpoints, attempt=2, restarts=restarts
    ) as gang:
        (first,) = gang.start(reads_first)
        until(lambda: first.waits)
        stored.write_text("changed")
        (other,) = gang.start(1 - reads_first)[1:]
        assert all(agent.wait() for agent in (first, other))
        assert "different checkpoints" in first.stderr.read_text()
    # The next attempt, on other machines, goes on from it.
    assert stored.read_text() == "weights"


@pytest.mark.parametrize("reads_first", [0, 1])
def test_a_node_that_is_ended_while_it_stores_a_checkpoint_again_reports_and_leaves_no_upload_open(
    tmp_path: Path, oci_emulator: OciEmulator, reads_first: int
) -> None:
    access = oci_emulator.access
    uri = f"oci://{access.bucket}@{access.namespace}/kept-{uuid.uuid4().hex}"
    ours = OciAccess(config_file=access.config_file, profile=access.profile, endpoint=access.url)
    (tmp_path / "step-1.txt").write_bytes(os.urandom(LARGE))
    ref = publish(tmp_path / "step-1.txt", uri, step=1, access=ours)
    store = open_store(uri, ours)
    environ = {
        "OCI_CONFIG_FILE": str(access.config_file),
        "OCI_CLI_PROFILE": access.profile,
    }
    checkpoints = Checkpoints(uri=uri, required=False)
    limits = Limits(stop_grace=0.5, join_timeout=60.0)
    with Gang(
        tmp_path / "gang",
        SHOWS,
        nodes=2,
        checkpoints=checkpoints,
        attempt=2,
        limits=limits,
        share_inputs=False,
        oci_endpoint=access.url,
    ) as gang:
        (first,) = gang.start(reads_first, **environ)
        first.shows(lambda: first.waits)
        open_store(ref.uri, ours).write("step-1.txt", b"x" * LARGE)
        # The other node finds it to be damaged; each part of it takes longer to be stored again than a node has.
        oci_emulator.fault(method="PUT", path="/n/.*/u/.*", bytes_per_s=2_000_000)
        (other,) = gang.start(1 - reads_first, **environ)[1:]
        other.wait()
        first.shows(store.open_uploads)
        assert first.report.phase is Phase.SAVING
        began = time.monotonic()
        first.signal(signal.SIGTERM)
        assert first.wait()
        assert time.monotonic() - began < SAVED_WITHIN / 2
        assert first.report.phase is Phase.DONE, first.stderr.read_text()
        assert "the repair of stored checkpoints is given up" in first.stderr.read_text()
    assert list(store.open_uploads()) == []
