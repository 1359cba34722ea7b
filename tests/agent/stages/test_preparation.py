"""What a node fetches before it trains, with whom it shares that, and which program it will start."""

from __future__ import annotations

import os
import stat
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stages.preparation import exchange_of, fetch_program
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.job import Checkpoints, Dependencies, Input, LauncherOptions, Program
from airflow_provider_ocidist.model.agent_config import INCARNATION_VARIABLE, AgentConfig

INPUTS = {"inputs": (Input(source="oci://bucket@namespace/data/", target="data"),)}
KEPT = "oci://bucket@namespace/kept"


def a_context(tmp_path: Path, changes: dict[str, Any], **environ: str) -> NodeContext:
    program, run_dir = Program(script="program.py"), str(tmp_path / "run")
    config = AgentConfig(**{"run_name": "run", "nodes": 2, "run_dir": run_dir, "program": program, **changes})
    environ = {"OCIDIST_NODE_RANK": "1", "HOME": str(tmp_path), **environ}
    return NodeContext(config, environ, StopSwitch())


def test_a_node_in_the_place_of_a_lost_one_asks_no_other_for_inputs(tmp_path: Path) -> None:
    assert exchange_of(a_context(tmp_path, INPUTS)) is not None
    assert exchange_of(a_context(tmp_path, INPUTS, **{INCARNATION_VARIABLE: "1"})) is None


@pytest.mark.parametrize(
    "changes, shares",
    [
        ({"attempt": 2, "checkpoints": Checkpoints(uri=KEPT)}, True),
        ({"attempt": 1, "checkpoints": Checkpoints(uri=KEPT)}, False),
        ({"attempt": 1, "checkpoints": Checkpoints(uri=KEPT), "checkpoints_stem": f"{KEPT}-g"}, True),
        ({"attempt": 1, "checkpoints": Checkpoints(uri=KEPT, start_from=f"{KEPT}/step-1")}, True),
        ({"attempt": 2, "checkpoints": Checkpoints(uri=KEPT, path="/mnt/of/several")}, False),
        ({"attempt": 2, "checkpoints": Checkpoints(uri=KEPT), "share_inputs": False}, False),
        ({"attempt": 2}, False),
    ],
)
def test_nodes_share_the_checkpoint_to_go_on_from_where_there_may_be_one(
    tmp_path: Path, changes: dict[str, Any], *, shares: bool
) -> None:
    assert (exchange_of(a_context(tmp_path, changes)) is not None) == shares


def write_program(folder: Path, name: str) -> None:
    """Write a package whose program says that it is that of the job."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        script = zipfile.ZipInfo(f"{name}-1.0.data/scripts/{name}")
        script.external_attr = (stat.S_IFREG | 0o755) << 16
        wheel.writestr(script, "#!/bin/sh\necho the packages\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def executable(place: Path, says: str) -> None:
    place.parent.mkdir(exist_ok=True)
    place.write_text(f"#!/bin/sh\necho {says}\n")
    place.chmod(0o755)


PLACES = ("code", "packages", "image")


@pytest.mark.parametrize(
    "name, there, starts",
    [
        ("tinytrain", ("packages",), "the packages"),
        ("tinytrain", ("packages", "image"), "the packages"),
        ("tinytrain", PLACES, "the code"),
        ("tinytrain", ("code", "image"), "the code"),
        ("tinytrain", ("image",), "the image"),
        ("tinytrain", (), None),
        *((name, ("code",), "the code") for name in ("test", "split", "join")),
    ],
)
def test_an_executable_is_that_of_the_code_else_that_of_the_jobs_packages_else_that_of_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, there: tuple[str, ...], starts: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("code", "image", "wheels"):
        (tmp_path / place).mkdir()
    if "packages" in there:
        write_program(tmp_path / "wheels", name)
    for place in {"code", "image"} & set(there):
        executable(tmp_path / place / name, f"the {place}")
    options = f"--no-index --find-links={tmp_path / 'wheels'}"
    changes = {
        "nodes": 1,
        "program": Program(script=name),
        "launcher": LauncherOptions(kind="command"),
        "dependencies": Dependencies(packages=(options, name)) if "packages" in there else Dependencies(),
    }
    context = a_context(
        tmp_path,
        changes,
        OCIDIST_NODE_RANK="0",
        OCIDIST_CODE_DIR=str(tmp_path / "code"),
        PATH=f"{tmp_path / 'image'}:{os.environ['PATH']}",
        PIP_CONFIG_FILE=os.devnull,
    )
    if starts is None:
        with pytest.raises(
            AgentError, match=r"the script 'tinytrain' is not in .*: correct program.script"
        ) as caught:
            fetch_program(context)
        assert caught.value.cause is Cause.CONFIG
        return
    script = fetch_program(context).program.script
    assert subprocess.run([script], capture_output=True, text=True, check=True).stdout == f"{starts}\n"
