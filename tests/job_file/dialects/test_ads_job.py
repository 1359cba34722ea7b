"""ADS's `kind: job` for PyTorch runs here, or every reason why not is reported by its own path and line."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_ocidist.backends.oci_data_science import OciDataScienceOptions
from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.job import Container, Dependencies, Input, LauncherOptions, Output, TrainingJob
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.job_file.dialects.ads import shell

GOLDEN = Path(__file__).with_name("golden")
DOC = GOLDEN / "pytorch_doc.yaml"
"""The example of ADS's documentation, but for what installs packages."""
FULL = GOLDEN / "pytorch_full.yaml"
RUNTIME = "spec.runtime.spec"


def mapping_of(runtime: dict[str, Any], remove: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the example with some keys of its runtime replaced, some removed."""
    mapping = yaml.safe_load(DOC.read_text())
    spec = mapping["spec"]["runtime"]["spec"]
    spec.pop("dependencies", None)
    spec |= runtime
    for key in remove:
        del spec[key]
    return mapping


def job_of(remove: tuple[str, ...] = (), **runtime: Any) -> TrainingJob:
    return parsing.build(mapping_of(runtime, remove))


def problems_of(remove: tuple[str, ...] = (), **runtime: Any) -> list[str]:
    with pytest.raises(JobFileError) as caught:
        job_of(remove, **runtime)
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


def test_the_example_of_the_documentation_becomes_a_job():
    job = job_of()
    assert (job.name, job.nodes, job.image) == ("PyTorch-MinGPT", 2, None)
    assert job.program.source == (
        "git+https://github.com/pytorch/examples.git#d91085d2181bf6342ac7dafbeee6fc0a1f64dcec"
    )
    assert job.program.script == "distributed/minGPT-ddp/mingpt/main.py"
    assert job.program.args == (
        "data_config.path=data/input.txt",
        "trainer_config.snapshot_path=data/snapshot.pt",
    )
    assert job.inputs == (
        Input(
            source="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            target="data/input.txt",
        ),
    )
    assert job.outputs == (
        Output(path="data", uri="oci://bucket_name@namespace/path/to/dir", required=False, nodes="all"),
    )
    assert isinstance(job.backend, OciDataScienceOptions)
    assert (job.backend.shape, job.backend.conda_slug) == ("VM.GPU.A10.1", "pytorch210_p311_gpu_v1")


def test_a_file_with_every_key_becomes_a_job():
    job = parsing.load(FULL)
    assert job.dependencies == Dependencies(
        requirements="distributed/minGPT-ddp/requirements.txt", packages=("fire==0.4.0", "loguru")
    )
    assert job.program.python_path == ("distributed/minGPT-ddp", "lib")
    assert job.program.source_secret == "ocid1.vaultsecret.oc1.iad.aaaa"
    assert job.program.working_dir == "sub"


@pytest.mark.parametrize(
    "command, launcher, script, args, module",
    [
        ("torchrun a.py", LauncherOptions(), "a.py", (), False),
        (
            "torchrun --nproc_per_node 2 --rdzv-backend=static -m pkg.main --lr 1",
            LauncherOptions(args=("--nproc_per_node", "2", "--rdzv-backend=static")),
            "pkg.main",
            ("--lr", "1"),
            True,
        ),
        (
            "torchrun --standalone a.py --module x",
            LauncherOptions(args=("--standalone",)),
            "a.py",
            ("--module", "x"),
            False,
        ),
        (
            "python -u a.py 'two words'",
            LauncherOptions(kind="python", processes_per_node=1),
            "a.py",
            ("two words",),
            False,
        ),
    ],
)
def test_a_command_is_taken_apart(command, launcher, script, args, module):
    job = job_of(command=command)
    assert job.launcher == launcher
    assert (job.program.script, job.program.args, job.program.module) == (script, args, module)


def test_without_a_command_torchrun_runs_the_entrypoint():
    job = job_of(("command", "git"), scriptPathURI="oci://bucket@namespace/code/", entrypoint="train.py")
    assert (job.launcher.kind, job.program.script) == ("torchrun", "train.py")


def test_data_may_lie_anywhere_on_the_node():
    job = job_of(inputs={"oci://b@n/x": "/data/x"}, outputDir="/home/datascience/outputs")
    assert (job.inputs[0].target, job.outputs[0].path) == ("/data/x", "/home/datascience/outputs")


def test_variables_refer_to_one_another_and_to_nothing_else():
    env = [
        {"name": "A", "value": "x"},
        {"name": "B", "value": "${A}/$$1/${HOME}"},
        {"name": "C", "value": None},
    ]
    assert job_of(env=env).env.items() >= {"A": "x", "B": "x/$1/${HOME}", "C": ""}.items()
    assert job_of(env={"N": 1, "T": True}).env.items() >= {"N": "1", "T": "true"}.items()


def test_the_runtimes_tags_win_over_those_of_the_infrastructure():
    mapping = mapping_of({"freeformTags": {"team": "ml"}})
    mapping["spec"]["infrastructure"]["spec"]["freeformTags"] = {"team": "old", "cost": "1"}
    assert parsing.build(mapping).tags == {"team": "ml", "cost": "1"}


def test_the_maximum_runtime_is_in_minutes():
    assert job_of(maximumRuntimeInMinutes=120).limits.max_runtime == 7200


@pytest.mark.parametrize(
    "runtime, remove, problem",
    [
        ({"replicas": 0}, (), "replicas: must be a whole number of at least 1, not 0"),
        ({"replica": 2}, (), "replica: says the same as 'replicas': remove one of them"),
        (
            {"command": "torchrun a.py | tee log"},
            (),
            "command: contains '|', but no shell reads it: put a script into the code, or call bash",
        ),
        (
            {"command": "torchrun --node-rank $NODE_RANK a.py"},
            (),
            "command: $NODE_RANK is known only on the nodes: read it in the program",
        ),
        (
            {"args": ["--rank=${NODE_RANK}"]},
            (),
            "args.0: $NODE_RANK is known only on the nodes: read it in the program",
        ),
        (
            {"command": "./run.sh", "deepspeed": True},
            (),
            "deepspeed: is for the launchers deepspeed, accelerate and torchrun: write one of them before the script",
        ),
        (
            {"entryFunction": "main"},
            (),
            (
                "entryFunction: ADS's driver for PyTorch never calls it: call the function at the end of the script, "
                "remove this"
            ),
        ),
        (
            {"env": {"NODE_COUNT": 3}},
            (),
            "env.NODE_COUNT: NODE_COUNT is set on the nodes from other keys of the file: remove it",
        ),
        ({"conda": {"type": "published", "slug": "x"}}, (), "conda.uri: is needed"),
        (
            {"conda": {"type": "service", "slug": "x", "region": "y"}},
            (),
            "conda.region: has no meaning with type service: remove it",
        ),
        ({"command": "torchrun 'a.py"}, (), "command: cannot be split into arguments: no closing quotation"),
        ({"command": "torchrun --nnodes 2"}, (), "command: names no program after torchrun and its flags"),
        ({"comand": "x"}, (), "comand: unknown key 'comand'; did you mean 'command'?"),
        ({}, ("outputDir",), "outputDir: is needed with 'outputUri'"),
        ({}, ("git",), "git: is needed, or 'scriptPathURI': where the code is"),
        ({"inputs": ["x"]}, (), "inputs: must map sources to targets, not a list"),
        ({"env": ["A=1"]}, (), "env.0: must be a section with name and value"),
    ],
)
def test_what_is_wrong_is_reported_by_its_own_path(runtime, remove, problem):
    assert f"{RUNTIME}.{problem}" in problems_of(remove, **runtime)


@pytest.mark.parametrize(
    "command, kind, flags, script, args",
    [
        ("accelerate launch --fp16 x a.py --lr 1", "accelerate", ("--fp16", "x"), "a.py", ("--lr", "1")),
        (
            "deepspeed --num_gpus 2 a.py --deepspeed c.json",
            "deepspeed",
            ("--num_gpus", "2"),
            "a.py",
            ("--deepspeed", "c.json"),
        ),
        ("./train --fast", "command", (), "./train", ("--fast",)),
        ("torchrun a.py --out=${OUTPUT_DIR}/x", "torchrun", (), "a.py", ("--out=data/x",)),
        ("torchrun \\\n  a.py \\\n  --lr 1\n", "torchrun", (), "a.py", ("--lr", "1")),
        ("python a.py\n", "python", (), "a.py", ()),
        ("cd x && python a.py", "command", (), "bash", ("-c", "cd x && python a.py")),
        ("./train $HOME", "command", (), "bash", ("-c", "./train $HOME")),
        ("torchrun a.py --data $DATA '$DATA'", "torchrun", (), "a.py", ("--data", "two words", "$DATA")),
    ],
)
def test_a_command_keeps_its_meaning(command, kind, flags, script, args):
    job = job_of(command=command, env={"DATA": "two words"})
    assert (job.launcher.kind, job.launcher.args) == (kind, flags)
    assert (job.program.script, job.program.args) == (script, args)


def test_arguments_follow_those_of_the_command():
    job = job_of(command="torchrun a.py --lr 1", args=["--note", "$SIZE words", 0.1], env={"SIZE": "two"})
    assert job.program.args == ("--lr", "1", "--note", "two words", "0.1")
    shell = job_of(command="a.sh > log", args=["two words"])
    assert shell.program.args == ("-c", "a.sh > log 'two words'")


def test_deepspeed_is_turned_on_for_accelerate():
    job = job_of(command="accelerate launch a.py", deepspeed=True)
    assert job.launcher.args == ("--use_deepspeed",)
    assert job.env["OCI__DEEPSPEED"] == "1"


def test_a_published_environment_names_its_pack():
    pack = {"type": "published", "uri": "oci://b@n/packs/train_v1", "region": "us-ashburn-1"}
    backend = job_of(conda=pack).backend
    assert (backend.conda_uri, backend.conda_region) == ("oci://b@n/packs/train_v1", "us-ashburn-1")


def test_variables_may_refer_to_others_that_refer_to_others():
    env = {"A": "${B}", "B": "${C}x", "C": "1", "LOOP": "${LOOP}"}
    assert job_of(env=env).env.items() >= {"A": "1x", "B": "1x", "LOOP": "${LOOP}"}.items()


def a_container(**changes: Any) -> TrainingJob:
    mapping = mapping_of({})
    mapping["spec"]["runtime"] = {"type": "container", "spec": {"image": "iad.ocir.io/ns/i:1", **changes}}
    return parsing.build(mapping)


def test_a_container_starts_what_it_likes():
    job = a_container(entrypoint=["/bin/sh", "-c"], cmd="sleep 5,x", args=["--a"], replicas=3)
    assert job.container == Container(entrypoint=("/bin/sh", "-c"), command=("sleep 5", "x"))
    assert (job.nodes, job.program.script, job.program.args) == (3, "", ("--a",))
    assert isinstance(job.backend, OciDataScienceOptions)
    assert job.backend.topology == "multi_node"
    assert a_container().container == Container()


def test_code_is_not_carried_into_a_container():
    with pytest.raises(JobFileError, match="scriptPathURI: is not carried into a container"):
        a_container(scriptPathURI="a.py")


@pytest.mark.parametrize("script", ["project/train.py", "train.py"])
def test_a_folder_lies_under_its_own_name_in_the_code(script, tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("")
    job = job_of(("git",), scriptPathURI=str(tmp_path / "project"), command=f"torchrun {script}")
    assert job.program.script == script


@pytest.mark.parametrize("kind", ["python", "gitPython", "script", "notebook"])
def test_runtimes_for_one_node_are_refused_by_name(kind):
    mapping = mapping_of({})
    mapping["spec"]["runtime"]["type"] = kind
    with pytest.raises(JobFileError, match=f"{kind} runs on one node") as caught:
        parsing.build(mapping)
    assert len(caught.value.problems) == 1


def test_a_key_in_two_spellings_is_refused_rather_than_dropped() -> None:
    found = problems_of(scriptPathURI="/one", script_path_uri="/other", remove=("git",))
    assert any("script_path_uri: says the same as 'scriptPathURI'" in line for line in found), found


# what a shell would make of a command


PIECES = [
    *("a", "x.bin", "data/", "-", "--f", "=", ":", "1", ",", "..", "n"),
    *("*", "?", "[ab]", "[", "]", "~", "~/", "{", "}", "{x,y}", "{1..3}", "#", "$", "$HOME", "$$", "${N:-3}"),
    *("'", '"', "\\", "'*'", '"~"', '"{x,y}"', "'a b'", "\\*", "!", "%", "@", "^", " ", "  "),
    *("'|'", '"&"', "';'", '"x>y"', "\\|", "'\n'"),
]
"""Parts of commands, without what runs or redirects anything."""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder in which patterns match."""
    (tmp_path / "data").mkdir()
    for name in ("a", "b", "x.bin", "data/a", "data/x.bin", "=a", "-1"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    return tmp_path


def _words_of_bash(text):
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], capture_output=True, check=False)
    return done.stdout.decode().split("\0")[:-1] if done.returncode == 0 else None


