"""Code from wherever it lies."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.prepare import disk
from airflow_provider_ocidist.agent.prepare.code import announce, fetch_code, fetch_errors, require_same
from airflow_provider_ocidist.agent.prepare.workspace import Workspace, environment_paths
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.job import LauncherOptions, Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.git_source import GIT_URL, at_commit
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.stores.opening import open_store


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


def fetch(source: str, script: str = "train.py", **changes: Any) -> Workspace:
    program = Program(script=script, source=source, **changes)
    config = AgentConfig(run_name="run", nodes=1, run_dir="/run", program=program)
    return fetch_code(config, {}, OciAccess(), StopSwitch())


def test_a_folder_is_copied(project: Path) -> None:
    workspace = fetch(str(project))
    assert Path(workspace.program.script).read_text() == "print('v1')"
    assert (workspace.code / "project" / "pkg" / "model.py").exists()


def test_why_code_cannot_be_had_shows_no_token() -> None:
    place = "http://127.0.0.1:9/p/the-secret/n/ns/b/bucket/o"
    with pytest.raises(AgentError, match=r"/p/\*\*\*/n/ns") as caught:
        fetch(f"{place}/train.zip?sig=the-secret")
    assert "secret" not in str(caught.value)
    with (
        pytest.raises(AgentError, match=r"^the code cannot be fetched: .*/p/\*\*\*/n/ns") as caught,
        fetch_errors("the code", Path()),
    ):
        raise FileNotFoundError(f"{place}/train.py?sig=the-secret")
    assert "secret" not in str(caught.value)


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
def test_git_urls_are_distinguished_from_their_branches(source, url, ref) -> None:
    match = GIT_URL.fullmatch(source)
    assert match
    assert (match["url"], match["ref"] or match["at"]) == (url, ref)


@pytest.mark.parametrize(
    "source", ["oci://bucket@ns/code/", "/shared/code.zip", "s3://bucket/a.tar.gz", "code"]
)
def test_other_places_are_no_git_urls(source: str) -> None:
    assert GIT_URL.fullmatch(source) is None


def test_a_password_in_the_url_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.agent.prepare.git.PAUSES", ())
    with pytest.raises(AgentError) as caught:
        fetch("https://me:secret@127.0.0.1:9/a.git")
    assert caught.value.cause is Cause.DATA
    assert "secret" not in str(caught.value)
    assert "https://127.0.0.1:9/a.git cannot be fetched" in str(caught.value)


def test_code_that_is_not_there_is_named() -> None:
    with pytest.raises(AgentError, match="/absent/code cannot be fetched"):
        fetch("/absent/code")


def test_without_a_working_dir_a_program_runs_where_the_path_of_its_script_begins(project: Path) -> None:
    script = fetch(str(project / "train.py"))
    assert script.working_dir == Path(script.program.script).parent
    short = fetch(str(project), "train.py")
    assert short.working_dir == Path(short.program.script).parent
    named = fetch(str(project), "project/train.py")
    assert named.working_dir == Path(named.program.script).parents[1]
    module = fetch(str(project), "pkg.model", module=True)
    assert module.working_dir.name == "project"


def test_a_working_dir_may_be_named_from_the_project_or_from_what_holds_it(project: Path) -> None:
    inside = fetch(str(project), "project/train.py", working_dir="project")
    assert inside.working_dir == Path(inside.program.script).parent
    below = fetch(str(project), "train.py", working_dir="pkg")
    assert below.working_dir == Path(below.program.script).parent / "pkg"


def test_what_lies_there_from_before_is_left_alone(project: Path) -> None:
    Path("code").mkdir()
    Path("code/train.py").write_text("print('old')")
    assert Path(fetch(str(project)).program.script).read_text() == "print('v1')"
    assert Path("code/train.py").read_text() == "print('old')"


def test_the_python_path_of_the_job_comes_after_the_working_dir(project: Path) -> None:
    workspace = fetch(str(project), "project/train.py", python_path=("project/pkg", "absent"))
    code = workspace.code
    paths = environment_paths(workspace, {"PYTHONPATH": "/node"}).split(os.pathsep)
    assert paths[:5] == [str(code), f"{code}/project/pkg", f"{code}/absent", f"{code}/project", "/node"]


def test_the_inside_of_a_package_is_not_imported_from(project: Path) -> None:
    (project / "__init__.py").touch()
    workspace = fetch(str(project), "project/train.py")
    assert f"{workspace.code}/project" not in environment_paths(workspace, {}).split(os.pathsep)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"script": "trian.py"}, "did you mean 'train.py'"),
        ({"working_dir": "absent"}, "'absent' is not in the code, which has pkg, project"),
        ({"source_secret": "ocid1.vaultsecret.x"}, "opens Git repositories"),
    ],
)
def test_what_the_job_says_wrongly_is_named(project: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(AgentError, match=says) as caught:
        fetch(str(project), **changes)
    assert caught.value.cause is Cause.CONFIG


def tar_of(path: Path, member: tarfile.TarInfo, content: bytes = b"x") -> Path:
    with tarfile.open(path, "w") as archive:
        member.size = len(content) if member.isfile() else 0
        archive.addfile(member, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


@pytest.mark.parametrize(
    "made",
    [
        member("../out.py"),
        member("train.py", tarfile.SYMTYPE, "/etc/passwd"),
        member("train.py", tarfile.LNKTYPE, "../../out.py"),
        member("train.py", tarfile.CHRTYPE),
    ],
)
def test_a_tar_that_reaches_out_of_its_folder_is_refused(tmp_path: Path, made: tarfile.TarInfo) -> None:
    with pytest.raises(AgentError, match="is refused") as caught:
        fetch(str(tar_of(tmp_path / "code.tar", made)))
    assert caught.value.cause is Cause.CONFIG
    assert not (tmp_path / "node" / "out.py").exists()


@pytest.mark.parametrize("name, mode", [("../out.py", 0), ("/tmp/out.py", 0), ("train.py", 0o120777)])
def test_a_zip_that_reaches_out_of_its_folder_is_refused(tmp_path: Path, name: str, mode: int) -> None:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(AgentError, match="is refused"):
        fetch(str(tmp_path / "code.zip"))


def test_a_program_in_a_zip_stays_executable(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("run.sh")
    info.external_attr = 0o755 << 16
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr(info, "#!/bin/sh")
    assert os.access(fetch(str(tmp_path / "code.zip"), "run.sh").program.script, os.X_OK)


@pytest.mark.parametrize("form", ["folder", "file", "zip"])
def test_a_script_that_is_to_be_executed_can_be_though_its_way_here_forgot_it(
    project: Path, tmp_path: Path, form: str
) -> None:
    source = {"folder": project, "file": project / "train.py", "zip": tmp_path / "code.zip"}[form]
    if form == "zip":
        with zipfile.ZipFile(source, "w") as archive:
            archive.writestr("train.py", "#!/bin/sh")
    config = AgentConfig(
        run_name="run",
        nodes=1,
        run_dir="/run",
        program=Program(script="train.py", source=str(source)),
        launcher=LauncherOptions(kind="command"),
    )
    workspace = fetch_code(config, {}, OciAccess(), StopSwitch())
    assert os.access(workspace.program.script, os.X_OK)
    assert not os.access(fetch(str(source)).program.script, os.X_OK), "Python reads it, and needs no more"


@pytest.mark.parametrize("name", ["code.zip", "code.tar"])
def test_an_archive_that_does_not_fit_is_refused_and_damaged_ones_are_reported(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / name
    archive.write_bytes(b"no archive")
    with pytest.raises(AgentError, match="cannot be unpacked") as caught:
        fetch(str(archive))
    assert caught.value.cause is Cause.DATA
    if name == "code.tar":
        tar_of(archive, member("train.py"), b"x" * 1000)
    else:
        with zipfile.ZipFile(archive, "w") as content:
            content.writestr("train.py", "x" * 1000)
    usage = disk.shutil.disk_usage("/")._replace(free=999)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(AgentError, match=r"has 999 B free: give the nodes more disk") as caught:
        fetch(str(archive))
    assert caught.value.cause is Cause.DATA


def test_nodes_that_have_different_commits_do_not_train(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "run"))
    announce("a" * 40, store)
    require_same("a" * 40, store)
    require_same(None, store)
    with pytest.raises(AgentError, match="at bbbbbbbbbbbb, node 0 at aaaaaaaaaaaa: its branch moved"):
        require_same("b" * 40, store)


@pytest.mark.parametrize(
    "source, expected",
    [
        ("https://host/team/code.git", "https://host/team/code.git#abc1234"),
        ("git+https://host/team/code.git@main", "git+https://host/team/code.git#abc1234"),
        ("git@host:team/code.git#feature/x", "git@host:team/code.git#abc1234"),
        ("oci://bucket@namespace/code.zip", "oci://bucket@namespace/code.zip"),
        ("/srv/code", "/srv/code"),
    ],
)
def test_a_node_in_the_place_of_a_lost_one_fetches_the_commit_of_the_others(
    source: str, expected: str
) -> None:
    assert at_commit(source, "abc1234") == expected
