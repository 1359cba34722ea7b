"""ocidist, as it is called from a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from airflow_provider_ocidist import __version__
from airflow_provider_ocidist.cli import main

GOOD = """\
name: retrain
nodes: 2
program: {script: gpt.py, source: train, args: [--text, "two words"]}
env: {SEED: 1}
checkpoints: {path: checkpoints}
backend: {shape: VM.Standard.E4.Flex, ocpus: 1, memory_gb: 8}
"""
WRONG = "name: retrain\nnods: 2\nprogram: {script: gtp.py, source: train}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "gpt.py").write_text("")
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "wrong.yaml").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ocidist(*arguments, **options):
    command = [sys.executable, "-m", "airflow_provider_ocidist.cli", *arguments]
    path = os.pathsep.join(filter(None, ["", *sys.path]))
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        **options,
    )


# check


def test_check_of_a_right_file_says_so(folder, capsys):
    assert main(["check", "good.yaml"]) == 0
    assert capsys.readouterr().out == "good.yaml: ok (retrain: 2 nodes, torchrun, on oci_data_science)\n"


def test_check_prints_every_problem_on_its_own_line(folder, capsys):
    assert main(["check", "good.yaml", "wrong.yaml"]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "wrong.yaml:2: nods: unknown key 'nods'; did you mean 'nodes'?",
        f"wrong.yaml:3: program.script: 'gtp.py' is not in {folder}/train; did you mean 'gpt.py'?",
    ]


def test_check_finds_what_only_the_backend_knows(folder, capsys):
    (folder / "good.yaml").write_text(GOOD.replace("SEED: 1", f"BIG: {'x' * 30_000}"))
    assert main(["check", "good.yaml"]) == 1
    assert "the service allows 20000" in capsys.readouterr().out


def test_check_as_json(folder, capsys):
    assert main(["check", "--json", "good.yaml", "wrong.yaml", "absent.yaml"]) == 2
    good, wrong, absent = json.loads(capsys.readouterr().out)
    assert good == {"file": "good.yaml", "ok": True, "problems": [], "error": None}
    assert wrong["problems"][0] == {
        "path": "nods",
        "message": "unknown key 'nods'; did you mean 'nodes'?",
        "line": 2,
    }
    assert absent["error"] == "absent.yaml: cannot be read: No such file or directory"


@pytest.mark.parametrize("command", ["check", "plan"])
@pytest.mark.parametrize(
    "file, message",
    [
        ("absent.yaml", "cannot be read: No such file or directory"),
        ("train", "cannot be read: Is a directory"),
        ("binary.yaml", "is not text in UTF-8"),
        ("/dev/zero", "is longer than 1000000 characters"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line_and_exit_code_2(folder, capsys, command, file, message):
    (folder / "binary.yaml").write_bytes(b"\xff\xfe")
    assert main([command, file]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"ocidist: {file}: {message}\n")


# plan


def test_plan_prints_requests_environments_and_a_launch_line(folder, capsys):
    assert main(["plan", "good.yaml"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("nothing has been created; ")
    for part in (
        "# request 1: CreateJob\n",
        "CreateJobRun",
        "compartmentId: <compartment_id of the connection>",
        "SEED: '1'",
        "OCIDIST_NODE_RANK: '1'",
        "python -m torch.distributed.run --nnodes=2",
        "gpt.py --text 'two words'",
    ):
        assert part in text


def test_plan_takes_what_a_connection_would_say(folder, capsys):
    fields = ["--field", "compartment_id=ocid1.compartment.oc1..a", "--field", "work_dir=oci://b@n/work"]
    assert main(["plan", "good.yaml", "--json", "--nodes", "3", *fields]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["nodes"] == 3
    assert plan["requests"][0]["body"]["compartmentId"] == "ocid1.compartment.oc1..a"
    assert plan["requests"][0]["body"]["projectId"] == "<project_id of the connection>"
    assert plan["run_dir"].startswith("oci://b@n/work/")
    assert [environment["OCIDIST_NODE_RANK"] for environment in plan["environment"]] == ["0", "1", "2"]


def test_plan_shows_a_few_of_many_nodes(folder, capsys):
    assert main(["plan", "good.yaml", "--nodes", "64"]) == 0
    assert "# and so on up to node 63" in capsys.readouterr().out


def test_plan_of_a_wrong_file_says_what_is_wrong_and_nothing_else(folder, capsys):
    assert main(["plan", "wrong.yaml"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("wrong.yaml:2: nods: unknown key")


def test_plan_refuses_a_field_without_a_value(folder, capsys):
    assert main(["plan", "good.yaml", "--field", "compartment_id"]) == 2
    assert "write it as NAME=VALUE" in capsys.readouterr().err


# the command itself


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"ocidist {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["chekc"], ["check"], ["plan", "a", "--nodes", "two"]])
def test_a_wrong_command_line_is_exit_code_2_with_usage(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: ocidist" in capsys.readouterr().err


def test_the_emulator_explains_its_own_options(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["emulator", "--help"])
    assert caught.value.code == 0
    assert "--port" in capsys.readouterr().out


def test_check_starts_without_airflow_oci_or_torch(folder):
    code = (
        "import sys; from airflow_provider_ocidist.cli import main; main(['check', 'good.yaml'])\n"
        "heavy = {'airflow', 'oci', 'torch', 'fsspec', 'rich', 'starlette'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_leaves_early_is_no_error(folder):
    line = f"{sys.executable} -m airflow_provider_ocidist.cli plan good.yaml --nodes 400 | head -1"
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        line, shell=True, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout.startswith("nothing has been created")
    assert done.stderr == ""


def test_output_is_coloured_on_a_terminal_only(folder):
    assert "\x1b[" not in ocidist("check", "good.yaml").stdout
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "airflow_provider_ocidist.cli", "check", "good.yaml"]
    environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environ |= {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"}
    subprocess.run(command, stdout=slave, check=True, env=environ)
    os.close(slave)
    text = os.read(master, 10_000).decode()
    os.close(master)
    assert "\x1b[" in text
    assert "ok (retrain" in text


def test_the_shell_completes_commands(folder):
    pytest.importorskip("argcomplete")
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": "completions",
        "COMP_LINE": "ocidist pl",
        "COMP_POINT": "10",
    }
    command = [sys.executable, "-c", "from airflow_provider_ocidist.cli import main; main(['pl'])"]
    subprocess.run(command, env=environ, check=True, capture_output=True)
    assert (folder / "completions").read_text().split("\x0b") == ["plan "]
