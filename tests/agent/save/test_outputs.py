"""Outputs: where each node's files go, and that no two of them meet."""

from __future__ import annotations

import os
import random
import signal
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save.output_places import meetings
from airflow_provider_ocidist.agent.save.outputs import (
    copy_outputs,
    planned_copies,
    warn_beforehand,
    with_variables,
)
from airflow_provider_ocidist.agent.save.saving import SaveDeadline
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.job import Input, Limits, Output
from airflow_provider_ocidist.model.report import NodeReport, Phase, Sending
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.open_uploads import abort_reported
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access
from tests.agent.gangs import Gang

SEED = int(os.environ.get("TEST_SEED", "20261127"))

WRITES = """
import os, pathlib
pathlib.Path("out").mkdir()
pathlib.Path("out/who.txt").write_text(os.environ["RANK"] + os.environ["ROLE"])
raise SystemExit(int(os.environ.get("CODE", "0")))
"""


def test_variables_of_the_node_are_filled_in() -> None:
    environ = {"TEAM": "ml", "DAY": "7"}
    assert with_variables("oci://b@n/${TEAM}/$DAY-x/$$5", environ) == "oci://b@n/ml/7-x/$5"


@pytest.mark.parametrize("uri", ["oci://b@n/${ABSENT}/x", "oci://b@n/$ABSENT", "oci://b@n/${}"])
def test_an_unknown_variable_is_named(uri: str) -> None:
    with pytest.raises(AgentError, match="which this node does not have: set it in env") as caught:
        with_variables(uri, {})
    assert caught.value.cause is Cause.CONFIG


@pytest.mark.parametrize(
    "uri, fixed",
    [("oci://b@n/a", "oci://b@n/a"), ("oci://b@n/a/x-${DAY}/c", "oci://b@n/a"), ("${WHERE}/a", "")],
)
def test_what_of_a_uri_is_known_beforehand(uri: str, fixed: str) -> None:
    assert Output(path="x", uri=uri).known_folder == fixed


def test_each_node_and_each_failed_attempt_has_a_place_of_its_own(tmp_path: Path) -> None:
    outputs = (
        Output(path="main", uri="/to/a", when="always"),
        Output(path="each", uri="/to/b", nodes="all"),
    )

    def uris(rank: int, failed_run: str | None = None) -> list[str]:
        chosen = planned_copies(
            outputs, tmp_path, rank=rank, is_main=rank == 0, nodes=3, failed_run=failed_run
        )
        return [copy.uri for copy in chosen]

    assert uris(0) == ["/to/a", "/to/b"]
    assert uris(2) == ["/to/b/node-2"]
    assert uris(0, "dag-task-1a2b3c4d-g0-a3") == ["/to/a/failed-3"]
    assert uris(2, "dag-task-1a2b3c4d-g0-a3") == []


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"what is in {name}")


def delivered(
    folder: Path, *outputs: Output, rank: int = 0, nodes: int = 1, says: str | None = None, **more: Any
) -> dict[str, str]:
    """Copy the outputs of the main node to below `folder`, and return what lies there; `says`: the error."""
    placed = [replace(output, uri=str(folder / "to" / output.uri)) for output in outputs]
    chosen = planned_copies(placed, folder, rank=rank, is_main=True, nodes=nodes, **more)
    if says is None:
        copy_outputs(chosen, OciAccess())
    else:
        with pytest.raises(AgentError, match=says) as caught:
            copy_outputs(chosen, OciAccess(), deadline=SaveDeadline(60.0))
        assert caught.value.cause is Cause.CONFIG
    root = folder / "to"
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_of_two_outputs_that_would_write_the_same_file_all_else_is_copied_and_that_file_is_reported(
    tmp_path: Path,
) -> None:
    write(tmp_path, "a/model.pt", "a/a.txt", "b/model.pt", "b/sub/model.pt", "late.txt")
    outputs = (Output(path="a", uri="."), Output(path="b", uri="."), Output(path="late.txt", uri="."))
    says = r"all else is copied, but the outputs a and b would both write .*/to/model\.pt, so that of b is left out"
    assert delivered(tmp_path, *outputs, says=says) == {
        "model.pt": "what is in a/model.pt",
        "a.txt": "what is in a/a.txt",
        "sub/model.pt": "what is in b/sub/model.pt",
        "late.txt": "what is in late.txt",
    }


