"""Where a node puts what it fetches: beside itself, or wherever it may write."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.prepare.workspace import fresh_folder
from airflow_provider_ocidist.errors import AgentError, Cause


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system that takes nothing, as a part of an image does; permissions do not bind root."""
    place = tmp_path / "read-only"
    place.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)], check=False, capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("writable", ["working directory", "home", "temporary folder", "none"])
def test_a_node_takes_the_first_folder_that_it_may_write_to_and_says_where_there_is_none(
    read_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: str
) -> None:
    places = {"working directory": read_only, "home": read_only, "temporary folder": read_only}
    places |= {writable: tmp_path} if writable != "none" else {}
    monkeypatch.chdir(places["working directory"])
    monkeypatch.setattr(tempfile, "tempdir", str(places["temporary folder"]))
    environ = {"HOME": str(places["home"])}
    if writable == "none":
        with pytest.raises(
            AgentError, match=rf"no folder to write to: .*{read_only} are all read-only"
        ) as caught:
            fresh_folder("code", environ)
        assert caught.value.cause is Cause.CONFIG
        return
    assert fresh_folder("code", environ) == tmp_path / "code"
    (tmp_path / "code").mkdir()
    again = fresh_folder("code", environ)
    assert again.name == "code"
    assert not again.exists(), "it holds no file of an earlier attempt"
    assert again.parent.parent == tmp_path
