"""Whatever stands in a job file: a job, or problems with their lines, and never another error."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.job_file import parsing

SEED = int(os.environ.get("TEST_SEED", "20261128"))
HERE = Path(__file__).parent
EXAMPLES = sorted([*HERE.glob("*.yaml"), *HERE.glob("golden/*.yaml")])
HOSTILE: tuple[Any, ...] = (
    None,
    {},
    [],
    "",
    " ",
    True,
    0,
    -1,
    1.5,
    float("nan"),
    float("inf"),
    1e300,
    10**400,
    "9" * 5000,
    "x" * 5000,
    "on",
    "012",
    "1:30",
    "2026-11-28",
    "two words",
    "two\nlines",
    "\x07",
    "{{ x }}",
    "oci://",
    "://",
    "[",
    "~nobody/x",
    "../..",
    "1e999h",
    [None],
    [[]],
    [{}],
    ["a", 1],
    {"": 1},
    {1: 2},
    {None: 1},
    {"kind": []},
    {"a": {"b": [1, {"c": None}]}},
)


@pytest.mark.parametrize("number", range(20))
def test_any_value_at_any_place_of_another_form_is_a_job_or_a_problem_with_its_line(number: int) -> None:
    seed = f"{SEED}.{number}"
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(25):
        example = draw.choice(EXAMPLES)
        mapping = yaml.safe_load(example.read_text())
        place, value = draw.choice(list(_places(mapping))), draw.choice(HOSTILE)
        text = yaml.safe_dump(_with(mapping, place, value), sort_keys=False, allow_unicode=True)
        try:
            parsing.parse(text, base_dir=HERE)
        except JobFileError as error:
            for problem in error.problems:
                assert problem.line is not None, (example.name, place, value, problem)
                assert problem.message, (example.name, place, value)
        except Exception as error:
            raise AssertionError((example.name, place, value)) from error


@pytest.mark.parametrize("value", [[], {"a": 1}, ["container"], 1.5])
def test_a_kind_of_runtime_that_is_no_text_is_named_as_such(value: object) -> None:
    mapping = yaml.safe_load((HERE / "golden/pytorch_doc.yaml").read_text())
    with pytest.raises(JobFileError) as caught:
        parsing.parse(yaml.safe_dump(_with(mapping, ("spec", "runtime", "type"), value)), base_dir=HERE)
    (problem,) = caught.value.problems
    assert problem.path == "spec.runtime.type"
    assert problem.message.startswith("must be pyTorchDistributed or container, not ")


def test_a_number_of_many_digits_is_none_in_any_form() -> None:
    mapping = yaml.safe_load((HERE / "golden/container.yaml").read_text())
    place = ("spec", "runtime", "spec", "maximumRuntimeInMinutes")
    with pytest.raises(JobFileError, match="must be a whole number of at least 1, not '9999") as caught:
        parsing.parse(yaml.safe_dump(_with(mapping, place, "9" * 5000)), base_dir=HERE)
    assert [problem.path for problem in caught.value.problems] == [".".join(place)]


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*at, key))


def _with(mapping: Any, place: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(mapping)
    holder = changed
    for part in place[:-1]:
        holder = holder[part]
    holder[place[-1]] = value
    return changed
