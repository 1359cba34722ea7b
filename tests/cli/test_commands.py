"""ocidist, as it is called from a terminal."""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import json
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from airflow_provider_ocidist import __version__
from airflow_provider_ocidist.cli import COMMANDS, EXIT_CODES, main
from airflow_provider_ocidist.cli.connection import backend_of, connection_of
from airflow_provider_ocidist.cli.files import load
from airflow_provider_ocidist.cli.note import read
from airflow_provider_ocidist.cli.terminal import Unusable

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
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
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


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))


@pytest.mark.parametrize(
    "text, message",
    [
        ("name: &a [*a]", "an alias that contains itself"),
        (BOMB, "more than 100000 values"),
        ("a: !!bool maybe", "is not of its tag"),
    ],
    ids=["circle", "bomb", "tag"],
)
def test_a_file_that_is_an_attack_is_wrong_in_a_line(folder, capsys, text, message):
    (folder / "attack.yaml").write_text(text)
    assert main(["check", "attack.yaml"]) == 1
    assert message in "".join(capsys.readouterr())


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


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_plan_masks_secrets(folder, capsys, form):
    secret = "hunter-22"
    given = ["--set", f"env.DB_PASSWORD={secret}", "--set", f"env.URL=http://me:{secret}@host/"]
    assert main(["plan", "good.yaml", *form, *given]) == 0
    shown = capsys.readouterr().out
    assert secret not in shown
    assert "DB_PASSWORD" in shown


