"""ocidist init: what it writes is right; that it runs, tests/cli/test_walk.py shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.cli import main
from airflow_provider_ocidist.job_file import rules
from airflow_provider_ocidist.model.agent_config import RANK_VARIABLE, AgentConfig

FILES = ["Dockerfile", "compose.yaml", "job.schema.json", "job.yaml", "train/train.py"]


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_init_writes_a_folder_that_check_finds_right(tmp_path, capsys):
    assert main(["init", str(tmp_path / "My Spirals"), "--nodes", "3", "--launcher", "python"]) == 0
    folder = tmp_path / "My Spirals"
    assert names_in(folder) == FILES
    assert not [name for name in FILES if "@" in (folder / name).read_text().replace("bucket@namespace", "")]
    capsys.readouterr()
    assert main(["check", str(folder / "job.yaml")]) == 0
    assert capsys.readouterr().out.endswith("ok (my-spirals: 3 nodes, python, on oci_data_science)\n")


def test_the_job_file_names_its_schema_and_fits_it(tmp_path, capsys):
    import jsonschema

    main(["init", str(tmp_path)])
    text = (tmp_path / "job.yaml").read_text()
    (name,) = [line.partition("$schema=")[2] for line in text.splitlines() if "$schema=" in line]
    schema = json.loads((tmp_path / name).read_text())
    jsonschema.validate(yaml.safe_load(text), schema)
    capsys.readouterr()
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema
    assert main(["schema", "--path"]) == 0
    assert json.loads(Path(capsys.readouterr().out.strip()).read_text()) == schema


def test_the_compose_file_starts_every_node_of_the_gang(tmp_path):
    main(["init", str(tmp_path), "--nodes", "3"])
    services = yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"]
    environments = [service["environment"] for service in services.values()]
    assert [environment[RANK_VARIABLE] for environment in environments] == ["0", "1", "2"]
    config = AgentConfig.from_env(environments[0])
    assert (config.nodes, config.program.script, config.launcher.kind) == (3, "train.py", "torchrun")


def test_nothing_is_written_over_unless_it_is_forced(tmp_path, capsys):
    (tmp_path / "job.yaml").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert "exists already: --force overwrites it" in capsys.readouterr().err
    assert names_in(tmp_path) == ["job.yaml"]
    assert main(["init", str(tmp_path), "--force", "--json"]) == 0
    assert sorted(json.loads(capsys.readouterr().out)) == [str(tmp_path / name) for name in FILES]
    assert "mine" not in (tmp_path / "job.yaml").read_text()


@pytest.mark.parametrize(
    "name",
    ["yes", "no", "on", "off", "true", "null", "y", "2024", "1e3", "0x1f", "1_000", "12-01-02", "2024-01-02"],
)
def test_a_name_that_yaml_takes_for_something_else_stays_a_name(tmp_path, capsys, name):
    assert main(["init", str(tmp_path / name)]) == 0
    capsys.readouterr()
    assert main(["check", str(tmp_path / name / "job.yaml")]) == 0, capsys.readouterr().out
    written = name.replace("_", "-")
    assert f"ok ({written}: 2 nodes" in capsys.readouterr().out
    node = yaml.safe_load((tmp_path / name / "compose.yaml").read_text())["x-node"]
    assert node["image"] == written


@pytest.mark.parametrize("kind", kinds.names("launchers"))
def test_a_launcher_that_starts_one_process_expects_one_on_a_shape_with_several_gpus(
    tmp_path: Path, kind: str
) -> None:
    assert main(["init", str(tmp_path), "--launcher", kind]) == 0
    launcher = yaml.safe_load((tmp_path / "job.yaml").read_text())["launcher"]
    assert launcher.get("processes_per_node") == (1 if kind == "command" else None)


@pytest.mark.parametrize("kind", kinds.names("launchers"))
def test_the_image_has_what_the_chosen_launcher_needs(tmp_path: Path, kind: str) -> None:
    assert main(["init", str(tmp_path), "--launcher", kind]) == 0
    words = (tmp_path / "Dockerfile").read_text().split()
    wanted = [*kinds.load("launchers", kind).LAUNCHER.requires]
    wanted += ["openmpi-bin", "openssh-server"] if kind == "mpirun" else []
    assert set(wanted) <= set(words)
    services = yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"]
    job = yaml.safe_load((tmp_path / "job.yaml").read_text())
    program = AgentConfig.from_env(services["main"]["environment"]).program
    assert (program.script, program.module) == (job["program"]["script"], job["program"].get("module", False))


@pytest.mark.torch
def test_what_is_written_for_the_launcher_command_trains_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert main(["init", "new", "--launcher", "command", "--nodes", "1"]) == 0
    few = ["--set", 'program.args=["--steps", "3"]']
    code = main(["run", "new/job.yaml", "--set", "backend.kind=local", *few, "--wait"])
    assert code == 0, capsys.readouterr().out


def trained(folder: Path, *arguments: str) -> str:
    """Run the script alone, and return what it has printed."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    progress = {"OCIDIST_PROGRESS_FILE": str(folder / "progress.jsonl")}
    done = subprocess.run(
        [sys.executable, "train.py", *arguments],
        cwd=folder,
        env={**os.environ, **alone, **progress},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.torch
def test_the_script_takes_what_deepspeed_passes_and_a_retry_after_its_last_step_counts_as_complete(
    tmp_path: Path,
) -> None:
    assert main(["init", str(tmp_path)]) == 0
    trained(tmp_path / "train", "--local_rank=0", "--steps", "3")
    assert not (tmp_path / "train" / "progress.jsonl").exists()
    assert "beginning after step 3" in trained(tmp_path / "train", "--steps", "3")
    reported = json.loads((tmp_path / "train" / "progress.jsonl").read_text())
    assert reported == {"complete": True, "step": 3, "steps": 3}
    # From a million on, the names are no longer in the order of their steps.
    kept = tmp_path / "train" / "checkpoints"
    (kept / "step-000003.pt").rename(kept / "step-1000000.pt")
    (kept / "step-999999.pt").write_text("older, and no checkpoint")
    trained(tmp_path / "train", "--steps", "3")


@pytest.mark.parametrize(
    "option, named",
    [
        (["--launcher", "torchrn"], "--launcher torchrn"),
        (["--nodes", "0"], "--nodes 0"),
        (["--name", "n" * 256], "--name"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, capsys, option, named):
    assert main(["init", str(tmp_path / "new"), *option]) == 2
    assert capsys.readouterr().err.startswith(f"ocidist: {named}: ")
    assert not (tmp_path / "new").exists()


def test_a_folder_whose_name_is_too_long_for_a_job_is_named_with_the_remedy(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rules, "MAX_NAME", 20)
    folder = tmp_path / ("n" * 21)
    assert main(["init", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"ocidist: {folder}: ")
    assert "21 characters; 20 are allowed" in said
    assert "--name" in said
    assert not folder.exists()
    assert main(["init", str(folder), "--name", "short"]) == 0
