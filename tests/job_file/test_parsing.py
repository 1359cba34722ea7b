"""The one door: every problem at once, with path and line; nothing wrong passes, nothing right is refused."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_ocidist.backends.local import LocalOptions
from airflow_provider_ocidist.backends.oci_data_science import OciDataScienceOptions
from airflow_provider_ocidist.errors import JobFileError, Problem
from airflow_provider_ocidist.job import (
    Checkpoints,
    Input,
    LauncherOptions,
    Limits,
    Output,
    Program,
    TrainingJob,
)
from airflow_provider_ocidist.job_file import parsing

EXAMPLES = Path(__file__).parents[2] / "dags_examples" / "jobs"

FULL = """\
# a comment
name: retrain-gpt
nodes: 2
work_dir: oci://runs@ns/work
program: {source: train, script: gpt.py, args: [--data, data/topics.py, --steps, 300]}
launcher: {kind: torchrun, processes_per_node: 1, args: [--max-restarts=0]}
env: {SEED: 7, NCCL_DEBUG: INFO}
inputs: [{source: "oci://data@ns/v1/", target: data/}]
checkpoints: {path: checkpoints, keep: 2}
outputs: [{path: outputs, uri: "oci://results@ns/x/"}]
limits: {max_runtime: 30m, hang_timeout: 90}
tags: {team: ml}
backend: {kind: oci_data_science, shape: VM.Standard.E4.Flex, ocpus: 2, memory_gb: 16}
"""
MINIMAL = "name: x\nprogram: {script: gpt.py, source: train}\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "gpt.py").write_text("print()\n")
    return tmp_path


@pytest.fixture
def problems(folder):
    """Return what is wrong with a text, as a user sees it."""

    def read(text, **options):
        with pytest.raises(JobFileError) as caught:
            parsing.parse(text, base_dir=folder, **options)
        return [str(problem) for problem in caught.value.problems]

    return read


# what is right


def test_every_field_arrives(folder):
    assert parsing.parse(FULL, base_dir=folder) == TrainingJob(
        name="retrain-gpt",
        nodes=2,
        work_dir="oci://runs@ns/work",
        program=Program(
            source=str(folder / "train"), script="gpt.py", args=("--data", "data/topics.py", "--steps", "300")
        ),
        launcher=LauncherOptions(kind="torchrun", processes_per_node=1, args=("--max-restarts=0",)),
        env={"SEED": "7", "NCCL_DEBUG": "INFO"},
        inputs=(Input(source="oci://data@ns/v1/", target="data/"),),
        checkpoints=Checkpoints(path="checkpoints", keep=2),
        outputs=(Output(path="outputs", uri="oci://results@ns/x/"),),
        limits=Limits(max_runtime=1800.0, hang_timeout=90.0),
        tags={"team": "ml"},
        backend=OciDataScienceOptions(shape="VM.Standard.E4.Flex", ocpus=2.0, memory_gb=16.0),
    )


def test_everything_but_a_name_and_a_program_has_a_default(folder):
    job = parsing.parse(MINIMAL, base_dir=folder)
    assert (job.nodes, job.launcher.kind, job.backend) == (1, "torchrun", OciDataScienceOptions())


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_right_even_before_airflow_fills_them_in(path):
    assert parsing.load(path).name


@pytest.mark.parametrize(
    "written, read",
    [
        ("1e-4", "1e-4"),
        ("1.10", "1.10"),
        ("+5", "+5"),
        ("007", "007"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2026-01-02", "2026-01-02"),
        ("12e4567", "12e4567"),
        ("'yes'", "yes"),
        ("a b", "a b"),
        ("'--x=\"1 2\"'", '--x="1 2"'),
    ],
)
def test_arguments_stay_as_they_are_written(folder, written, read):
    job = parsing.parse(MINIMAL.replace("train}", f"train, args: [{written}]}}"), base_dir=folder)
    assert job.program.args == (read,)


@pytest.mark.parametrize(
    "written, seconds",
    [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86400), ("0.5", 0.5), ("1e3", 1000)],
)
def test_durations_have_units(folder, written, seconds):
    job = parsing.parse(f"{MINIMAL}limits: {{max_runtime: {written}}}", base_dir=folder)
    assert job.limits.max_runtime == seconds


def test_a_limit_can_be_switched_off(folder):
    assert (
        parsing.parse(f"{MINIMAL}limits: {{hang_timeout: null}}", base_dir=folder).limits.hang_timeout is None
    )


def test_anchors_aliases_and_merges_work(folder):
    text = MINIMAL + (
        "env: &env {A: 1}\ntags: *env\n"
        "outputs:\n- &out {path: a, uri: 'oci://b@n/1', required: no}\n- {<<: *out, path: b}\n"
    )
    job = parsing.parse(text, base_dir=folder)
    assert job.env == job.tags == {"A": "1"}
    assert job.outputs[1] == Output(path="b", uri="oci://b@n/1", required=False)


def test_local_code_is_found_beside_the_file_whatever_the_working_directory(folder, monkeypatch):
    (folder / "jobs").mkdir()
    path = folder / "jobs" / "job.yaml"
    path.write_text("name: x\nprogram: {script: gpt.py, source: ../train}\n")
    monkeypatch.chdir("/")
    assert parsing.load(path).program.source == str(folder / "train")


@pytest.mark.parametrize(
    "source",
    [
        "oci://bucket@ns/code/",
        "git@github.com:pytorch/examples.git",
        "https://github.com/pytorch/examples.git",
        "git+https://github.com/pytorch/examples#main",
        "s3://bucket/code.zip",
        "{{ params.code }}",
    ],
)
def test_remote_code_is_left_alone(source):
    job = parsing.build({"name": "x", "program": {"script": "a/b.py", "source": source}})
    assert job.program.source == source


def test_code_may_be_one_file_a_zip_or_a_tar(folder):
    with zipfile.ZipFile(folder / "code.zip", "w") as archive:
        archive.writestr("pkg/main.py", "")
    with tarfile.open(folder / "code.tar.gz", "w:gz") as archive:
        archive.add(folder / "train" / "gpt.py", "./gpt.py")
    for source, script in (
        ("train/gpt.py", "gpt.py"),
        ("code.zip", "pkg/main.py"),
        ("code.tar.gz", "gpt.py"),
    ):
        program = {"source": source, "script": script}
        assert parsing.build({"name": "x", "program": program}, base_dir=folder).program.script == script


# what is wrong

WHOLE = "must be a whole number of at least 1"
SECONDS = "must be a number of seconds above 0, or as 90s, 15m, 2h, 1d"
TRUE = "true (YAML reads yes and on so too)"
PLACE = "must be a URI, as oci://bucket@namespace/path, or an absolute path"
LIMITS = (
    "max_runtime, max_node_hours, max_cost, start_timeout, replace_timeout, grow_after, capacity_timeout, "
    "join_timeout, hang_timeout, first_step_timeout, idle, lost_timeout, stop_grace"
)
NO_YAML = "is not valid YAML:"

WRONG = {
    "nods: 2": ["line 3: nods: unknown key 'nods'; did you mean 'nodes'?"],
    "shape: x": ["line 3: shape: unknown key 'shape'; it belongs in 'backend'"],
    "max_runtime: 3h": ["line 3: max_runtime: unknown key 'max_runtime'; it belongs in 'limits'"],
    "launcher: {nodes: 2}": ["line 3: launcher.nodes: unknown key 'nodes'; it belongs at the top"],
    "limits: {zzz: 2}": [f"line 3: limits.zzz: unknown key 'zzz'; there are {LIMITS}"],
    "nodes: two": [f"line 3: nodes: {WHOLE}, not 'two'"],
    "nodes: 0": [f"line 3: nodes: {WHOLE}, not 0"],
    "nodes: 1.5": [f"line 3: nodes: {WHOLE}, not 1.5"],
    "nodes: 1.0": [f"line 3: nodes: {WHOLE}, not 1.0"],
    "nodes: '2'": [f"line 3: nodes: {WHOLE}, not '2': remove the quotes"],
    "nodes: yes": [f"line 3: nodes: {WHOLE}, not {TRUE}"],
    "nodes: {least: 2, max: 4}": [f"line 3: nodes: {parsing.NO_RANGE}"],
    "nodes: {min: 0, max: 4}\nrestarts: {node: 1}": [f"line 3: nodes.min: {WHOLE}, not 0"],
    "nodes: {min: 1, max: many}\nrestarts: {node: 1}": [f"line 3: nodes.max: {WHOLE}, not 'many'"],
    "nodes: {min: 5, max: 4}\nrestarts: {node: 1}": [
        "line 3: nodes: must have no greater min than max: 5 is more than 4"
    ],
    "nodes: [2]": [f"line 3: nodes: {WHOLE}, not a list"],
    "nodes:": [f"line 3: nodes: is empty, and {WHOLE}"],
    **{
        f"{name}:{comment}": [f"line 3: {name}: is empty: write {{}} for its defaults, or remove the key"]
        for name in ("checkpoints", "dependencies", "container")
        for comment in ("", "\n  # keep: 2")
    },
    "launcher: {processes_per_node: 0}": [f"line 3: launcher.processes_per_node: {WHOLE}, not 0"],
    "launcher: {kind: torchrn}": [
        "line 3: launcher.kind: no launcher of kind 'torchrn'; did you mean 'torchrun'?"
    ],
    "launcher: torchrun": [
        (
            "line 3: launcher: must be a section with kind, processes_per_node, args, not 'torchrun': "
            "write {kind: torchrun}"
        )
    ],
    "backend: {kind: oci}": ["line 3: backend.kind: no backend of kind 'oci'; there are "],
    "backend: {kind: 3}": ["line 3: backend.kind: must be text, not 3"],
    "backend: [3]": ["line 3: backend: must be a section with kind, candidates, conn_id, not a list"],
    "backend: {topology: star}": [
        "line 3: backend.topology: must be one of 'auto', 'job_runs', 'multi_node'"
    ],
    "backend: {ocpus: many}": ["line 3: backend.ocpus: must be a number, not 'many'"],
    "backend: {shpe: x}": ["line 3: backend.shpe: unknown key 'shpe'; did you mean 'shape'?"],
    "backend: {shape: VM.Standard.E4.Flex, ocpus: 1}": [
        "line 3: backend.memory_gb: is needed: VM.Standard.E4.Flex is a flexible shape"
    ],
    "backend: {shape: VM.GPU.A10.1, ocpus: 1}": [
        "line 3: backend.ocpus: is for flexible shapes only, and VM.GPU.A10.1 is not flexible"
    ],
    "backend: {block_storage_gb: 10}": ["line 3: backend.block_storage_gb: must be at least 50"],
    "backend: {block_storage_gb: 10241}": [
        "line 3: backend.block_storage_gb: must be at most 10240: read larger data from a bucket or a file system"
    ],
    "image: iad.ocir.io/ns/i:1\nbackend: {conda_slug: a}": [
        "line 4: backend.conda_slug: is for jobs without an image"
    ],
    "limits: {max_runtime: soon}": [f"line 3: limits.max_runtime: {SECONDS}, not 'soon'"],
    "limits: {max_runtime: yes}": [f"line 3: limits.max_runtime: {SECONDS}, not {TRUE}"],
    "limits: {lost_timeout: 0}": [f"line 3: limits.lost_timeout: {SECONDS}, not 0"],
    "limits: {lost_timeout: .inf}": [f"line 3: limits.lost_timeout: {SECONDS}, not .inf"],
    "env: {A: yes}": [f"line 3: env.A: must be text, not {TRUE}: put it in quotes"],
    "env: {A: }": ["line 3: env.A: is empty, and must be text"],
    'env: {A: "x\\0y"}': ["line 3: env.A: an environment variable cannot contain 'x\\x00y'"],
    "nodes: 1000000": ["line 3: nodes: must be at most 1000"],
    "env: {A: {b: c}}": ["line 3: env.A: must be text, not a section"],
    "env: {on: x}": [f"line 3: env: a name must be text, not {TRUE}: put it in quotes"],
    "env: {1A: x}": [
        "line 3: env.1A: is not a valid name for an environment variable: letters, digits and _ only"
    ],
    "env: {OCIDIST_CONFIG: x}": ["line 3: env.OCIDIST_CONFIG: names that begin with OCIDIST_ are reserved"],
    "env: [A=1]": ["line 3: env: must be a section of names and values, not a list"],
    "env:": ["line 3: env: is empty, and must be a section of names and values"],
    "image: my image": [
        "line 3: image: is not the name of an image, such as region.ocir.io/namespace/image:tag"
    ],
    "work_dir: runs": [f"line 3: work_dir: {PLACE}, not 'runs'"],
    "work_dir: oic://b@n/x": ["line 3: work_dir: no library reads oic://; did you mean oci://?"],
    "work_dir: oci:///x": ["line 3: work_dir: oci:///x names no bucket: write oci://bucket@namespace/path"],
    "checkpoints: {path: /}": [
        "line 3: checkpoints.path: must name a folder, not the root of the node's file system"
    ],
    "checkpoints: {path: ''}": ["line 3: checkpoints.path: must not be empty"],
    "checkpoints: {uri: there}": [f"line 3: checkpoints.uri: {PLACE}, not 'there'"],
    "checkpoints: {start_from: there}": [f"line 3: checkpoints.start_from: {PLACE}, not 'there'"],
    "checkpoints: {resume: 'yes'}": ["line 3: checkpoints.resume: must be true or false, not 'yes'"],
    "checkpoints: {resume: false, resume_after_clear: true}": [
        "line 3: checkpoints.resume_after_clear: needs checkpoints.resume"
    ],
    "checkpoints:\n  pattern: '(step'": [
        "line 4: checkpoints.pattern: is not a regular expression: missing ), unterminated subpattern at position 0"
    ],
    "checkpoints: {pattern: '(?P<stage>x)(?P<step>1)'}": [
        "line 3: checkpoints.pattern: has the group 'stage'; `step` and `epoch` are those that count"
    ],
    "checkpoints: {pattern: '.*'}": [
        "line 3: checkpoints.pattern: matches the empty name: name a part of what checkpoints are called"
    ],
    "checkpoints: {keep_every: 0}": [
        "line 3: checkpoints.keep_every: must be a whole number of at least 1, not 0"
    ],
    "checkpoints: {keep_best: {metric: loss, mode: least}}": [
        "line 3: checkpoints.keep_best.mode: must be one of 'min', 'max', not 'least'"
    ],
    "inputs: [{source: 'oci://b@n/x'}]": ["line 3: inputs.0.target: is needed"],
    "inputs: [{source: 'oci://b@n/x', target: ../up}]": [
        "line 3: inputs.0.target: must not leave its folder, as '../up' does"
    ],
    "inputs:\n- {source: 'oci://b@n/x', target: data/}\n- {source: 'oci://b@n/y', target: ./data}": [
        "line 5: inputs.1.target: is the target of inputs.0 too"
    ],
    "outputs: [{path: /tmp/../x, uri: 'oci://b@n/x'}, 3]": [
        "line 3: outputs.1: must be a section with path, uri, required, nodes, when, not 3",
        "line 3: outputs.0.path: must be a path without '..', not '/tmp/../x'",
    ],
    "tags: {a.b: c}": ["line 3: tags.a.b: a key has 1 to 100 characters, no blanks and no dots"],
    "tags: {ocidist-task: c}": ["line 3: tags.ocidist-task: keys that begin with ocidist- are reserved"],
    "tags: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1}": [
        "line 3: tags: there are 7; 6 are allowed besides those of ocidist"
    ],
    "nodes: 2\nrestarts: {node: 1}\ntags: {a: 1, b: 1, c: 1, d: 1, e: 1}": [
        "line 5: tags: there are 5; 4 are allowed besides those of ocidist"
    ],
    "nodes: 1\nnodes: 2": ["line 4: nodes: is there twice, first on line 3"],
    "env: {A: 1, A: 2}": ["line 3: env.A: is there twice, first on line 3"],
}


@pytest.mark.parametrize("nothing", ["null", "~", "Null"])
def test_a_section_that_is_written_as_nothing_is_none(folder, nothing):
    assert parsing.parse(f"{MINIMAL}checkpoints: {nothing}\n", base_dir=folder).checkpoints is None


@pytest.mark.parametrize("text", WRONG)
def test_wrong_input_is_reported_in_words_with_its_line(problems, text):
    found = problems(MINIMAL + text)
    assert len(found) == len(WRONG[text])
    assert all(line.startswith(expected) for line, expected in zip(found, WRONG[text], strict=True)), found


@pytest.mark.parametrize("text", ["nodes: 2\nbackend: {topology: multi_node}\n", "nodes: 1\n"])
def test_where_no_lost_node_is_replaced_two_more_tags_are_allowed(folder, text):
    tags = "restarts: {node: 1}\ntags: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1}"
    assert len(parsing.parse(f"{MINIMAL}{text}{tags}", base_dir=folder).tags) == 6


PROGRAMS = {
    "{script: gpt.py, source: trian}": "program.source: there is no file or folder {folder}/trian",
    "{script: gtp.py, source: train}": (
        "program.script: 'gtp.py' is not in {folder}/train; did you mean 'gpt.py'?"
    ),
    "{script: other.py, source: train/gpt.py}": "program.script: 'other.py' is not in {folder}/train/gpt.py",
    "{script: ../gpt.py, source: train}": "program.script: must not leave its folder, as '../gpt.py' does",
    "{script: /gpt.py, source: train}": "program.script: must be a relative path, not '/gpt.py'",
    "{script: '', source: train}": "program.script: is needed",
    '{script: gpt.py, source: train, args: ["a\\0b"]}': "program.args.0: cannot be an argument of a program: 'a\\x00b'",
    "{script: gpt.py}": "program.source: is needed: there is no image that could contain the code",
    "{script: gpt.py, source: 'htp://x/y'}": "program.source: no library reads htp://; did you mean http://?",
    "{script: gpt.py, source: train, working_dir: /tmp}": (
        "program.working_dir: must be a relative path, not '/tmp'"
    ),
    "{source: train}": "program.script: is needed",
    "{script: gpt.py, source: train, args: --steps 3}": (
        "program.args: must be a list, not '--steps 3': write [--steps, \"3\"]"
    ),
    "gpt.py": (
        "program: must be a section with script, source, args, module, working_dir, python_path, source_secret, "
        "not 'gpt.py'"
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_cannot_run_is_refused_before_anything_is_created(problems, folder, program):
    expected = PROGRAMS[program].format(folder=folder)
    assert problems(f"name: x\nprogram: {program}") == [f"line 2: {expected}"]


def test_a_module_may_come_from_anywhere(folder):
    program = {"script": "lightning.run", "module": True, "source": "train"}
    assert parsing.build({"name": "x", "program": program}, base_dir=folder).program.module


NOT_YAML = {
    "": "is empty",
    "# only a comment\n": "is empty",
    "null": "line 1: is empty",
    "- a\n- b": "line 1: must be a section with keys and values at the top",
    "just text": "line 1: must be a section with keys and values at the top",
    "name: x\n\tnodes: 2": f"line 2: {NO_YAML} a line cannot be indented with a tab: use blanks (column 1)",
    "a: [1\nb: 2": (
        f"line 2: {NO_YAML} expected ',' or ']', but got ':' while parsing a flow sequence (column 2)"
    ),
    "a: b: c": f"line 1: {NO_YAML} mapping values are not allowed here (column 5)",
    "a: 'x": f"line 1: {NO_YAML} found unexpected end of stream while scanning a quoted scalar (column 6)",
    "a: *b": f"line 1: {NO_YAML} found undefined alias 'b' (column 4)",
    "a: &a [*a]": f"line 1: {NO_YAML} an alias that contains itself (column 4)",
    "a: 1\n---\nb: 2": (
        f"line 2: {NO_YAML} expected a single document in the stream but found another document: "
        "put each job into a file of its own (column 1)"
    ),
    "a: 1\nb: \x00": f"line 2: {NO_YAML} cannot contain the character #x0000",
    "a: !!int two": f"line 1: {NO_YAML} 'two' is not a whole number (column 4)",
    "a: !!bool maybe": f"{NO_YAML} a value is not of its tag (!!...)",
    "a: !!timestamp x": f"{NO_YAML} a value is not of its tag (!!...)",
    "nodes: {{ params.nodes }}": (
        f"line 1: {NO_YAML} a Jinja placeholder without quotes; "
        "Airflow fills it in, a check without Airflow cannot (column 9)"
    ),
    "kind: model\nspec: {}": (
        "line 1: kind: job files of kind 'model' are not supported yet; "
        "there are ads, pytorchjob, and our own form, which has no kind at its top"
    ),
}


@pytest.mark.parametrize("text", NOT_YAML)
def test_a_text_that_is_no_job_file_has_one_clear_problem(problems, text):
    assert problems(text) == [NOT_YAML[text]]


def test_no_code_hides_in_yaml(problems):
    (problem,) = problems("a: !!python/object/apply:os.system [echo]")
    assert "could not determine a constructor" in problem


def test_aliases_cannot_blow_up_the_memory(problems):
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    (problem,) = problems(bomb)
    assert "more than 100000 values, aliases written out" in problem


def test_every_duplicate_key_is_named(problems):
    assert problems("name: x\nname: y\nenv: {A: 1, A: 2}\nnodes: 0") == [
        "line 1: program: is needed",
        "line 2: name: is there twice, first on line 1",
        "line 3: env.A: is there twice, first on line 3",
        f"line 4: nodes: {WHOLE}, not 0",
    ]


def test_problems_of_all_sections_come_together_in_the_order_of_the_file(problems):
    found = problems(
        "name: ''\n"
        "nodes: none\n"
        "program: {script: gtp.py, source: train}\n"
        "launcher: {kind: torchrn}\n"
        "env: {1A: x}\n"
        "inputs: [{source: data, target: ../abs}]\n"
        "limits: {max_runtime: soon}\n"
        "backend: {shape: VM.Standard.E4.Flex, ocpus: two, memory_gb: 1}\n"
    )
    assert [line.split(": ")[:2] for line in found] == [
        ["line 1", "name"],
        ["line 2", "nodes"],
        ["line 3", "program.script"],
        ["line 4", "launcher.kind"],
        ["line 5", "env.1A"],
        ["line 6", "inputs.0.source"],
        ["line 6", "inputs.0.target"],
        ["line 7", "limits.max_runtime"],
        ["line 8", "backend.ocpus"],
    ]


def test_the_error_is_a_value_error_that_says_where_and_what(problems, folder):
    with pytest.raises(ValueError, match=r"2 problems in jobs/a\.yaml") as caught:
        parsing.parse(
            "nods: 1\n" + MINIMAL + "limits: {max_runtime: x}", source="jobs/a.yaml", base_dir=folder
        )
    assert "\n  line 1: nods: unknown key" in str(caught.value)
    assert caught.value.source == "jobs/a.yaml"


def test_a_long_value_is_shortened_in_messages(problems):
    (problem,) = problems(f"{MINIMAL}nodes: {'x' * 500}")
    assert len(problem) < 120


def test_a_file_that_cannot_be_read_says_so(tmp_path):
    with pytest.raises(JobFileError, match="cannot be read: No such file"):
        parsing.load(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(JobFileError, match="is not text in UTF-8"):
        parsing.load(tmp_path / "binary.yaml")


# mappings and hand-made jobs


def test_a_mapping_is_checked_like_a_file_without_lines():
    with pytest.raises(JobFileError) as caught:
        parsing.build({"name": "x", "program": {"script": "a.py", "module": True}, "nods": 2, "nodes": True})
    assert caught.value.problems == (
        Problem("nodes", "must be a whole number of at least 1, not true (YAML reads yes and on so too)"),
        Problem("nods", "unknown key 'nods'; did you mean 'nodes'?"),
    )


def test_python_may_say_paths_durations_and_tuples_its_own_way(folder):
    job = parsing.build(
        {
            "name": "x",
            "program": {"script": "gpt.py", "source": folder / "train", "args": ("--steps", 3)},
            "limits": {"max_runtime": timedelta(minutes=2)},
        }
    )
    assert job.program.args == ("--steps", "3")
    assert job.limits.max_runtime == 120


def test_a_mapping_is_not_changed(folder):
    mapping = {"name": "x", "program": {"script": "gpt.py", "source": "train"}, "env": {"A": "1"}}
    parsing.build(mapping, base_dir=folder, overrides={"env.B": "2"})
    assert mapping == {"name": "x", "program": {"script": "gpt.py", "source": "train"}, "env": {"A": "1"}}


def test_a_hand_made_job_is_checked_again(folder):
    job = parsing.parse(FULL, base_dir=folder)
    assert parsing.build(job) == job
    with pytest.raises(JobFileError) as caught:
        parsing.build(replace(job, nodes=0, program=replace(job.program, source="/nowhere")))
    assert [problem.path for problem in caught.value.problems] == ["nodes", "program.source"]


def test_a_job_written_as_yaml_reads_back_as_the_same_job(folder):
    job = parsing.parse(FULL, base_dir=folder)
    text = parsing.dump(job)
    assert parsing.parse(text) == job
    assert "kind: oci_data_science" in text
    assert "lost_timeout" not in text


# overrides


def test_overrides_replace_values_by_path_and_add_to_sections(folder):
    job = parsing.parse(
        FULL,
        base_dir=folder,
        overrides={
            "nodes": 8,
            "limits.max_runtime": "2h",
            "env": {"SEED": 9},
            "env.EPOCHS": "3",
            "program.args.3": 5,
            "backend": {"ocpus": 4},
        },
    )
    assert (job.nodes, job.limits.max_runtime) == (8, 7200.0)
    assert job.env == {"SEED": "9", "NCCL_DEBUG": "INFO", "EPOCHS": "3"}
    assert job.program.args[-1] == "5"
    assert (job.backend.shape, job.backend.ocpus) == ("VM.Standard.E4.Flex", 4.0)


@pytest.mark.parametrize("overrides", [{"backend": {"kind": "local"}}, {"backend.kind": "local"}])
def test_an_override_of_the_kind_leaves_out_what_the_file_says_of_another(folder, overrides):
    job = parsing.parse(FULL, base_dir=folder, overrides=overrides)
    assert (job.backend, job.nodes) == (LocalOptions(), 2)


def test_an_override_makes_the_sections_that_it_needs(folder):
    job = parsing.parse(f"{MINIMAL}env:\n", base_dir=folder, overrides={"env.A": "1", "checkpoints.keep": 5})
    assert (job.env, job.checkpoints) == ({"A": "1"}, Checkpoints(keep=5))


def test_a_wrong_override_is_reported_as_such_and_not_with_a_line_of_the_file(problems):
    found = problems(
        FULL, overrides={"nodes": "many", "limits.max_runtim": 3, "inputs.7.target": "x", "name.x": 1}
    )
    assert found == [
        "inputs.7.target: there is no such key in the job",
        "name.x: there is no such key in the job",
        "nodes: must be a whole number of at least 1, not 'many' (set by an override)",
        "limits.max_runtim: unknown key 'max_runtim'; did you mean 'max_runtime'? (set by an override)",
    ]


# cost


def test_importing_it_costs_a_dag_file_no_pydantic_and_no_client_library():
    code = (
        "import sys, airflow_provider_ocidist.job_file.parsing\n"
        "print(sorted({'pydantic', 'oci', 'torch', 'airflow', 'fsspec', 'kubernetes'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_job_is_read_without_a_look_at_the_source_of_its_classes() -> None:
    """In Python 3.11 two threads that parse source at a time fail with a SystemError, and tasks begin in threads."""
    program = (
        "import ast, sys\n"
        "from airflow_provider_ocidist.job_file import parsing\n"
        "def parse(*args, **kwargs):\n"
        "    sys.exit('source was parsed')\n"
        "ast.parse = parse\n"
        "program = {'script': 'a', 'module': True}\n"
        "job = {'name': 'a', 'nodes': 1, 'work_dir': '/tmp/a', 'image': 'i', 'program': program}\n"
        "print(parsing.build(job).name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("a\n", "")