def test_plan_takes_what_a_connection_would_say(folder, capsys):
    fields = ["--field", "compartment_id=ocid1.compartment.oc1..a", "--field", "work_dir=oci://b@n/work"]
    assert main(["plan", "good.yaml", "--json", "--nodes", "3", *fields]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["nodes"] == 3
    assert plan["requests"][0]["body"]["compartmentId"] == "ocid1.compartment.oc1..a"
    assert plan["requests"][0]["body"]["projectId"] == "<project_id of the connection>"
    assert plan["run_dir"].startswith("oci://b@n/work/")
    assert [environment["OCIDIST_NODE_RANK"] for environment in plan["environment"]] == ["0", "1", "2"]


def test_a_field_with_an_empty_value_takes_the_next_that_names_one(folder, capsys):
    pack = ["--set", "backend.conda_uri=oci://b@n/pack", "--field", "conda_region="]
    plan = plan_of(capsys, *pack, "--field", "region=eu-frankfurt-1")
    assert "'CONDA_ENV_REGION': 'eu-frankfurt-1'" in str(plan)


def test_plan_of_a_kubeflow_manifest_prints_the_pytorchjob_that_would_be_created(capsys):
    manifest = Path(__file__).parents[2] / "tests/job_file/dialects/pytorchjob_cpu.yaml"
    assert main(["plan", str(manifest), "--json"]) == 0
    bodies = [request["body"] for request in json.loads(capsys.readouterr().out)["requests"]]
    (made,) = [body for body in bodies if body["kind"] == "PyTorchJob"]
    given = yaml.safe_load(manifest.read_text())
    for role, replicas in made["spec"]["pytorchReplicaSpecs"].items():
        asked = given["spec"]["pytorchReplicaSpecs"][role]
        assert replicas["replicas"] == asked["replicas"]
        container, wanted = (each["template"]["spec"]["containers"][0] for each in (replicas, asked))
        assert container["image"] == wanted["image"]
        assert container.get("volumeMounts") == wanted.get("volumeMounts")


def test_plan_shows_a_few_of_many_nodes(folder, capsys):
    assert main(["plan", "good.yaml", "--nodes", "64"]) == 0
    assert "# and so on up to node 63" in capsys.readouterr().out


def plan_of(capsys, *arguments):
    assert main(["plan", "good.yaml", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_shows_either_topology(folder, capsys):
    one = plan_of(capsys, "--topology", "multi_node")
    assert [request["verb"] for request in one["requests"]].count("CreateJobRun") == 1
    many = plan_of(capsys, "--topology", "job_runs", "--set", "backend.subnet_id=ocid1.subnet.oc1..a")
    assert [request["verb"] for request in many["requests"]].count("CreateJobRun") == 2


def test_any_value_of_a_file_can_be_replaced(folder, capsys):
    plan = plan_of(capsys, "--set", "nodes=4", "--set", "env.SEED=7")
    assert (plan["nodes"], plan["environment"][3]["SEED"]) == (4, "7")
    assert main(["plan", "good.yaml", "--set", "nodes"]) == 2
    assert "write it as PATH=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given,expected",
    [
        ('["200","0.5"]', ("200", "0.5")),
        ("[]", ()),
        ('["two words", "[1]", "a=b"]', ("two words", "[1]", "a=b")),
    ],
)
def test_a_list_can_be_replaced_by_json(folder, given, expected):
    options = argparse.Namespace(set=[f"program.args={given}"])
    assert load("good.yaml", options).program.args == expected


def test_a_section_can_be_replaced_by_json_and_what_is_none_is_reported(folder, capsys):
    options = argparse.Namespace(set=['env={"A": "1", "B": "x=y"}', "env.C={{ params.c }}"])
    env = load("good.yaml", options, templates=True).env
    assert {"A": "1", "B": "x=y", "C": "{{ params.c }}"}.items() <= env.items()
    assert main(["plan", "good.yaml", "--set", 'program.args=["200"']) == 2
    assert "--set program.args: is not valid JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given, message",
    [
        ("program.args=" + "[" * 20_000, "is nested too deeply"),
        ("program.args=" + "[" * 900 + "]" * 900, "is nested too deeply"),
        ("program.args=[" + "9" * 5000 + "]", "is not valid JSON"),
        (f"program.args.{'9' * 5000}=1", "there is no such key in the job"),
    ],
    ids=["open", "nested", "digits", "index"],
)
def test_a_replacement_that_nobody_could_mean_is_refused_in_a_line(folder, capsys, given, message):
    assert main(["plan", "good.yaml", "--set", given]) in (1, 2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["preflight", "run", "drill"])
def test_a_template_that_airflow_would_render_is_refused_but_in_what_is_the_programs_own(
    folder, capsys, command
):
    given = 'outputs=[{"path": "out", "uri": "oci://b@n/{{ run_id }}/"}]'
    assert main([command, "good.yaml", "--set", given, "--set", "env.A={{ x }}"]) == 1
    (line,) = [line for line in "".join(capsys.readouterr()).splitlines() if "Jinja" in line]
    assert "outputs.0.uri: contains Jinja, which only Airflow fills in" in line
    assert line.endswith("--set outputs.0.uri=VALUE")
    assert main(["plan", "good.yaml", "--set", given]) == 0
    for own in ("main_env", "worker_env"):
        job = load("good.yaml", argparse.Namespace(set=["nodes=2", f"{own}.PROMPT={{{{ question }}}}"]))
        assert getattr(job, own)["PROMPT"] == "{{ question }}"
    assert load("good.yaml", argparse.Namespace(set=['program.args=["{{ x }}"]', "env.A={{ x }}"])).env == {
        "SEED": "1",
        "A": "{{ x }}",
    }


def test_plan_shows_the_environment_of_each_role(folder, capsys):
    plan = plan_of(capsys, "--set", "main_env.ROLE=main", "--set", "worker_env.ROLE=worker")
    assert [environment["ROLE"] for environment in plan["environment"]] == ["main", "worker"]


def test_plan_of_a_container_shows_its_own_start(folder, capsys):
    (folder / "good.yaml").write_text(
        "name: own\nnodes: 2\nimage: iad.ocir.io/n/i:1\nprogram: {script: a.py}\n"
        "container: {entrypoint: [bash, -c], command: [echo hi]}\nmain_env: {A: 1}\n"
        "backend: {shape: VM.Standard2.1, subnet_id: ocid1.subnet.oc1..a}\n"
    )
    plan = plan_of(capsys)
    assert plan["example_launch"] == "bash -c 'echo hi'"
    assert [environment.get("A") for environment in plan["environment"]] == ["1", None]
    assert [environment["OCIDIST_NODE_RANK"] for environment in plan["environment"]] == ["0", "1"]


def test_a_job_file_may_lie_anywhere(folder, capsys):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    (folder / "inline.yaml").write_text(GOOD.replace("source: train", f"source: {folder}/train"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            address = f"http://127.0.0.1:{server.server_port}/inline.yaml"
            code, out = main(["check", address]), capsys.readouterr().out
        finally:
            server.shutdown()
    assert (code, out) == (0, f"{address}: ok (retrain: 2 nodes, torchrun, on oci_data_science)\n")


def test_plan_of_a_wrong_file_says_what_is_wrong_and_nothing_else(folder, capsys):
    assert main(["plan", "wrong.yaml"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("wrong.yaml:2: nods: unknown key")


def test_plan_refuses_a_field_that_no_connection_has(folder, capsys):
    assert main(["plan", "good.yaml", "--field", "compartement_id=ocid1.compartment.oc1..a"]) == 2
    assert (
        "compartement_id: a connection has no such field; did you mean compartment_id?"
        in capsys.readouterr().err
    )


def test_plan_refuses_a_field_without_a_value(folder, capsys):
    assert main(["plan", "good.yaml", "--field", "compartment_id"]) == 2
    assert "write it as NAME=VALUE" in capsys.readouterr().err


# the command itself


def test_the_version_is_printed_with_the_name_of_the_command(capsys):
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


def test_without_a_command_all_commands_are_listed(capsys):
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    assert [name for name in COMMANDS if f"\n  {name} " not in shown] == []


@pytest.mark.parametrize("wrong, right", [("chek", "check"), ("runn", "run"), ("wacth", "watch")])
def test_a_mistyped_command_is_answered_with_the_nearest(wrong, right, capsys):
    with pytest.raises(SystemExit) as caught:
        main([wrong, "job.yaml"])
    assert caught.value.code == 2
    assert f"no command {wrong!r}; did you mean {right!r}?" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["check", "good.yaml"], 0),
        (["check", "good.yaml", "wrong.yaml"], 1),
        (["check", "good.yaml", "wrong.yaml", "--json"], 1),
        (["check", "wrong.yaml", "nonsense.yaml"], 2),
        (["diff", "good.yaml", "good.yaml"], 0),
        (["diff", "good.yaml", "other.yaml"], 1),
        (["diff", "good.yaml", "other.yaml", "--json"], 1),
        (["preflight", "local.yaml"], 0),
        (["preflight", "git.yaml"], 1),
        (["plan", "good.yaml", "--nodes", "40"], 0),
        (["plan", "wrong.yaml"], 1),
        (["plan", "nonsense.yaml"], 2),
        (["schema"], 0),
        (["init", "new"], 0),
        (["copy", "train", "copied"], 0),
    ],
)
def test_a_command_whose_output_nobody_reads_has_its_own_exit_code(folder, arguments, code):
    (folder / "other.yaml").write_text(GOOD.replace("SEED: 1", "SEED: 2"))
    local = f"backend: {{kind: local}}\nwork_dir: {folder}/work\n"
    (folder / "local.yaml").write_text(GOOD[: GOOD.index("backend")] + local)
    gone = GOOD.replace("source: train", f"source: 'git+file://{folder}/gone'")
    (folder / "git.yaml").write_text(gone[: gone.index("backend")] + local)
    with _closed_pipe() as pipe:
        done = ocidist(*arguments, stdout=pipe)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


@pytest.mark.parametrize("arguments, code", [(["check", "wrong.yaml"], 1), (["plan", "nonsense.yaml"], 2)])
def test_nor_does_it_matter_that_nobody_reads_the_errors(folder, arguments, code):
    with _closed_pipe() as pipe:
        assert ocidist(*arguments, stdout=pipe, stderr=pipe).returncode == code


@pytest.mark.parametrize("line", ["check good.yaml", "check wrong.yaml --json", "plan good.yaml", "schema"])
def test_output_that_cannot_be_written_is_a_line_and_exit_code_2(folder, line):
    with Path("/dev/full").open("w") as full:
        done = ocidist(*line.split(), stdout=full)
        why = "ocidist: the output cannot be written: No space left on device\n"
        assert (done.returncode, done.stderr) == (2, why)
        assert ocidist(*line.split(), stdout=full, stderr=full).returncode == 2


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
@pytest.mark.parametrize(
    "arguments, code", [("check good.yaml", 0), ("check wrong.yaml", 1), ("plan nonsense.yaml", 2)]
)
def test_a_command_without_an_output_does_its_work(folder, arguments, code, closed):
    line = f"{sys.executable} -m airflow_provider_ocidist.cli {arguments} {closed}"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


@contextlib.contextmanager
def _closed_pipe():
    """A pipe whose reader has left before the first line."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.parametrize("value", ["-1", "0", "-0.0", "nan", "inf", "-inf", "1e300", "86401", "soon", ""])
@pytest.mark.parametrize("command", ["run good.yaml --wait", "watch info.yaml", "cancel info.yaml"])
def test_an_interval_in_which_nobody_can_wait_is_refused_before_anything_is_begun(
    folder, capsys, command, value
):
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), f"--interval={value}"])
    assert ended.value.code == 2
    assert "argument --interval: " in capsys.readouterr().err
    assert not (folder / "info.yaml").exists()


@pytest.mark.parametrize(
    "command",
    [
        "list --limit=0",
        "list --limit=-3",
        "checkpoints verify train --step=-1",
        "checkpoints fetch a b --step=x",
    ],
)
def test_a_number_that_means_nothing_is_refused_with_its_argument(capsys, command):
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 2
    assert "argument --" in capsys.readouterr().err


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


def completions(folder, line, **environ):
    pytest.importorskip("argcomplete")
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": "completions",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        **environ,
    }
    command = [sys.executable, "-c", "from airflow_provider_ocidist.cli import main; main([])"]
    subprocess.run(command, env=environ, check=True, capture_output=True, cwd=folder)
    return [word.strip() for word in (folder / "completions").read_text().split("\x0b")]


def test_the_shell_completes_commands_flags_files_notes_connections_and_kinds(folder):
    (folder / "info.yaml").write_text("jobId: a\nmainJobRunId: b\n")
    ids = {"AIRFLOW_CONN_OCI_PROD": "{}", "AIRFLOW_CONN_OCI_TEST": "{}"}
    assert completions(folder, "ocidist pl") == ["plan"]
    assert completions(folder, "ocidist plan --top") == ["--topology"]
    assert completions(folder, "ocidist plan --topology m") == ["multi_node"]
    assert completions(folder, "ocidist plan g") == ["good.yaml"]
    assert set(completions(folder, "ocidist watch ")) >= {"info.yaml", "train/"}
    assert "good.yaml" not in completions(folder, "ocidist watch ")
    assert completions(folder, "ocidist list --conn-id oci_", **ids) == ["oci_prod", "oci_test"]
    assert "torchrun" in completions(folder, "ocidist init --launcher ")


def test_help_names_every_command_and_exit_code(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert [name for name in COMMANDS if not re.search(rf"^  {name} ", text, re.MULTILINE)] == []
    documented = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    codes = re.findall(r"^  (\d+)  ", EXIT_CODES, re.MULTILINE)
    assert (
        codes
        == re.findall(r"^\| (\d+) \|", documented, re.MULTILINE)
        == ["0", "1", "2", "3", "129", "130", "141", "143"]
    )


@pytest.mark.parametrize(
    "command",
    [name for name in COMMANDS if name != "checkpoints"]
    + [f"checkpoints {action}" for action in ("list", "verify", "prune", "fetch", "export")],
)
def test_every_command_explains_itself_and_all_but_the_emulator_print_json(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    assert caught.value.code == 0
    assert ("--json" in capsys.readouterr().out) == (command != "emulator")


def test_where_the_connection_is_missing_it_is_named(folder, capsys):
    assert main(["run", "good.yaml"]) == 1
    *_, hint = capsys.readouterr().err.splitlines()
    assert hint.startswith(
        "there is no connection: AIRFLOW_CONN_OCI_DEFAULT is not set; put the connection there"
    )
    assert not (folder / "info.yaml").exists()
    assert hint.endswith("without an account: ocidist run good.yaml --set backend.kind=local --wait")


LONG = "x" * 300
ODD_PLACES = [LONG, f"{LONG}.yaml", "~nobody-here/x.yaml", "http://[::1/x", "adir.yaml", "good.yaml/x", " "]
PLACED = [
    "init",
    "check",
    "plan",
    "diff good.yaml",
    "preflight",
    "run",
    "run good.yaml --info",
    "status",
    "status --backend local",
    "cancel",
    "checkpoints list",
    "checkpoints verify",
    "copy good.yaml",
    "copy --",
]


CAN_BE = {
    *(("init", place) for place in ("http://[::1/x", "adir.yaml", " ")),
    *(("copy good.yaml", place) for place in ("adir.yaml", " ")),
    ("copy --", "adir.yaml"),
}
"""Names that are odd, and may be those of a folder."""


@pytest.mark.parametrize("command", PLACED)
@pytest.mark.parametrize("place", ODD_PLACES)
def test_a_place_that_cannot_be_is_an_error_of_one_line(folder, capsys, monkeypatch, command, place):
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", '{"conn_type": "oci"}')
    (folder / "adir.yaml").mkdir()
    words = [*command.split(), place, *(["out/"] if command == "copy --" else [])]
    code = main(words)
    err = capsys.readouterr().err
    assert (code == 0) is ((command, place) in CAN_BE)
    assert code == 0 or err
    assert code != 2 or (err.startswith("ocidist: ") and err.count("\n") == 1), err


@pytest.mark.parametrize(
    "command",
    [
        "init {}",
        "run good.yaml --info {}",
        "drill good.yaml --report {}",
        "checkpoints fetch here {}",
        "checkpoints export here {}",
    ],
)
def test_the_home_of_nobody_is_an_error_that_names_the_path_and_no_folder(folder, capsys, command):
    place = "~nobody-here/x"
    before = sorted(folder.iterdir())
    assert main(command.format(place).split()) == 2
    assert capsys.readouterr().err == (
        f"ocidist: {place} names no place: there is no user of that name here; write ./{place} for a name that begins "
        "so\n"
    )
    assert sorted(folder.iterdir()) == before


def test_a_home_that_no_shell_has_expanded_is_that_home(folder, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(folder / "home"))
    assert main(["init", "~/new"]) == 0
    assert (folder / "home" / "new" / "job.yaml").is_file()


@pytest.mark.parametrize("command", ["run", "preflight", "drill"])
@pytest.mark.parametrize("connection", [None, '{"conn_type": "oci"}'])
def test_a_job_that_this_machine_refuses_is_told_of_no_connection(
    folder, capsys, monkeypatch, command, connection
):
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", connection)
    given = ["--set", "backend.kind=local", "--set", "work_dir=oci://b@n/work"]
    assert main([command, "good.yaml", *given]) == 1
    said = capsys.readouterr().err
    assert "work_dir: must be a folder of this machine" in said
    assert "connection" not in said


@pytest.mark.parametrize(
    "value", ['{"conn_type": "oci"}', '{"conn_type": "oci", "extra": {}}', "oci://", "{}"]
)
@pytest.mark.parametrize("command", ["run", "preflight"])
def test_a_connection_without_fields_is_named_with_those_that_the_job_lacks(
    folder, capsys, monkeypatch, value, command
):
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", value)
    assert main([command, "good.yaml"]) == 1
    *_, hint = capsys.readouterr().err.splitlines()
    assert hint.startswith(
        "AIRFLOW_CONN_OCI_DEFAULT has no fields; it needs compartment_id, project_id, work_dir (docs/connection.md)"
    )


@pytest.mark.parametrize("extra", ["", '"extra": {"compartment_id": "c", "work_dir": "oci://b@n/w"}, '])
@pytest.mark.parametrize("command", ["run", "preflight", "status"])
def test_a_connection_of_another_type_is_named_with_the_type_that_the_backend_needs(
    folder, capsys, monkeypatch, extra, command
):
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", f'{{{extra}"conn_type": "aws"}}')
    arguments = ["ocid1.datasciencejob.oc1..a"] if command == "status" else ["good.yaml"]
    assert main([command, *arguments]) == 2
    assert "AIRFLOW_CONN_OCI_DEFAULT has the type 'aws'; backend oci_data_science needs 'oci'" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("kind", ["oci", "generic", "", None])
def test_connections_of_no_particular_type_are_used(monkeypatch, kind):
    extra = {"compartment_id": "c", "project_id": "p"}
    given = {"extra": extra} if kind is None else {"conn_type": kind, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(given))
    backend = backend_of(argparse.Namespace(conn_id="cluster", field=[]), "oci_data_science")
    assert backend.kind == "oci_data_science"
    assert _fields() == extra


@pytest.mark.parametrize(
    "conn_type, extra, warnings",
    [
        ("oci", {"compartmnt_id": "c"}, ["compartmnt_id (did you mean compartment_id?)"]),
        (None, {"compartmnt_id": "c"}, ["compartmnt_id (did you mean compartment_id?)"]),
        ("oci", {"bucket": "b", "shape": "s"}, ["bucket"]),
        ("runai", {"projct": "p"}, ["projct (did you mean project?)"]),
        # What Airflow's own forms and its hook of a cluster write.
        ("oci", {"extra__oci__compartmnt_id": "c"}, []),
        ("kubernetes", {"xcom_sidecar_container_image": "i", "extra__kubernetes__namespace": "n"}, []),
        ("kubernetes", {"namespce": "n"}, ["namespce (did you mean namespace?)"]),
        ("oci", {"private_key_content": "k", "passphrase": "p", "work_dir": "w", "storage_conn_id": ""}, []),
    ],
)
def test_a_field_of_a_connection_that_nothing_reads_is_named_once(
    monkeypatch, capsys, conn_type, extra, warnings
):
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": conn_type, "extra": extra}))
    _fields()
    assert capsys.readouterr().err.splitlines() == [
        f"AIRFLOW_CONN_CLUSTER: a connection has no field {each}; it is ignored" for each in warnings
    ]


@pytest.mark.parametrize("given", ["", "runs"])
def test_where_runs_of_this_machine_cannot_be_listed_their_folder_is_named(
    tmp_path, monkeypatch, capsys, given
):
    monkeypatch.setenv("HOME", str(tmp_path))
    fields = ["--field", f"work_dir={tmp_path}/{given}"] if given else []
    assert main(["list", "--backend", "local", *fields]) == 2
    refusal = f"cannot list its gangs: they are the folders in {tmp_path}/{given or '.ocidist'}"
    assert refusal in capsys.readouterr().err


def _fields(*arguments):
    options = argparse.Namespace(conn_id="cluster", field=list(arguments))
    return connection_of(options)


def test_the_connection_for_storage_is_read_too_and_the_clusters_fields_win(monkeypatch):
    cluster = {"storage_conn_id": "Store", "work_dir": "oci://b@n/cluster"}
    store = {"tenancy": "ocid1.tenancy.oc1..team", "region": "eu-frankfurt-1", "work_dir": "oci://b@n/store"}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "kubernetes", "extra": cluster}))
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "oci", "login": "me", "extra": store}))
    found = _fields()
    assert (found["tenancy"], found["region"]) == (store["tenancy"], store["region"])
    assert found["work_dir"] == cluster["work_dir"]
    from airflow_provider_ocidist.hooks.oci import OciHook

    assert found == dict(OciHook("cluster").fields)


@pytest.mark.parametrize("given", ["field", "connection"])
def test_a_connection_for_storage_that_is_not_set_is_named_with_the_remedy(monkeypatch, given):
    extra = {"storage_conn_id": "nonsense"} if given == "connection" else {}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    with pytest.raises(
        Unusable, match=r"storage_conn_id is nonsense, and AIRFLOW_CONN_NONSENSE is not set: put"
    ):
        _fields(*(["storage_conn_id=nonsense"] if given == "field" else []))


def test_a_connection_for_storage_that_names_itself_is_refused(monkeypatch):
    extra = {"storage_conn_id": "cluster"}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    with pytest.raises(Unusable, match="leads back to itself"):
        _fields()


def test_a_connection_that_is_not_set_is_reported_with_those_that_are(folder, capsys, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_OCI_PROD", "{}")
    assert main(["plan", "good.yaml", "--conn-id", "oci_prd"]) == 2
    message = capsys.readouterr().err
    assert "AIRFLOW_CONN_OCI_PRD is not set" in message
    assert "oci_prod" in message


@pytest.mark.parametrize(
    "value",
    [
        "!!timestamp soon",
        "!!bool maybe",
        "!!int ''",
        "!!float x",
        "!!python/name:os.system",
        "*none",
        "[" * 3000,
    ],
)
def test_a_note_that_no_run_has_written_is_named(folder, value):
    note = folder / "info.yaml"
    note.write_text(f"record: {value}\n")
    with pytest.raises(Unusable, match=r"info\.yaml: was not written by `ocidist run`"):
        read(note)
