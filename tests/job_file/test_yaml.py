"""A job as Python, as YAML and as JSON Schema are one and the same."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backends.oci_data_science import OciDataScienceOptions
from airflow_provider_ocidist.job import (
    Checkpoints,
    Container,
    Dependencies,
    Input,
    LauncherOptions,
    Limits,
    Mount,
    Output,
    Program,
    TrainingJob,
)
from airflow_provider_ocidist.job_file import json_schema, parsing

ROOT = Path(__file__).parents[2]
JOBS = 60

TEXTS = [
    *(
        "",
        " ",
        "x",
        "yes",
        "No",
        "null",
        "~",
        "1",
        "007",
        "1e-4",
        "1.10",
        "+5",
        ".5",
        "0x1F",
        "1_000",
        "12:30",
        "true",
    ),
    *(
        "2026-01-02",
        "a: b",
        "- a",
        "# no",
        "{{ params.x }}",
        "{% raw %}",
        "'",
        '"',
        "`$HOME`",
        "$(id)",
        "a\\b",
        "*x",
        "&y",
    ),
    *(
        "!!int 3",
        "%",
        "@",
        "|",
        ">",
        "?",
        "=",
        "<<",
        "[",
        "{",
        ".inf",
        ".nan",
        "line\nline",
        "trail \n",
        "\ttab",
        "é",
        "日本",
        "🚀",
    ),
    *("\x85", "\u2028", "\ufeff", "x" * 300, "--flag=1 2", "no: ", "---", "...", "\r\n", "  lead"),
]
NAMES = ["A", "SEED", "yes", "_x", "NULL", "on", "Y2"]


def some_job(choose: random.Random) -> TrainingJob:
    """Return a right job with anything in it that a job may hold."""

    def maybe(value: Any, otherwise: Any = None) -> Any:
        return value if choose.random() < 0.5 else otherwise

    def texts() -> tuple[str, ...]:
        return tuple(choose.choice(TEXTS) for _ in range(choose.randrange(4)))

    def variables() -> dict[str, str]:
        return {name: choose.choice(TEXTS) for name in choose.sample(NAMES, choose.randrange(4))}

    def seconds() -> float:
        return choose.choice([0.5, 1.0, 1e-3, 90.0, 86400.0, 1e9, choose.random() * 1000])

    kind = choose.choice(kinds.names("launchers"))
    image = maybe("iad.ocir.io/ns/image:1.10")
    return TrainingJob(
        name=choose.choice(
            [text for text in TEXTS if text.strip() and text.isprintable() and len(text) < 256]
        ),
        program=Program(
            script=choose.choice(["a.py", "pkg/main.py", "1e4.py"]),
            source=choose.choice(["oci://code@ns/x/", "https://host/x.git#v1", "git@host:a/b.git"]),
            args=texts(),
            working_dir=maybe("sub/folder"),
            python_path=maybe(("src", "1e4"), ()),
        ),
        backend=OciDataScienceOptions(
            topology=choose.choice(["auto", "job_runs", "multi_node"]),
            **maybe(
                {"shape": "VM.Standard.E4.Flex", "ocpus": choose.choice([1.0, 0.5]), "memory_gb": 16.0}, {}
            ),
            block_storage_gb=choose.randrange(50, 1000),
            subnet_id=maybe("ocid1.subnet.oc1..aaaa"),
        ),
        nodes=choose.randrange(2, 1001),
        work_dir=maybe("oci://work@ns/1.10"),
        image=image,
        launcher=LauncherOptions(kind=kind, processes_per_node=maybe(choose.randrange(1, 9)), args=texts()),
        env=variables(),
        main_env=variables(),
        worker_env=variables(),
        inputs=tuple(
            Input(source=f"oci://data@ns/{i}/", target=f"data/{i}") for i in range(choose.randrange(3))
        ),
        outputs=maybe(
            (
                Output(
                    path="out", uri="oci://b@ns/${JOB_RUN_OCID}/", required=False, nodes="all", when="always"
                ),
            ),
            (),
        ),
        checkpoints=maybe(Checkpoints(keep=choose.randrange(1, 9), resume=choose.random() < 0.5)),
        limits=Limits(max_runtime=maybe(seconds()), hang_timeout=maybe(seconds()), stop_grace=seconds()),
        tags=maybe({"team": choose.choice(TEXTS)[:200], "1e4": "yes"}, {}),
        dependencies=maybe(
            Dependencies(requirements="requirements.txt", packages=("fire==0.4.0", "x[a]>=1"))
        ),
        container=None
        if image is None
        else maybe(Container(entrypoint=maybe(("sh", "-c")), command=texts())),
        mounts=maybe(
            (Mount(source="10.0.0.1:/export", path="/data"), Mount(source="volumes/x", path="shared")), ()
        ),
    )


@pytest.fixture(scope="module")
def jobs() -> list[TrainingJob]:
    seed = random.randrange(10**9)
    print("seed of the random jobs:", seed)
    choose = random.Random(seed)
    return [some_job(choose) for _ in range(JOBS)]


def test_every_job_survives_yaml_mappings_and_the_nodes(jobs):
    for job in jobs:
        assert parsing.parse(parsing.dump(job)) == job
        assert parsing.build(job) == job
        assert parsing.build(json.loads(json.dumps(job.to_mapping()))) == job


def test_every_job_fits_the_schema(jobs, validator):
    for job in jobs:
        validator.validate(yaml.safe_load(parsing.dump(job)))


def test_a_file_is_read_as_its_text_is(tmp_path):
    text = "name: x\nimage: i\nprogram: {script: a.py}\n"
    (tmp_path / "job.yaml").write_text(text)
    place = tmp_path / "job.yaml"
    assert parsing.parse(text) == parsing.load(place) == parsing.load(str(place))
    assert parsing.load(place, overrides={"nodes": 3}).nodes == 3


# the schema


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(json_schema.SCHEMA_FILE.read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def test_the_published_schema_is_the_one_of_the_code():
    remedy = "run `python -m airflow_provider_ocidist.job_file.json_schema`"
    assert json_schema.SCHEMA_FILE.read_text() == json_schema.schema_text(), remedy


def test_every_kind_of_launcher_and_backend_is_in_the_schema():
    schema = json.loads(json_schema.SCHEMA_FILE.read_text())
    launchers = schema["definitions"]["LauncherOptions"]["properties"]["kind"]["anyOf"][0]["enum"]
    assert launchers == kinds.names("launchers")
    assert len(schema["properties"]["backend"]["oneOf"]) == len(kinds.names("backends"))


def test_everything_in_the_schema_has_a_description():
    schema = json.loads(json_schema.SCHEMA_FILE.read_text())

    def bare(section: dict[str, Any], path: str) -> list[str]:
        inner = section.get("properties", {}).items()
        return [f"{path}.{name}" for name, value in inner if not ("description" in value or "$ref" in value)]

    sections = {"job": schema, **schema["definitions"]}
    undescribed = [name for path, section in sections.items() for name in bare(section, path)]
    assert undescribed == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "dags_examples/jobs").glob("*.yaml")), ids=lambda path: path.name
)
def test_examples_fit_the_schema(path, validator):
    validator.validate(yaml.safe_load(path.read_text()))


RIGHT = [
    "{name: x, program: {script: a.py}, nodes: '{{ params.nodes }}', limits: {max_runtime: 90}}",
    "{name: 7, program: {script: a.py, args: [1, x]}, env: {A: 1}, limits: {max_runtime: 1.5h, hang_timeout: null}}",
    "{name: x, image: i, container: {command: [a]}}",
    "{name: x, program: {script: a.py}, backend: {kind: oci_data_science, ocpus: '{{ params.ocpus }}'}}",
    "{name: x, program: {script: a.py}, backend: {candidates: [{shape: VM.GPU.A10.2, conn_id: other}]}}",
]
WRONG = [
    "[]",
    "{}",
    "{name: x}",
    "{program: {script: a.py}}",
    "{name: x, program: {source: train}}",
    "{name: x, program: {script: a.py}, nods: 2}",
    "{name: x, program: {script: a.py}, nodes: 0}",
    "{name: x, program: {script: a.py}, nodes: '2'}",
    "{name: x, program: {script: a.py}, nodes: 1.5}",
    "{name: x, program: {script: a.py, args: --steps 3}}",
    "{name: x, program: {script: a.py}, launcher: {kind: torchrn}}",
    "{name: x, program: {script: a.py}, launcher: torchrun}",
    "{name: x, program: {script: a.py}, limits: {max_runtime: soon}}",
    "{name: x, program: {script: a.py}, limits: {max_runtime: 0}}",
    "{name: x, program: {script: a.py}, outputs: [{path: a, uri: b, when: never}]}",
    "{name: x, program: {script: a.py}, inputs: [{source: b}]}",
    "{name: x, program: {script: a.py}, env: [A=1]}",
    "{name: x, program: {script: a.py}, env: {A: true}}",
    "{name: x, program: {script: a.py}, backend: {kind: oci}}",
    "{name: x, program: {script: a.py}, backend: {shpe: x}}",
    "{name: x, program: {script: a.py}, checkpoints: {keep: 0}}",
    "{name: x, program: {script: a.py}, backend: {candidates: [{shpe: x}]}}",
    "{name: x, program: {script: a.py}, backend: {candidates: [{}]}}",
    "{name: x, program: {script: a.py}, backend: {candidates: [{shape: [x]}]}}",
    "{name: x, program: {script: a.py}, backend: {candidates: [{kind: local}]}}",
    "{name: x, program: {script: a.py}, backend: {kind: local, candidates: [{conn_id: other}]}}",
    f"{{name: x, program: {{script: a.py}}, backend: {{candidates: [{', '.join(['{shape: a}'] * 21)}]}}}}",
]


@pytest.mark.parametrize("text", RIGHT)
def test_the_schema_takes_a_job_file_that_is_right(text, validator):
    validator.validate(yaml.safe_load(text))


@pytest.mark.parametrize("text", WRONG)
def test_the_schema_refuses_a_job_file_that_is_wrong(text, validator):
    assert not validator.is_valid(yaml.safe_load(text))


def test_a_job_in_a_dag_file_needs_no_yaml_and_no_pydantic():
    code = (
        "import sys; from airflow_provider_ocidist.job import TrainingJob\n"
        "print(sorted({'pydantic', 'yaml', 'oci'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# the documentation


def test_every_key_is_documented_and_every_documented_key_exists():
    schema = json.loads(json_schema.SCHEMA_FILE.read_text())
    document = (ROOT / "docs/job-file.md").read_text()
    table = document.partition("\n## Keys\n")[2].partition("\n## ")[0]
    first_columns = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    documented = {key for column in first_columns for key in re.findall(r"`([^`]+)`", column)}

    def keys(section: dict[str, Any], path: str) -> set[str]:
        found = set()
        for name, value in section["properties"].items():
            item = value.get("items", value)
            many = "[]" if "items" in value else ""
            choices = [item, *item.get("allOf", ()), *item.get("anyOf", ()), *item.get("oneOf", ())]
            targets = {choice["$ref"].rpartition("/")[2] for choice in choices if "$ref" in choice}
            inner = [schema["definitions"][target] for target in targets - {"Text", "Jinja"}]
            below = {key for part in inner for key in keys(part, f"{path}{name}{many}.")}
            found |= below or {f"{path}{name}"}
        return found

    assert documented - {"checkpoints", "dependencies", "restarts"} == keys(schema, "")
