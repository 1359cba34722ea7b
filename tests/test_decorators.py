"""`@task.distributed_training`: what becomes of a function's source and its arguments."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG

from airflow_provider_ocidist.decorators import PROGRAM, SCRIPT, distributed_training_task, source_of

JOB = {"name": "x", "backend": {"shape": "VM.Standard.E4.Flex", "ocpus": 1, "memory_gb": 8}}


def operator_of(*args: object, **kwargs: object):
    with DAG("dag", schedule=None):

        @distributed_training_task(
            job=JOB,
            nodes=2,
        )
        def train(data: str, epochs: int = 1, **more: object) -> dict[str, Unknown] | None:  # noqa: F821 - known in the DAG file only
            print(data, epochs, more)
            return None

        return train(*args, **kwargs).operator


def test_the_function_becomes_a_program_that_calls_it(tmp_path: Path):
    operator = operator_of('oci://b@n/it\'s "data"', epochs=3, flag=True)
    (tmp_path / "train.py").write_text(operator._program("train"))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "oci://b@n/it's \"data\" 3 {'flag': True}\n"


def test_arguments_that_cannot_travel_are_refused_with_what_to_do():
    with pytest.raises(
        AirflowFailException, match=r"train cannot be called on the nodes: .*URI of anything else"
    ):
        operator_of(object())._program("train")


def test_the_jobs_fields_and_the_functions_arguments_are_both_templated():
    operator = operator_of("{{ params.data }}")
    assert {"job", "nodes", "op_args", "op_kwargs"} <= set(operator.template_fields)
    assert json.loads(json.dumps(operator.job))["name"] == "x"


def test_a_functions_return_annotation_does_not_split_the_tasks_result():
    @distributed_training_task(job=JOB)
    def train() -> dict[str, int]:
        return {}

    with DAG("dag", schedule=None):
        assert train().operator.multiple_outputs is False


def test_a_nested_function_with_a_text_at_the_left_margin_keeps_its_text(tmp_path: Path):
    def train(word: str) -> None:
        print(
            f"""{word}
at the margin"""
        )

    (tmp_path / "train.py").write_text(PROGRAM.format(source=source_of(train), call="{}", name="train"))
    program = (tmp_path / "train.py").read_text().replace("_ocidist_json.loads('{}')", "CALL")
    (tmp_path / "train.py").write_text('CALL = {"args": ["x"], "kwargs": {}}\n' + program.partition("\n")[2])
    done = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "x\nat the margin\n"


def _code_of_a_function_named(name: str, folder: Path):
    """Return the code of a function that imports modules and says so."""
    imports = "import json, profile, random, tokenize"
    (folder / "dag_file.py").write_text(f"def {name}(word):\n    {imports}\n    print(word, tokenize.open)\n")
    specification = importlib.util.spec_from_file_location("dag_file", folder / "dag_file.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    with DAG("dag", schedule=None):
        return distributed_training_task(getattr(module, name), job=JOB)("x").operator.job_arguments({}).code


SHADOWING = ["call", "json", "profile", "tokenize"]
IDENTIFIERS = sorted(
    name for name in sys.stdlib_module_names if name.isidentifier() and not name.startswith("_")
)


@pytest.mark.parametrize("name", [*SHADOWING, *["drawn"] * 6])
def test_a_function_has_any_name_and_hides_no_module(tmp_path: Path, name: str):
    # Not drawn for the parameter: each worker would collect other tests.
    name = random.choice(IDENTIFIERS) if name == "drawn" else name
    print("name", name)
    with _code_of_a_function_named(name, tmp_path).written() as folder:
        (script,) = folder.iterdir()
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, check=False, cwd=folder
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("x <function open")


def test_a_function_named_as_a_module_runs_under_torchrun(tmp_path: Path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with _code_of_a_function_named("tokenize", tmp_path).written() as folder:
        done = subprocess.run([*torchrun, *folder.iterdir()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "x <function open" in done.stdout


def test_a_coroutine_is_refused_when_the_dag_is_read():
    with DAG("dag", schedule=None):

        @distributed_training_task(job=JOB)
        async def train() -> None: ...

        with pytest.raises(TypeError, match="must be a plain function"):
            train()


@pytest.mark.parametrize("setting", [True, False])
def test_whether_a_function_is_deferred_follows_airflows_own_setting(
    monkeypatch: pytest.MonkeyPatch, setting: bool
):
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", str(setting))
    assert operator_of("x").deferrable is setting


def test_a_function_can_be_mapped_over_its_arguments():
    with DAG("dag", schedule=None) as dag:

        @distributed_training_task(job=JOB)
        def train(data: str, epochs: int = 1) -> None: ...

        train.partial(epochs=3).expand(data=["a", "b"])
    (mapped,) = dag.tasks
    assert mapped.is_mapped
    assert set(mapped.template_fields) >= {"op_args", "op_kwargs", "job", "plan"}


def test_the_program_of_a_function_is_there_only_while_it_is_needed():
    operator = operator_of("data")
    code = operator.job_arguments({}).code
    with code.written() as folder:
        assert [path.name for path in folder.iterdir()] == [SCRIPT]
    assert not folder.exists()
    assert operator.overrides is None


DRAWN_TEXTS = [
    "  at the margin",
    "    deeper",
    "\tafter a tab",
    "",
    "no indent",
    "   \\n in quotes",
    "\x0cafter a form feed",
    "a\u2028b",
    "a\x1cb",
]


def _nested(rng: random.Random) -> tuple[str, str]:
    """Return a DAG file with a nested function `train` that returns a text of several lines, and that text."""
    indent = rng.choice(["    ", "  ", "\t"])
    depth = rng.randint(0, 4)
    lines = rng.choices(DRAWN_TEXTS, k=rng.randint(1, 5))
    # Lines that all begin with the function's indentation are those which dedenting would change.
    lines = [indent * depth + line for line in lines] if rng.random() < 0.5 else lines
    heads = ["if True:", "with suppress(ValueError):", "for _ in range(1):", "try:"]
    opened = [rng.choice(heads) for _ in range(depth)]
    decorators = rng.choice([[], ["@kept"], ["@made(", f"{indent}1,", ")"], ["@kept", "@made(1)"]])
    comment = rng.choice([[], ["# at the margin"]])
    signature = rng.choice([["def train():"], ["def train(", f"{indent}word=1,", "):"]])
    quoted = rng.choice(["'''", '"""'])
    definition = [*decorators, *signature]
    file = ["from contextlib import suppress", "def kept(f): return f", "def made(n): return kept"]
    file += [indent * level + head for level, head in enumerate(opened)]
    file += [indent * depth + line for line in definition]
    file += comment
    first, *rest = [f"{indent}return {quoted}x", *lines]
    file += [indent * (depth + 0) + first, *rest]
    file[-1] += quoted
    file += [
        indent * level + "finally: pass" for level in range(depth - 1, -1, -1) if opened[level] == "try:"
    ]
    text = "\n".join(["x", *lines]).replace("\\n", "\n")
    return "\n".join(file) + "\n", text


