"""ocidist init: what it writes is right; that it runs, tests/cli/test_walk.py shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from airflow_provider_ocidist.cli import main
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


@pytest.mark.parametrize("option", [["--launcher", "torchrn"], ["--nodes", "0"]])
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, capsys, option):
    assert main(["init", str(tmp_path / "new"), *option]) == 2
    assert capsys.readouterr().err.startswith(f"ocidist: {' '.join(option)}: ")
    assert not (tmp_path / "new").exists()
