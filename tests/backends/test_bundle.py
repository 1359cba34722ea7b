"""Code that travels from the machine that submits: which files, under which names, and which can be executed."""

from __future__ import annotations

import io
import os
import random
import shutil
import tarfile
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends import bundle
from airflow_provider_ocidist.backends.local import Local
from airflow_provider_ocidist.backends.local.plans import LocalOptions
from airflow_provider_ocidist.errors import BackendError, Cause, JobFileError
from airflow_provider_ocidist.job_file.rules import code as rules
from airflow_provider_ocidist.model.job import Program, TrainingJob
from airflow_provider_ocidist.model.run import RunKey


def sent(code: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(bundle.code_bundle(str(code))))


def modes(code: Path) -> dict[str, int]:
    return {info.filename: info.external_attr >> 16 & 0o777 for info in sent(code).infolist()}


def a_script(path: Path, mode: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\necho started\n")
    path.chmod(mode)
    return path


def a_zip(folder: Path, at: Path) -> Path:
    with zipfile.ZipFile(at, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return at


def a_tar(folder: Path, at: Path) -> Path:
    with tarfile.open(at, "w:gz") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
    return at


@pytest.mark.parametrize("form", ["folder", "zip", "tar", "file"])
def test_an_executable_of_the_code_stays_one_and_all_else_is_none(tmp_path: Path, form: str) -> None:
    project = tmp_path / "project"
    script = a_script(project / "bin/start", 0o700)
    a_script(project / "train.py", 0o600)
    forms = {
        "folder": lambda: project,
        "zip": lambda: a_zip(project, tmp_path / "code.zip"),
        "tar": lambda: a_tar(project, tmp_path / "code.tar.gz"),
        "file": lambda: script,
    }
    found = {Path(name).name: mode for name, mode in modes(forms[form]()).items()}
    assert found == {"start": 0o755} | ({} if form == "file" else {"train.py": 0o644})


def test_equal_code_is_equal_bytes_whatever_its_owner_lets_others_do(tmp_path: Path) -> None:
    script, train = a_script(tmp_path / "code/start", 0o744), a_script(tmp_path / "code/train.py", 0o640)
    first = bundle.agent_bundle(str(tmp_path / "code"))
    script.chmod(0o711)
    train.chmod(0o444)
    assert bundle.agent_bundle(str(tmp_path / "code")) == first
    script.chmod(0o644)
    assert bundle.agent_bundle(str(tmp_path / "code")) != first


# links


def a_tree(dice: random.Random, root: Path) -> None:
    """Make folders, files and links between them, also such as lead back to themselves or nowhere."""
    folders = [root]
    for number in range(dice.randint(1, 5)):
        folders.append(dice.choice(folders) / dice.choice([f"d{number}", ".git", "__pycache__", "release"]))
        folders[-1].mkdir(exist_ok=True)
    outside = root.parent / "outside"
    (outside / "deeper").mkdir(parents=True, exist_ok=True)
    (outside / "deeper/far.py").write_text("")
    for number in range(dice.randint(1, 5)):
        (dice.choice(folders) / f"f{number}.py").write_text("")
    for number in range(dice.randint(1, 4)):
        target = dice.choice([*folders, outside, root / "f0.py", root / "nowhere"])
        (dice.choice(folders) / f"l{number}").symlink_to(target)


@pytest.mark.parametrize("seed", range(30))
def test_check_finds_exactly_the_files_that_are_sent_links_followed(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    root = tmp_path / "code"
    root.mkdir()
    a_tree(random.Random(seed), root)
    names = {name.removeprefix("code/") for name in sent(root).namelist()}
    # Whatever a reader could name in the folder, three links deep.
    below = ["*", "*/*", "*/*/*", "*/*/*/*", "*/*/*/*/*", "*/*/*/*/*/*", "*/*/*/*/*/*/*"]
    candidates = {path.relative_to(root).as_posix() for each in below for path in root.glob(each)} | names
    assert {name for name in candidates if not list(rules._script_in(root, name, ""))} == names
    linked = {
        path
        for path in root.glob("*")
        if path.is_symlink() and path.is_dir() and path.resolve() not in {root, *root.parents}
    }
    for link in linked:
        for file in link.resolve().glob("*.py"):
            assert f"{link.name}/{file.name}" in names


def test_a_linked_folder_travels_and_one_that_leads_back_ends(tmp_path: Path) -> None:
    (tmp_path / "shared/deep").mkdir(parents=True)
    (tmp_path / "shared/deep/layers.py").write_text("")
    root = tmp_path / "code"
    root.mkdir()
    (root / "train.py").write_text("")
    (root / "lib").symlink_to(tmp_path / "shared")
    (root / "again").symlink_to(tmp_path / "shared")
    (root / "loop").symlink_to(root)
    (tmp_path / "shared/up").symlink_to(root)
    assert sorted(sent(root).namelist()) == [
        "code/again/deep/layers.py",
        "code/lib/deep/layers.py",
        "code/train.py",
    ]
    assert bundle.code_size(str(root), 10**6) == 0


def test_requirements_and_script_of_a_folder_that_is_not_sent_are_missing_at_check(tmp_path: Path) -> None:
    (tmp_path / "code/.venv").mkdir(parents=True)
    for name in ("train.py", "requirements.txt"):
        (tmp_path / "code/.venv" / name).write_text("")
    (script,) = rules._script_in(tmp_path / "code", ".venv/train.py", "")
    program = Program(source=str(tmp_path / "code"), script=".venv/train.py")
    (requirements,) = rules.requirements_in_the_code(program, ".venv/requirements.txt")
    assert (script.path, requirements.path) == ("program.script", "dependencies.requirements")


# names


def test_a_linked_folder_has_the_name_that_was_written(tmp_path: Path) -> None:
    (tmp_path / "releases/v42").mkdir(parents=True)
    (tmp_path / "releases/v42/train.py").write_text("")
    (tmp_path / "current").symlink_to("releases/v42")
    assert sent(tmp_path / "current").namelist() == ["current/train.py"]
    assert not list(rules._script_in(tmp_path / "current", "current/train.py", ""))
    assert list(rules._script_in(tmp_path / "current", "v42/train.py", ""))


@pytest.mark.parametrize("written", [".", "../project", "deeper/.."])
def test_a_folder_that_is_written_without_its_name_has_it_for_check_and_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    (tmp_path / "project/deeper").mkdir(parents=True)
    (tmp_path / "project/train.py").write_text("")
    monkeypatch.chdir(tmp_path / "project")
    assert sent(Path(written)).namelist() == ["project/train.py"]
    assert not list(rules._script_in(Path(written), "project/train.py", ""))


# what changes while it is packed


def test_what_runs_write_in_a_work_directory_inside_the_code_is_no_code(tmp_path: Path) -> None:
    project = tmp_path / "project"
    a_script(project / "train.py", 0o600)
    (project / "linked").symlink_to("runs/work")
    work_dir = project / "runs/work"
    before = bundle.code_bundle(str(project), str(work_dir))
    a_script(work_dir / "checkpoints/step-1/model.pt", 0o600)
    a_script(project / "runs/notes.txt", 0o600)
    for written in (str(work_dir), f"{work_dir}/", f"file://{work_dir}", str(tmp_path / "project/linked")):
        members = zipfile.ZipFile(io.BytesIO(bundle.code_bundle(str(project), written))).namelist()
        assert sorted(members) == ["project/runs/notes.txt", "project/train.py"]
    (project / "runs/notes.txt").unlink()
    assert bundle.code_bundle(str(project), str(work_dir)) == before
    # Elsewhere, or nowhere: all is sent.
    for elsewhere in (
        None,
        "oci://bucket@namespace/work",
        str(tmp_path),
        str(tmp_path / "none"),
    ):
        members = zipfile.ZipFile(io.BytesIO(bundle.code_bundle(str(project), elsewhere))).namelist()
        assert "project/runs/work/checkpoints/step-1/model.pt" in members


def test_a_work_directory_that_is_the_folder_of_the_code_is_refused(tmp_path: Path) -> None:
    project = tmp_path / "project"
    a_script(project / "train.py", 0o600)
    (tmp_path / "linked").symlink_to("project")
    key = RunKey(dag_id="own", run_id="1", task_id="train")
    for written in (str(project), f"{project}/", f"file://{project}", str(tmp_path / "linked")):
        job = TrainingJob(
            name="own",
            program=Program(source=str(project), script="train.py"),
            backend=LocalOptions(),
            work_dir=written,
        )
        (problem,) = rules.program(job)
        assert problem.path == "work_dir"
        assert "program.source" in problem.message
        assert ".ocidist" in problem.message
        with pytest.raises(BackendError, match=r"work_dir .*program\.source") as caught:
            bundle.code_bundle(str(project), written)
        assert caught.value.cause is Cause.CONFIG
        with pytest.raises(JobFileError, match=r"work_dir: .*program\.source"):
            Local.connect({"work_dir": written}).plan(replace(job, work_dir=None), key)
        job = replace(job, work_dir=f"{written.rstrip('/')}/.ocidist")
        assert not list(rules.program(job))


def test_what_another_program_removes_amid_the_packing_is_no_code_and_what_it_replaces_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    for name in ("a.py", "b.py", "c.py", "inner/d.py", "other/e.py"):
        a_script(project / name, 0o600)
    read, listed = bundle._file_member, os.scandir

    def amid_reading(name: str, file: Path) -> bundle._Member:
        if name == "a.py" and file.exists():
            for gone in ("b.py", "c.py"):
                (project / gone).unlink()
        if name == "inner/d.py":
            # As an editor, or `git pull`: removed, and there again.
            a_script(project / "c.py", 0o600)
        return read(name, file)

    def amid_listing(place: Any) -> Any:
        # `rmtree` lists by descriptors.
        if isinstance(place, str) and Path(place).name == "other":
            shutil.rmtree(place)
        return listed(place)

    monkeypatch.setattr(bundle, "_file_member", amid_reading)
    monkeypatch.setattr(bundle.os, "scandir", amid_listing)
    assert sent(project).namelist() == ["project/a.py", "project/inner/d.py", "project/c.py"]
    with pytest.raises(FileNotFoundError):
        sent(tmp_path / "absent")


def test_check_does_not_find_a_script_that_lies_in_the_work_directory(tmp_path: Path) -> None:
    a_script(tmp_path / "project/runs/train.py", 0o600)
    found = [tmp_path / "project", "runs/train.py", ""]
    assert not list(rules._script_in(*found, str(tmp_path / "elsewhere")))
    (problem,) = rules._script_in(*found, str(tmp_path / "project/runs"))
    assert "is not in" in problem.message


def test_a_work_directory_that_does_not_answer_holds_nothing_up_and_its_files_are_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    a_script(project / "train.py", 0o600)
    a_script(project / "work/run/report.py", 0o600)
    answers, identity = threading.Event(), bundle._identity

    def hangs(folder: Path) -> tuple[int, int]:
        if folder.name == "work" and threading.current_thread() is not threading.main_thread():
            answers.wait(20)
        return identity(folder)

    monkeypatch.setattr(bundle, "WORK_DIR_ANSWERS_WITHIN", 0.05)
    monkeypatch.setattr(bundle, "_identity", hangs)
    try:
        late = pytest.raises(BackendError, match=r"work_dir .* has not answered for 0 s")
        with late as caught, bundle.code_errors(str(project)):
            bundle.code_bundle(str(project), str(project / "work"))
        assert caught.value.retryable
        (problem,) = rules._script_in(project, "train.py", "", str(project / "work"))
        assert "has not answered" in problem.message
    finally:
        answers.set()
