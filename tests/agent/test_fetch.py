"""Code from wherever it lies."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.config import AgentConfig
from airflow_provider_ocidist.agent.fetch import GIT_URL, Workspace, fetch_code
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.job import Program
from airflow_provider_ocidist.oci_clients import OciAccess


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node").mkdir()
    monkeypatch.chdir(tmp_path / "node")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print('v1')")
    (folder / "pkg" / "model.py").write_text("")
    return folder


def fetch(source: str, script: str = "train.py") -> Workspace:
    config = AgentConfig(
        run_name="run", nodes=1, run_dir="/run", program=Program(script=script, source=source)
    )
    return fetch_code(config, {}, OciAccess(), StopSwitch())


def git(folder: Path, *args: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run(["git", "-C", str(folder), *identity, *args], check=True, capture_output=True)


@pytest.fixture
def repository(project: Path, tmp_path: Path) -> Path:
    git(project, "init", "--quiet", "--initial-branch=main")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "one")
    git(project, "checkout", "--quiet", "-b", "next")
    (project / "train.py").write_text("print('v2')")
    git(project, "commit", "--quiet", "-am", "two")
    git(project, "checkout", "--quiet", "main")
    subprocess.run(
        ["git", "clone", "--quiet", "--bare", str(project), str(tmp_path / "project.git")], check=True
    )
    return tmp_path / "project.git"


def test_a_folder_is_copied(project: Path) -> None:
    workspace = fetch(str(project))
    assert Path(workspace.program.script).read_text() == "print('v1')"
    assert (workspace.code / "pkg" / "model.py").exists()


def test_a_single_file_is_a_project_too(project: Path) -> None:
    assert Path(fetch(str(project / "train.py")).program.script).read_text() == "print('v1')"


@pytest.mark.parametrize("name", ["code.zip", "code.tar.gz"])
def test_an_archive_is_unpacked(project: Path, tmp_path: Path, name: str) -> None:
    archive = tmp_path / name
    if name.endswith("zip"):
        with zipfile.ZipFile(archive, "w") as content:
            content.write(project / "train.py", "train.py")
    else:
        with tarfile.open(archive, "w:gz") as content:
            content.add(project / "train.py", "train.py")
    assert Path(fetch(str(archive)).program.script).read_text() == "print('v1')"


@pytest.mark.parametrize(
    "suffix, text", [("", "print('v1')"), ("@next", "print('v2')"), ("#next", "print('v2')")]
)
def test_a_branch_is_cloned_without_its_history(repository: Path, suffix: str, text: str) -> None:
    workspace = fetch(f"git+file://{repository}{suffix}")
    assert Path(workspace.program.script).read_text() == text
    count = subprocess.run(
        ["git", "-C", str(workspace.code), "rev-list", "--count", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert count.stdout.strip() == "1"


@pytest.mark.parametrize(
    "source, url, ref",
    [
        ("https://github.com/a/b.git", "https://github.com/a/b.git", None),
        ("https://github.com/a/b.git@v1", "https://github.com/a/b.git", "v1"),
        ("https://user:pw@host/b.git#main", "https://user:pw@host/b.git", "main"),
        ("git@github.com:a/b.git", "git@github.com:a/b.git", None),
        ("git@github.com:a/b.git@main", "git@github.com:a/b.git", "main"),
        ("git+https://github.com/a/b@main", "git+https://github.com/a/b", "main"),
    ],
)
def test_git_urls_are_told_from_their_branches(source, url, ref) -> None:
    match = GIT_URL.fullmatch(source)
    assert match
    assert (match["url"], match["ref"] or match["at"]) == (url, ref)


@pytest.mark.parametrize(
    "source", ["oci://bucket@ns/code/", "/shared/code.zip", "s3://bucket/a.tar.gz", "code"]
)
def test_other_places_are_no_git_urls(source: str) -> None:
    assert GIT_URL.fullmatch(source) is None


def test_a_password_in_the_url_is_never_shown() -> None:
    with pytest.raises(AgentError) as caught:
        fetch("https://me:secret@127.0.0.1:9/a.git")
    assert caught.value.cause is Cause.DATA
    assert "secret" not in str(caught.value)
    assert "https://127.0.0.1:9/a.git cannot be fetched" in str(caught.value)


def test_code_that_is_not_there_is_named() -> None:
    with pytest.raises(AgentError, match="/absent/code cannot be fetched"):
        fetch("/absent/code")
