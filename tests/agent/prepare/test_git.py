"""Code from real Git repositories: what is fetched, who is asked for it, and what is said when it cannot be."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.prepare import git
from airflow_provider_ocidist.agent.prepare.git.credentials import TOKEN_USER
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.model.git_source import parse
from tests.agent.prepare.git_server import GitServer, serve

TOKEN = "glpat-s3cr3t-t0ken"
FAKE_SSH = """#!/bin/sh
# Stands in for ssh: shows what it was given, and runs what the server would run.
config="$2"
key=$(sed -n 's/^IdentityFile "\\(.*\\)"$/\\1/p' "$config")
{ cat "$config"; stat -c 'mode %a' "$key"; } > "$SHOWN"
shift 2
while [ "${1#-}" != "$1" ]; do shift; [ "$1" = SendEnv=GIT_PROTOCOL ] && shift; done
shift
eval "$1"
"""


def run_git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "protocol.file.allow=always"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with project.git, of three commits and a submodule, and lib.git, which is that submodule."""
    root = tmp_path_factory.mktemp("served")
    for name in ("lib", "project"):
        work = root / name
        work.mkdir()
        run_git(work, "init", "--quiet", "--initial-branch=main")
        (work / "train.py").write_text(f"{name} 1")
        if name == "project":
            run_git(work, "submodule", "add", "--quiet", "../lib.git", "lib")
        run_git(work, "add", ".")
        run_git(work, "commit", "--quiet", "-m", "1")
        run_git(work, "tag", "v1")
        for number in (2, 3):
            (work / "train.py").write_text(f"{name} {number}")
            run_git(work, "commit", "--quiet", "-am", str(number))
        run_git(work, "branch", "next", "main~1")
        subprocess.run(
            ["git", "clone", "--quiet", "--bare", str(work), str(root / f"{name}.git")], check=True
        )
    return root


def commit_of(root: Path, name: str) -> str:
    return run_git(root / "project", "rev-parse", name)


def clone(source: str, folder: Path, secret: str | None = None, switch: StopSwitch | None = None) -> str:
    repository = parse(source)
    assert repository
    git.clone(repository, folder, secret, os.environ, switch or StopSwitch())
    return (folder / "train.py").read_text()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "PAUSES", (0.05, 0.05))


def test_branch_tag_commit_and_head_are_fetched_without_history_and_with_submodules(
    served: Path, tmp_path: Path
) -> None:
    second = commit_of(served, "main~1")
    with serve(served) as server:
        for number, (suffix, text) in enumerate(
            [("", "project 3"), ("#next", "project 2"), ("@v1", "project 1"), (f"#{second}", "project 2")]
        ):
            folder = tmp_path / str(number)
            assert clone(f"{server.url}/project.git{suffix}", folder) == text
            assert run_git(folder, "rev-list", "--count", "HEAD") == "1"
            assert (folder / "lib" / "train.py").read_text() == "lib 3"


def test_a_commit_that_the_server_gives_only_with_its_branch_is_fetched_all_the_same(
    served: Path, tmp_path: Path
) -> None:
    second = commit_of(served, "main~1")
    with serve(served, modern=False) as server:
        assert clone(f"{server.url}/project.git#{second}", tmp_path / "whole") == "project 2"
        assert clone(f"{server.url}/project.git#{second[:9]}", tmp_path / "short") == "project 2"