def test_what_gets_no_shell_is_what_a_shell_makes_of_it(files):
    seed = int(os.environ.get("TEST_SEED") or random.randrange(1 << 32))
    print("seed", seed)
    chance, compared = random.Random(seed), 0
    for _ in range(700):
        text = "w " + "".join(chance.choices(PIECES, k=chance.randint(1, 7)))
        try:
            if shell.needs_shell(text):
                continue
            words = shell.split(text)
        except ValueError:
            continue
        compared += 1
        assert words == _words_of_bash(text), text
    assert compared > 50


NEED_A_SHELL = [
    "data/*.bin",
    "~/data",
    "data/?.bin",
    "data/[ab]",
    "part-{0,1}",
    "part-{1..3}",
    "~",
    "$(date)",
    "`date`",
]


@pytest.mark.parametrize("word", NEED_A_SHELL)
def test_what_only_a_shell_expands_gets_one_or_is_refused_with_a_launcher(word):
    job = job_of(command=f"python train.py --shards {word}")
    assert (job.launcher.kind, job.program.script) == ("command", "bash")
    assert job.program.args == ("-c", f"python train.py --shards {word}")
    (problem,) = problems_of(command=f"torchrun train.py --shards {word}")
    assert "which only a shell expands, and no shell reads it" in problem