@pytest.mark.parametrize("number", range(60))
def test_a_functions_texts_are_the_same_on_the_nodes_however_it_is_nested(tmp_path: Path, number: int):
    seed = random.randrange(2**32)
    print("seed", seed)
    file, text = _nested(random.Random(seed))
    print(file)
    (tmp_path / "nested.py").write_text(file, newline="")
    specification = importlib.util.spec_from_file_location(f"nested_{seed}", tmp_path / "nested.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert module.train() == text
    there: dict[str, object] = {"__name__": "there"}
    exec(
        compile(PROGRAM.format(source=source_of(module.train), call="{}", name="train"), "there", "exec"),
        there,
    )
    assert there["train"]() == text


def _refused(function, *args: object, **kwargs: object) -> str:
    with DAG("dag", schedule=None), pytest.raises(TypeError) as raised:
        distributed_training_task(function, job=JOB)(*args, **kwargs)
    return str(raised.value)


def test_what_airflow_fills_in_on_a_worker_is_refused_when_the_dag_is_read():
    def train(data: str, ds: str, *, run_id: str) -> None: ...

    told = _refused(train, "x")
    assert "ds, run_id" in told
    assert 'run_id="{{ run_id }}"' in told
    assert "ds=" in _refused(train, "x", run_id="r")


def test_what_airflow_would_fill_in_may_be_passed_or_left_to_its_default(tmp_path: Path):
    def train(data: str, ds: str, ti: object = None, *, run_id: str) -> None:
        print(data, ds, ti, run_id)

    with DAG("dag", schedule=None):
        operator = distributed_training_task(train, job=JOB)("x", "{{ ds }}", run_id="{{ run_id }}").operator
    operator.render_template_fields({"ds": "2026-01-01", "run_id": "r", "task": None})
    (tmp_path / "train.py").write_text(operator._program("train"))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "x 2026-01-01 None r\n"


@pytest.mark.parametrize(
    "value", [{1: 2}, {"a": {None: 1}}, [{"b": ({True: 1},)}], {("a", 1): 2}, {1.5: "x"}], ids=str
)
def test_keys_that_are_no_text_are_refused_since_json_would_change_them(value: object):
    for operator in (operator_of(value), operator_of("x", more=value)):
        with pytest.raises(AirflowFailException, match=r"train cannot be called on the nodes: .*key"):
            operator._program("train")
