"""Dataclasses survive the trip through JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScienceOptions
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import (
    Checkpoints,
    Input,
    LauncherOptions,
    Limits,
    Output,
    Program,
    TrainingJob,
)
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import NodeReport, Phase, StackPosition


@dataclass(frozen=True, kw_only=True)
class Outcome:
    cause: Cause | None = None
    message: str = ""
    parts: tuple[Outcome, ...] = ()
    seen: dict[str, int] = field(default_factory=dict)


JOB = TrainingJob(
    name="train",
    program=Program(script="train.py", source="/code", args=("--steps", "3")),
    backend=OciDataScienceOptions(shape="VM.GPU.A10.1"),
    nodes=4,
    env={"SEED": "1"},
    inputs=(Input(source="oci://b@n/data/", target="data/"),),
    outputs=(Output(path="out", uri="oci://b@n/out/", required=False),),
    checkpoints=Checkpoints(keep=1),
    launcher=LauncherOptions(kind="python", processes_per_node=2),
    limits=Limits(max_runtime=60.0, hang_timeout=None),
)


@pytest.mark.parametrize(
    "value",
    [
        Outcome(),
        Outcome(cause=Cause.OOM, message="no memory", parts=(Outcome(message="inner"),), seen={"a": 1}),
        JOB.program,
        JOB.launcher,
        JOB.limits,
        JOB.checkpoints,
        JOB.backend,
        AgentConfig(
            run_name="r",
            nodes=2,
            run_dir="oci://b@n/r",
            program=JOB.program,
            inputs=JOB.inputs,
            outputs=JOB.outputs,
            checkpoints=JOB.checkpoints,
            limits=JOB.limits,
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_decode_gives_back_what_encode_wrote(value):
    assert codec.decode(type(value), json.loads(json.dumps(codec.encode(value)))) == value


def test_fields_that_hold_their_default_are_left_out():
    assert codec.encode(Limits()) == {}
    assert codec.encode(Program(script="a.py", args=())) == {"script": "a.py"}


def test_enums_become_their_values():
    assert codec.encode(Outcome(cause=Cause.HANG)) == {"cause": "HANG"}


def test_keys_of_a_newer_version_are_dropped():
    assert codec.decode(Program, {"script": "a.py", "invented_later": 1}) == Program(script="a.py")


def test_a_default_that_is_none_can_be_set_to_none():
    assert codec.decode(Limits, {"hang_timeout": None}) == Limits(hang_timeout=None)


def test_what_is_no_object_is_a_type_error():
    from airflow_provider_ocidist.model.run import RunRecord

    for value in (5, {"ref": 5}, None):
        with pytest.raises(TypeError):
            RunRecord.from_json(value)


@dataclass(frozen=True, kw_only=True)
class Measured:
    count: int = 0
    share: float | None = None
    name: str = ""
    sure: bool = False
    cause: Cause | None = None
    times: tuple[float, ...] = ()
    by_rank: dict[str, Outcome] = field(default_factory=dict)
    inner: Outcome | None = None


VALUES: list[object] = ["x", "", 3, 2.5, True, None, [], [1.5], ["x"], {}, {"a": {}}, {"a": 1}, "OOM"]
VALUES += [[1, 2.5], [2.5, True], [2.5, None], [2.5, "x"], [[2.5]]]
FITS: dict[str, Callable[[object], bool]] = {
    "count": lambda value: type(value) is int,
    "share": lambda value: value is None or type(value) in (int, float),
    "name": lambda value: type(value) is str,
    "sure": lambda value: type(value) is bool,
    "cause": lambda value: value in (None, "OOM"),
    "times": lambda value: value in ([], [1.5], [1, 2.5]),
    "by_rank": lambda value: value in ({}, {"a": {}}),
    "inner": lambda value: value is None or isinstance(value, dict),
}


@pytest.mark.parametrize("name", FITS)
def test_what_is_read_is_of_its_declared_type_or_an_error_that_names_the_field_and_not_the_value(name):
    for value in VALUES:
        if FITS[name](value):
            read = codec.decode(Measured, {name: value})
            assert codec.decode(Measured, json.loads(json.dumps(codec.encode(read)))) == read
        else:
            with pytest.raises((TypeError, ValueError), match=rf"Measured\.{name}|Outcome") as caught:
                codec.decode(Measured, {name: value})
            assert "'x'" not in str(caught.value)


@pytest.mark.parametrize("value", [JOB, JOB.limits, JOB.program], ids=lambda value: type(value).__name__)
def test_a_dataclass_with_other_values_is_as_dataclasses_makes_it(value):
    names = [each.name for each in fields(value)]
    for name in names:
        changes = {name: getattr(value, names[0])}
        assert codec.replaced(value, **changes) == replace(value, **changes)
    with pytest.raises(TypeError, match="no_field"):
        codec.replaced(value, no_field=1)


def test_dataclasses_in_a_mapping_come_back_as_such():
    value = Measured(by_rank={"0": Outcome(cause=Cause.OOM), "1": Outcome()})
    assert codec.decode(Measured, codec.encode(value)) == value


@pytest.mark.parametrize("text", ["{", "[]", "5", "\x00", "[" * 100_000, '{"a":' * 100_000, ""])
def test_a_text_that_holds_no_object_is_an_error_that_readers_of_records_expect(text):
    for given in (text, text.encode()):
        with pytest.raises((TypeError, ValueError)):
            codec.read(Measured, given)


@dataclass(frozen=True)
class Renamed:
    try_number: int = field(metadata=codec.key("number"))
    newest: tuple[float, ...] = field(default=(), metadata=codec.key("last"))


def test_a_field_with_a_key_of_its_own_is_written_and_read_by_it():
    value = Renamed(3, (1.5,))
    assert codec.encode(value) == {"number": 3, "last": [1.5]}
    assert codec.decode(Renamed, {"number": 3, "last": [1.5]}) == value
    assert codec.encode(Renamed(3)) == {"number": 3}
    with pytest.raises(TypeError):
        codec.decode(Renamed, {"try_number": 3})
    with pytest.raises(TypeError, match=r"Renamed\.try_number must be of type int"):
        codec.decode(Renamed, {"number": "3"})


def test_where_processes_stood_is_stored_under_the_name_that_earlier_versions_write_and_read() -> None:
    place = StackPosition(rank=1, at=("train.py:12",))
    report = NodeReport(
        rank=0, phase=Phase.TRAINING, address="", started_at=1.0, heartbeat_at=2.0, stack_positions=(place,)
    )
    assert json.loads(report.to_json())["stands"] == [{"rank": 1, "at": ["train.py:12"]}]
    assert NodeReport.from_json(report.to_json()) == report