@pytest.mark.parametrize("word", NEED_A_SHELL)
@pytest.mark.parametrize("command", ["python train.py", "torchrun train.py"])
def test_what_is_quoted_needs_no_shell(command, word):
    job = job_of(command=f"{command} '{word}'")
    assert (job.program.script, job.program.args) == ("train.py", (word,))


@pytest.mark.parametrize("word", ["|", "||", "&", "&&", ";", ">", "2>&1", "a|b", "a & b", "a;b", "(", "x\ny"])
@pytest.mark.parametrize("command", ["python train.py", "torchrun train.py", "deepspeed train.py"])
@pytest.mark.parametrize("quoted", ["'{}'", '"{}"'])
def test_a_quoted_operator_is_plain_text_with_any_launcher(command, word, quoted):
    job = job_of(command=f"{command} --pattern {quoted.format(word)} -x")
    assert (job.program.script, job.program.args) == ("train.py", ("--pattern", word, "-x"))


@pytest.mark.parametrize("word", ["|", "||", "&", "&&", ";", ">", ">>", "<", "2>&1"])
def test_an_operator_beside_a_quoted_one_is_an_operator(word):
    command = f"train.py --pattern '{word}' {word} tee"
    assert job_of(command=f"python {command}").program.args == ("-c", f"python {command}")
    (problem,) = problems_of(command=f"torchrun {command}")
    assert f"contains {word!r}, but no shell reads it" in problem


@pytest.mark.parametrize("word", ["|", "||", "&", "&&", ";", ">", ">>", "<"])
@pytest.mark.parametrize("quote", "'\"")
def test_a_quotation_without_an_end_is_named_and_not_what_is_in_it(word, quote):
    (problem,) = problems_of(command=f"torchrun train.py {quote}x {word} y")
    assert "cannot be split into arguments: no closing quotation" in problem


@pytest.mark.parametrize("word", ["layers=[1,2]", "--files=*.bin", "--like={}", "a~b", "x#y"])
def test_what_a_shell_leaves_as_it_is_reaches_a_launchers_program(word):
    assert job_of(command=f"torchrun train.py {word}").program.args == (word,)