def test_a_token_opens_a_private_repository_and_is_nowhere_to_be_read(
    served: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    started = subprocess.Popen

    def noting(arguments, **options):
        seen.append(" ".join(arguments))
        return started(arguments, **options)

    monkeypatch.setattr("airflow_provider_ocidist.agent.prepare.command.subprocess.Popen", noting)
    monkeypatch.setenv("GIT_TRACE", "1")
    caplog.set_level(logging.DEBUG)
    with serve(served, user="robot", password=TOKEN) as server:
        url = f"{server.url}/project.git"
        assert clone(url, tmp_path / "named", f"robot:{TOKEN}\n") == "project 3"
        assert clone(url.replace("//", f"//robot:{TOKEN}@"), tmp_path / "in-url") == "project 3"
        server.user = TOKEN_USER
        assert clone(url, tmp_path / "bare", TOKEN) == "project 3"
    files = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert files == []
    assert len(seen) > 9
    assert TOKEN not in " ".join(seen) + caplog.text


def test_a_token_is_not_sent_to_where_the_server_redirects(served: Path, tmp_path: Path) -> None:
    with (
        serve(served, user=TOKEN_USER, password=TOKEN) as other,
        serve(served, redirect_to=other.url) as server,
        pytest.raises(AgentError, match="refuses us"),
    ):
        clone(f"{server.url}/project.git", tmp_path / "code", TOKEN)
    assert (server.seen, other.seen) == ([], [])


@pytest.mark.parametrize("secret, says", [("wrong", "refuses us"), (None, "refuses us")])
def test_a_refusal_names_the_remedy(served: Path, tmp_path: Path, secret: str | None, says: str) -> None:
    with serve(served, user="robot", password=TOKEN) as server:
        error = failure(f"{server.url}/project.git", tmp_path, secret)
    assert error.cause is Cause.CONFIG
    assert says in str(error)
    assert "program.source_secret" in str(error)


def failure(source: str, tmp_path: Path, secret: str | None = None) -> AgentError:
    with pytest.raises(AgentError) as caught:
        clone(source, tmp_path / "code", secret)
    return caught.value


@pytest.mark.parametrize(
    "path, says",
    [
        ("absent.git", "there is no such repository"),
        ("project.git#absent", "has no branch, tag or commit 'absent'"),
        ("project.git#abad1deaabad1dea", "has no branch, tag or commit 'abad1deaabad1dea'"),
        ("project.git#main:refs/heads/x", "is not a branch, tag or commit"),
        ("project.git#--upload-pack=touch x", "is not a branch, tag or commit"),
    ],
)
def test_what_is_not_there_is_distinguished(served: Path, tmp_path: Path, path: str, says: str) -> None:
    with serve(served) as server:
        error = failure(f"{server.url}/{path}", tmp_path)
    assert error.cause is Cause.CONFIG
    assert says in str(error)


def test_an_outage_is_waited_out_and_a_lasting_one_is_no_fault_of_the_job(
    served: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(served, unavailable=2) as server:
        assert clone(f"{server.url}/project.git", tmp_path / "patient") == "project 3"
        server.unavailable = 99
        error = failure(f"{server.url}/project.git", tmp_path)
    assert error.cause is Cause.DATA
    assert "503" in str(error)
    assert caplog.text.count("trying again") == 4


def test_without_git_the_message_says_what_to_do(tmp_path: Path) -> None:
    repository = parse("https://host.invalid/a.git")
    assert repository
    with pytest.raises(AgentError, match="git is not installed on this node: choose an image") as caught:
        git.clone(repository, tmp_path / "code", None, {"PATH": str(tmp_path)}, StopSwitch())
    assert caught.value.cause is Cause.CONFIG


def test_a_node_that_is_asked_to_stop_does_not_wait_for_the_network(served: Path, tmp_path: Path) -> None:
    switch = StopSwitch()
    switch.ask(Stop(message="enough"))
    with serve(served) as server, pytest.raises(Stopped):
        clone(f"{server.url}/project.git", tmp_path / "code", switch=switch)


def test_an_ssh_key_is_private_pinned_to_the_known_hosts_and_gone_afterwards(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(FAKE_SSH)
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("SHOWN", str(tmp_path / "shown"))
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\r\nPRIVATE PART\r\n-----END OPENSSH PRIVATE KEY-----"
    source = f"ssh://git@host.invalid{served}/lib.git#next"
    assert clone(source, tmp_path / "pinned", f"{key}\nhost.invalid ssh-ed25519 AAAA\n") == "lib 2"
    shown = (tmp_path / "shown").read_text()
    assert "StrictHostKeyChecking yes" in shown
    assert "mode 600" in shown
    assert "PRIVATE PART" not in shown
    place = Path(shown.partition('IdentityFile "')[2].partition('"')[0])
    assert not place.parent.exists()
    assert clone(source, tmp_path / "new", key) == "lib 2"
    assert "StrictHostKeyChecking accept-new" in (tmp_path / "shown").read_text()


@pytest.mark.parametrize(
    "source, secret, says",
    [
        ("git@host.invalid:a/b.git", TOKEN, "contains no private key"),
        ("https://host.invalid/a.git", "-----BEGIN PRIVATE KEY-----", "contains an SSH key"),
        ("http://host.invalid/a.git", TOKEN, "in the clear"),
        ("https://host.invalid/a.git", "a:b\nhost=elsewhere", "line breaks"),
        ("git+file:///a.git", TOKEN, "is neither"),
    ],
)
def test_a_secret_that_does_not_fit_is_refused_before_it_is_used(
    tmp_path: Path, source: str, secret: str, says: str
) -> None:
    error = failure(source, tmp_path, secret)
    assert error.cause is Cause.CONFIG
    assert says in str(error)
    assert TOKEN not in str(error)


def test_a_submodule_from_elsewhere_cannot_read_files_of_the_node(served: Path, tmp_path: Path) -> None:
    work = tmp_path / "served" / "evil"
    work.mkdir(parents=True)
    run_git(work, "init", "--quiet", "--initial-branch=main")
    run_git(work, "submodule", "add", "--quiet", str(served / "lib.git"), "lib")
    (work / "train.py").write_text("evil")
    run_git(work, "add", ".")
    run_git(work, "commit", "--quiet", "-m", "1")
    subprocess.run(
        ["git", "clone", "--quiet", "--bare", str(work), str(work.with_suffix(".git"))], check=True
    )
    with serve(tmp_path / "served") as server:
        assert isinstance(server, GitServer)
        error = failure(f"{server.url}/evil.git", tmp_path)
    assert "transport 'file' not allowed" in str(error)