@pytest.mark.parametrize("is_file", [True, False])
def test_outputs_of_which_one_goes_below_the_other_may_not_meet_either(
    tmp_path: Path, *, is_file: bool
) -> None:
    write(tmp_path, "metrics/a.json", "outputs/metrics/a.json")
    first = "metrics/a.json" if is_file else "metrics"
    outputs = (Output(path=first, uri="metrics/"), Output(path="outputs", uri="."))
    says = rf"{first} and outputs would both write .*to/metrics/a\.json"
    assert delivered(tmp_path, *outputs, says=says) == {"metrics/a.json": "what is in metrics/a.json"}
    apart = (outputs[0], Output(path="outputs", uri="other"))
    assert len(delivered(tmp_path, *apart)) == 2


def test_a_file_where_another_output_has_a_folder_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a/x", "b/x/y", "b/z")
    outputs = (Output(path="a", uri="."), Output(path="b", uri="."))
    assert set(delivered(tmp_path, *outputs, says="a and b would both write .*/to/x")) == {"x", "z"}


def test_a_folder_that_is_an_output_twice_does_not_write_over_its_own_files(tmp_path: Path) -> None:
    write(tmp_path, "out/x", "out/sub/x", "out/sub/y")
    outputs = (Output(path="out", uri="."), Output(path="out", uri="sub"))
    found = delivered(
        tmp_path, *outputs, says="out and out would both write .*/to/sub/x, so that of out is left out"
    )
    assert found["sub/x"] == "what is in out/sub/x"
    assert found["sub/sub/x"] == "what is in out/sub/x"


def test_a_file_behind_a_link_in_an_output_is_one_of_its_files(tmp_path: Path) -> None:
    write(tmp_path, "a/step-1/x", "b/latest/x")
    (tmp_path / "a" / "latest").symlink_to("step-1")
    outputs = (Output(path="a", uri="."), Output(path="b", uri="."))
    found = delivered(tmp_path, *outputs, says="a and b would both write .*/to/latest/x")
    assert found["latest/x"] == "what is in a/step-1/x"


@pytest.mark.parametrize("is_store", [True, False])
def test_two_outputs_may_send_the_same_file_to_the_same_place(
    tmp_path: Path, emulator: Access, *, is_store: bool
) -> None:
    write(tmp_path, "out/model/x", "out/y")
    bucket = f"oci://{emulator.bucket}@{emulator.namespace}/{uuid.uuid4().hex}"
    root = bucket if is_store else str(tmp_path / "to")
    outputs = (
        Output(path="out", uri=f"{root}/run"),
        Output(path="out/model", uri=f"{root}/run/model", required=True),
    )
    access = OciAccess(config_file=emulator.config_file, profile=emulator.profile, endpoint=emulator.url)
    chosen = planned_copies(outputs, tmp_path, rank=0, is_main=True, nodes=1)
    assert len(copy_outputs(chosen, access)) == 2
    assert {entry.name for entry in open_store(root, access).list()} == {"run/model/x", "run/y"}


