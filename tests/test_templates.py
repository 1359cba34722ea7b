"""Jinja in jobs: Airflow renders it for real, and what it leaves as text is a number again where one is wanted."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import fsspec
import pytest
from airflow.sdk import DAG

from airflow_provider_ocidist.backends.oci_data_science import OciDataScienceOptions
from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.job import Checkpoints, LauncherOptions, Limits, Program, TrainingJob
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.operators.task_jobs import TaskConnection, TaskJob

PARAMS = {
    "nodes": 4,
    "hours": "2h",
    "ocpus": 2.5,
    "resume": False,
    "rate": "1e-4",
    "launcher": "python",
    "note": 'it\'s: "a" \n- {b}',
    "file": "gpt.py",
}
FILE = """\
# {{ not.rendered }}
name: "train-{{ params.launcher }}"
nodes: "{{ params.nodes }}"
program:
  script: "{{ params.file }}"
  source: ../train
  args: [--rate, "{{ params.rate }}", --nodes, "{{ params.nodes }}", "{{ params.note }}"]
launcher: {kind: "{{ params.launcher }}", processes_per_node: "{{ params.nodes // 2 }}"}
limits: {max_runtime: "{{ params.hours }}", hang_timeout: "{{ params.nodes * 60 }}"}
checkpoints: {resume: "{{ params.resume }}"}
env: {RATE: "{{ params.rate }}", "{{ params.launcher | upper }}_X": "1"}
backend: {shape: VM.Standard.E4.Flex, ocpus: "{{ params.ocpus }}", memory_gb: 16}
"""


@pytest.fixture
def folder(tmp_path):
    """Where a DAG file, its jobs and their code lie."""
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "gpt.py").touch()
    (tmp_path / "jobs").mkdir()
    return tmp_path


@pytest.fixture
def job_of(folder):
    """Return the job that a task would run, rendered as Airflow renders it."""

    def rendered(job, *, native=False, **arguments):
        with DAG(
            "dag",
            schedule=None,
            start_date=dt.datetime(2026, 1, 1),
            render_template_as_native_obj=native,
        ) as dag:
            operator = DistributedTrainingOperator(task_id="train", job=job, **arguments)
        dag.fileloc = str(folder / "dag.py")
        context = {"params": PARAMS, "run_id": "r"}
        operator.render_template_fields(context)
        arguments = operator.job_arguments(context)
        task_job = TaskJob(TaskConnection(operator.conn_id))
        return task_job.read(arguments, lambda text: operator.render_template(text, context))

    return rendered


def expected(folder, rate="1e-4"):
    return TrainingJob(
        name="train-python",
        nodes=4,
        program=Program(
            script="gpt.py",
            source=str(folder / "train"),
            args=("--rate", rate, "--nodes", "4", PARAMS["note"]),
        ),
        launcher=LauncherOptions(kind="python", processes_per_node=2),
        limits=Limits(max_runtime=7200.0, hang_timeout=240.0),
        checkpoints=Checkpoints(resume=False),
        env={"RATE": rate, "PYTHON_X": "1"},
        backend=OciDataScienceOptions(shape="VM.Standard.E4.Flex", ocpus=2.5, memory_gb=16.0),
    )


NATIVE = [(False, "1e-4"), (True, "0.0001")]
"""Where Airflow makes Python values of what it renders, a number loses the form in which it was written."""


@pytest.mark.parametrize("native, rate", NATIVE)
def test_any_string_of_a_file_may_be_jinja_and_no_value_changes_the_structure(job_of, folder, native, rate):
    (folder / "jobs" / "job.yaml").write_text(FILE)
    assert job_of("jobs/job.yaml", native=native) == expected(folder, rate)
    assert job_of(Path("jobs/job.yaml"), native=native) == expected(folder, rate)


def test_the_path_itself_may_be_jinja(job_of, folder):
    (folder / "jobs" / "python.yaml").write_text(FILE)
    assert job_of("jobs/{{ params.launcher }}.yaml").nodes == 4


def test_a_file_at_a_uri_is_filled_in_as_well(job_of):
    text = FILE.replace("../train", "git+https://host/repo.git")
    fsspec.filesystem("memory").pipe("/templates/job.yaml", text.encode())
    job = job_of("memory://templates/job.yaml")
    assert (job.nodes, job.program.source) == (4, "git+https://host/repo.git")


MAPPING = {
    "name": "train-{{ params.launcher }}",
    "nodes": "{{ params.nodes }}",
    "program": {
        "script": "{{ params.file }}",
        "source": "train",
        "args": ("--rate", "{{ params.rate }}", "--nodes", "{{ params.nodes }}", "{{ params.note }}"),
    },
    "launcher": {"kind": "{{ params.launcher }}", "processes_per_node": "{{ params.nodes // 2 }}"},
    "limits": {"max_runtime": "{{ params.hours }}", "hang_timeout": "{{ params.nodes * 60 }}"},
    "checkpoints": {"resume": "{{ params.resume }}"},
    "env": {"RATE": "{{ params.rate }}", "PYTHON_X": "1"},
    "backend": {"shape": "VM.Standard.E4.Flex", "ocpus": "{{ params.ocpus }}", "memory_gb": 16},
}


@pytest.mark.parametrize("native, rate", NATIVE)
def test_so_may_any_string_of_a_mapping(job_of, folder, native, rate):
    assert job_of(MAPPING, native=native) == expected(folder, rate)


def test_and_any_of_a_training_job(job_of, folder):
    job = TrainingJob(
        name="train-{{ params.launcher }}",
        nodes="{{ params.nodes }}",
        program=Program(**MAPPING["program"]),
        launcher=LauncherOptions(**MAPPING["launcher"]),
        limits=Limits(**MAPPING["limits"]),
        checkpoints=Checkpoints(**MAPPING["checkpoints"]),
        env=MAPPING["env"],
        backend=OciDataScienceOptions(**MAPPING["backend"]),
    )
    assert job_of(job) == expected(folder)


def test_arguments_of_the_operator_are_filled_in_too(job_of):
    job = job_of(
        MAPPING,
        nodes="{{ params.nodes * 2 }}",
        env={"A": "{{ params.nodes }}"},
        overrides={"limits.max_runtime": "{{ params.nodes }}", "program.args.1": "{{ params.hours }}"},
    )
    assert (job.nodes, job.env["A"], job.limits.max_runtime, job.program.args[1]) == (8, "4", 4.0, "2h")


def test_blocks_around_lines_are_filled_in_as_a_whole(job_of, folder):
    (folder / "jobs" / "job.yaml").write_text(
        "name: x\nnodes: {{ params.nodes }}\nimage: i\nprogram:\n  script: /a.py\n  args:\n"
        "{% for number in range(3) %}\n  - {{ number }}\n{% endfor %}\n"
    )
    job = job_of("jobs/job.yaml")
    assert (job.nodes, job.program.args) == (4, ("0", "1", "2"))


def test_what_cannot_be_filled_in_is_reported_with_path_and_line(job_of, folder):
    (folder / "jobs" / "job.yaml").write_text(
        'name: x\nnodes: "{{ params.nods }}"\nimage: "{{ nothing }}"\nenv: {A: "{{ unclosed"}\n'
    )
    with pytest.raises(JobFileError) as caught:
        job_of("jobs/job.yaml")
    lines = [str(problem) for problem in caught.value.problems]
    assert [line.split(": cannot be filled in: ")[0] for line in lines] == [
        "line 2: nodes",
        "line 3: image",
        "line 4: env.A",
    ]
    assert "'nothing' is undefined" in lines[1]


def test_a_number_that_is_none_is_still_refused(job_of, folder):
    (folder / "jobs" / "job.yaml").write_text(
        'name: x\nimage: i\nprogram: {script: a}\nnodes: "{{ params.hours }}"\n'
    )
    with pytest.raises(JobFileError, match="line 4: nodes: must be a whole number of at least 1, not '2h'"):
        job_of("jobs/job.yaml")


def test_before_airflow_a_placeholder_is_right_for_any_value_but_nothing_can_run_with_it(folder):
    text = FILE.replace("../train", "train")
    job = parsing.parse(text, base_dir=folder, templates=True)
    assert (job.nodes, job.program.script) == (1, "{{ params.file }}")
    with pytest.raises(
        JobFileError, match=r"nodes: must be a whole number of at least 1, not .*: only Airflow fills it in"
    ):
        parsing.parse(text, base_dir=folder)
