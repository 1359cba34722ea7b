"""ocidist diff of two job files; tests/cli/test_runs.py compares with what runs."""

from __future__ import annotations

import json

import pytest

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backends.capabilities import ShowsWhatItCreated
from airflow_provider_ocidist.cli import main
from airflow_provider_ocidist.cli.diff import Difference, differences
from airflow_provider_ocidist.errors import BackendError

JOB = """\
name: retrain
nodes: 2
image: iad.ocir.io/namespace/image:1
program: {script: /code/train.py, args: [--steps, "10"]}
env: {SEED: 1}
backend: {shape: VM.Standard.E4.Flex, ocpus: 1, memory_gb: 8}
"""


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, [Difference("a.b", 1, 2)]),
        ({"a": [1, 2]}, {"a": [1, 3]}, [Difference("a.1", 2, 3)]),
        ({"a": [1]}, {"a": [1, 2]}, [Difference("a", [1], [1, 2])]),
        ({"a": 1}, {"b": 1}, [Difference("a", 1, None), Difference("b", None, 1)]),
        ({"a": {}}, {"a": {"b": False}}, [Difference("a.b", None, False)]),
    ],
)
def test_differences_are_reported_by_their_path(old, new, expected):
    assert list(differences(old, new)) == expected


def test_two_files_that_mean_the_same_do_not_differ(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text(JOB)
    (tmp_path / "b.yaml").write_text(
        JOB.replace("env: {SEED: 1}\n", "env:\n  SEED: '1'  # the same\n") + "limits: {}\n"
    )
    assert main(["diff", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]) == 0
    assert capsys.readouterr().out == "no difference\n"


def test_what_differs_is_exit_code_1_and_json_on_request(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text(JOB)
    (tmp_path / "b.yaml").write_text(JOB.replace('"10"', '"20"'))
    assert main(["diff", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]) == 1
    assert capsys.readouterr().out == 'program.args.1\n  - "10"\n  + "20"\n'
    assert main(["diff", "--json", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]) == 1
    assert json.loads(capsys.readouterr().out) == [{"path": "program.args.1", "old": "10", "new": "20"}]


def test_a_home_that_keeps_nothing_of_what_it_started_says_so_with_the_remedy():
    with pytest.raises(BackendError, match="'local' cannot show what it has created: compare two job files"):
        ShowsWhatItCreated.of(kinds.load("backends", "local").BACKEND.connect({}))