@pytest.mark.parametrize("number", range(20))
def test_what_is_left_out_are_only_files_where_another_node_of_the_gang_or_attempt_writes(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    nodes = draw.randrange(1, 5)
    rank = draw.randrange(nodes)
    folders = [f"node-{each}" for each in range(6)] + ["node-01", "node-1-plots", "failed-2", "failed-x"]
    chosen = draw.sample(folders, draw.randrange(1, len(folders)))
    when, spread = draw.choice(["success", "always"]), draw.choice(["all", "main"])
    theirs = {f"node-{each}" for each in range(nodes) if each != rank} if spread == "all" else set()
    theirs |= {"failed-2"} if when == "always" else set()
    write(tmp_path, "out/x", *(f"out/{folder}/x" for folder in chosen))
    output = Output(path="out", uri=".", nodes=spread, when=when)
    left_out = theirs & {*chosen}
    says = rf"all else is copied, but .*{min(left_out)}/x" if left_out else None
    found = delivered(tmp_path, output, rank=rank, nodes=nodes, says=says)
    assert found.keys() == {"x", *(f"{folder}/x" for folder in chosen if folder not in left_out)}


def test_each_node_may_write_below_a_folder_of_its_own_rank(tmp_path: Path) -> None:
    program = """
import os, pathlib
own = pathlib.Path("logs") / f"node-{os.environ['RANK']}"
own.mkdir(parents=True)
(own / "log.txt").write_text(os.environ["RANK"])
"""
    outputs = (Output(path="logs", uri=f"{tmp_path}/to", nodes="all"),)
    with Gang(tmp_path, program, nodes=2, outputs=outputs) as gang:
        assert gang.run() == [0, 0]
    found = {path.relative_to(tmp_path / "to").as_posix() for path in tmp_path.glob("to/**/*.txt")}
    assert found == {"node-0/log.txt", "node-1/node-1/log.txt"}


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """Return a target whose folder `models`, and one folder deeper, are links to another disk."""
    target = tmp_path / "target"
    for place in ("disk", "other", "target/plots"):
        (tmp_path / place).mkdir(parents=True)
    (target / "models").symlink_to(tmp_path / "disk")
    (target / "plots" / "old").symlink_to(tmp_path / "other")
    (target / "gone").symlink_to(tmp_path / "absent")
    (target / "notes.txt").symlink_to(tmp_path / "disk" / "notes.txt")
    return target


def test_a_linked_folder_in_the_target_keeps_no_other_file_from_being_copied_and_is_reported_at_once(
    tmp_path: Path, linked: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(
        tmp_path, "out/a.txt", "out/models/x", "out/models/y/z", "out/plots/b", "out/plots/old/c", "late.txt"
    )
    outputs = [Output(path="out", uri=str(linked)), Output(path="late.txt", uri=str(linked / "models"))]
    chosen = planned_copies(outputs, tmp_path, rank=0, is_main=True, nodes=1)
    says = rf"without 3 files behind the links {linked}/models, {linked}/plots/old: nothing behind a link"
    with pytest.raises(AgentError, match=says) as caught:
        copy_outputs(chosen, OciAccess(), deadline=SaveDeadline(60.0))
    assert caught.value.cause is Cause.DATA
    assert "trying again" not in caplog.text
    assert (linked / "a.txt").read_text() == "what is in out/a.txt"
    assert (linked / "plots" / "b").read_text() == "what is in out/plots/b"
    behind = {path.name for place in ("disk", "other") for path in (tmp_path / place).iterdir()}
    assert behind == {"late.txt"}, "the target itself may be a link"


def test_linked_folders_in_the_target_are_named_before_the_training_starts(
    linked: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_beforehand([Output(path="out", uri=str(linked)), Output(path="x", uri="/absent")])
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"{linked}/models" in warning
    assert "gone" not in warning
    assert "notes.txt" not in warning


def test_outputs_that_may_meet_are_named_before_the_training_starts() -> None:
    def named(*outputs: tuple[str, str]) -> list[str]:
        return meetings([Output(path=path, uri=uri) for path, uri in outputs])

    assert named(("a", "oci://b@n/to"), ("b", "oci://b@n/to/")) == ["a and b"]
    assert named(("a", "/to"), ("b", "/to/b"), ("c", "/other")) == ["a and b"]
    assert named(("a", "/to"), ("b", "/tod")) == []
    assert named(("out", "/to/run"), ("out/model", "/to/run/model")) == [], "these are the same files"


def test_all_nodes_deliver_each_under_its_own_name_with_the_variables_of_its_role(tmp_path: Path) -> None:
    outputs = (Output(path="out", uri=f"{tmp_path}/to/${{SHOT}}", nodes="all"),)
    roles = {
        "main_env": {"ROLE": "main", "SHOT": "x"},
        "worker_env": {"ROLE": "worker", "SHOT": "x"},
    }
    with Gang(tmp_path, WRITES, nodes=2, outputs=outputs, **roles) as gang:
        assert gang.run(ROLE="nobody") == [0, 0]
        assert gang.agents[0].report.outputs == (f"{tmp_path}/to/x",)
    found = {
        path.relative_to(tmp_path / "to").as_posix(): path.read_text()
        for path in tmp_path.glob("to/**/*.txt")
    }
    assert found == {"x/who.txt": "0main", "x/node-1/who.txt": "1worker"}


def test_after_a_failure_only_what_is_always_wanted_is_kept_and_marked(tmp_path: Path) -> None:
    outputs = (
        Output(path="out", uri=f"{tmp_path}/to", when="always"),
        Output(path="out", uri=f"{tmp_path}/never"),
    )
    with Gang(tmp_path, WRITES, outputs=outputs) as gang:
        assert gang.run(CODE="3", ROLE="") == [3]
        assert gang.agents[0].report.outputs == ()
    assert (tmp_path / "to" / f"failed-{gang.name}" / "who.txt").read_text() == "0"
    assert not (tmp_path / "never").exists()


def test_faults_of_preparation_are_reported_before_the_training_starts(tmp_path: Path) -> None:
    for number, (changes, says) in enumerate(
        [
            ({"outputs": (Output(path="out", uri="/to/${ABSENT}"),)}, "'ABSENT'"),
            ({"mounts": ("absent-data",)}, "the job mounts absent-data"),
            ({"inputs": (Input(source="/absent/data", target="data"),)}, "the input /absent/data"),
        ]
    ):
        with Gang(tmp_path / str(number), "print('trained')", **changes) as gang:
            assert gang.run() in ([74], [78])
            assert says in (gang.agents[0].report.message or "")
            assert gang.agents[0].stdout.read_text() == ""


def test_a_name_that_the_target_cannot_hold_is_refused_at_once_and_all_else_is_delivered(
    tmp_path: Path, emulator: Access, caplog: pytest.LogCaptureFixture
) -> None:
    uri = f"oci://{emulator.bucket}@{emulator.namespace}/{uuid.uuid4().hex}"
    access = OciAccess(config_file=emulator.config_file, profile=emulator.profile, endpoint=emulator.url)
    odd = os.fsdecode(b"caf\xe9[1].txt")
    (tmp_path / "out" / "logs").mkdir(parents=True)
    for name in ("model.txt", odd, "logs/1.txt", f"logs/{odd}"):
        (tmp_path / "out" / name).touch()
    (tmp_path / "late.txt").touch()

    def delivered_to(place: str) -> set[str]:
        outputs = (Output(path="out", uri=place), Output(path="late.txt", uri=place))
        chosen = planned_copies(outputs, tmp_path, rank=0, is_main=True, nodes=1)
        copy_outputs(chosen, access, deadline=SaveDeadline(1.0))
        return {entry.name for entry in open_store(place, access).list()}

    with pytest.raises(
        AgentError, match=r"without '.*caf\\udce9\[1\]\.txt', .* not UTF-8 .* rename it"
    ) as caught:
        delivered_to(uri)
    assert caught.value.cause is Cause.DATA
    assert "trying again" not in caplog.text
    assert {entry.name for entry in open_store(uri, access).list()} == {
        "model.txt",
        "logs/1.txt",
        "late.txt",
    }
    assert delivered_to(str(tmp_path / "to")) == {
        "model.txt",
        odd,
        "logs/1.txt",
        f"logs/{odd}",
        "late.txt",
    }


def test_a_name_is_refused_for_what_is_sent_alone_which_a_link_within_the_output_may_lead_to(
    tmp_path: Path, emulator: Access, caplog: pytest.LogCaptureFixture
) -> None:
    uri = f"oci://{emulator.bucket}@{emulator.namespace}/{uuid.uuid4().hex}"
    access = OciAccess(config_file=emulator.config_file, profile=emulator.profile, endpoint=emulator.url)
    odd, out = os.fsdecode(b"caf\xe9"), tmp_path / "out"
    (out / "run-1").mkdir(parents=True)
    for name in ("model.txt", odd):
        (out / "run-1" / name).touch()
    (out / "latest").symlink_to("run-1")
    # Such names no copy sends.
    (tmp_path / "elsewhere").touch()
    (out / f"out-{odd}").symlink_to(tmp_path / "elsewhere")
    (out / f".{odd}.0123abcd.part").touch()
    chosen = planned_copies((Output(path="out", uri=uri),), tmp_path, rank=0, is_main=True, nodes=1)
    named = r"without 'latest/caf\\udce9', 'run-1/caf\\udce9':"
    with pytest.raises(AgentError, match=named):
        copy_outputs(chosen, access, deadline=SaveDeadline(1.0))
    assert "trying again" not in caplog.text
    delivered = {entry.name for entry in open_store(uri, access).list()}
    assert delivered == {"run-1/model.txt", "latest/model.txt"}
    (out / "run-1" / odd).unlink()
    assert copy_outputs(chosen, access) == (uri,)


LARGE = "import pathlib; pathlib.Path('model.bin').write_bytes(bytes(9 << 20))"


def test_a_node_that_is_killed_while_it_sends_an_output_has_said_what_it_leaves_open(
    tmp_path: Path, emulator: Access, faults: Callable[..., None]
) -> None:
    folder = uuid.uuid4().hex
    uri = f"oci://{emulator.bucket}@{emulator.namespace}/{folder}"
    access = OciAccess(config_file=emulator.config_file, profile=emulator.profile, endpoint=emulator.url)
    faults(method="PUT", path=f"/n/.*/u/{folder}.*", latency_s=8)
    output = Output(path="model.bin", uri=uri)
    with Gang(tmp_path, LARGE, outputs=(output,), oci_endpoint=emulator.url) as gang:
        (agent,) = gang.start(OCI_CONFIG_FILE=emulator.config_file, OCI_CLI_PROFILE=emulator.profile)
        agent.shows(lambda: (gang.run_dir / "nodes" / "0.json").exists() and agent.report.sending)
        agent.signal(signal.SIGKILL)
        agent.wait()
        sending = agent.report.sending
    (left,) = open_store(uri, access).open_uploads()
    assert [each.upload_id for each in sending] == [left.id]
    assert abort_reported(sending, access) == 1
    assert open_store(uri, access).open_uploads() == []


def test_a_node_that_is_stopped_while_it_sends_an_output_leaves_no_upload_open(
    tmp_path: Path, emulator: Access, faults: Callable[..., None]
) -> None:
    folder = uuid.uuid4().hex
    uri = f"oci://{emulator.bucket}@{emulator.namespace}/{folder}"
    access = OciAccess(config_file=emulator.config_file, profile=emulator.profile, endpoint=emulator.url)
    faults(method="PUT", path=f"/n/.*/u/{folder}.*", latency_s=3)
    output = Output(path="model.bin", uri=uri)
    limits = Limits(stop_grace=0.1, join_timeout=30.0)
    with Gang(tmp_path, LARGE, outputs=(output,), oci_endpoint=emulator.url, limits=limits) as gang:
        (agent,) = gang.start(OCI_CONFIG_FILE=emulator.config_file, OCI_CLI_PROFILE=emulator.profile)
        agent.shows(lambda: (gang.run_dir / "nodes" / "0.json").exists() and agent.report.sending)
        agent.signal(signal.SIGTERM)
        assert agent.wait() == 143
        assert agent.report.cause is None
        assert agent.report.sending == ()
    assert open_store(uri, access).open_uploads() == []


def test_the_next_attempt_aborts_what_nodes_of_the_one_before_were_sending_and_nothing_else(
    tmp_path: Path, emulator: Access
) -> None:
    uri = f"oci://{emulator.bucket}@{emulator.namespace}/{uuid.uuid4().hex}"
    access = OciAccess(config_file=emulator.config_file, profile=emulator.profile, endpoint=emulator.url)
    store = open_store(uri, access)
    own, others = (store.upload("model.bin", 2 << 20, 1 << 20) for _ in range(2))
    assert own.upload_id
    sending = (Sending(folder=uri, name="model.bin", upload_id=own.upload_id),)
    before = NodeReport(
        rank=1, phase=Phase.SAVING, address="", started_at=0.0, heartbeat_at=1.0, sending=sending
    )
    (tmp_path / "run" / "task-a2" / "nodes").mkdir(parents=True)
    (tmp_path / "run" / "task-a2" / "nodes" / "1.json").write_bytes(before.to_json())
    output = Output(path="model.bin", uri=uri, required=False)
    with Gang(tmp_path, "pass", outputs=(output,), oci_endpoint=emulator.url) as gang:
        run_dir = str(tmp_path / "run" / "task-a3")
        gang.config = replace(gang.config, run_dir=run_dir, attempt=3)
        assert gang.run(OCI_CONFIG_FILE=emulator.config_file, OCI_CLI_PROFILE=emulator.profile) == [0]
    assert [upload.id for upload in store.open_uploads()] == [others.upload_id]
