"""The pure parts of the API server: fields, patches, quantities, protobuf, the text of tables."""

import random
import string
import subprocess
import sys
from contextlib import suppress
from fractions import Fraction
from functools import partial

import pytest
from kubernetes.utils.quantity import parse_quantity

from airflow_provider_ocidist.emulator.kubernetes import fields, patches, protobuf
from airflow_provider_ocidist.emulator.kubernetes.core_kinds import KINDS
from airflow_provider_ocidist.emulator.kubernetes.kubelet.environment import expand
from airflow_provider_ocidist.emulator.kubernetes.quantities import SUFFIXES, amount
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError

POD = next(kind for kind in KINDS if kind.name == "Pod")


def test_the_fields_are_those_of_the_official_client():
    command = [sys.executable, "-m", "scripts.kubernetes_fields", "--check"]
    subprocess.run(command, check=True, timeout=120)


def a_pod():
    container = {
        "name": "c",
        "image": "i",
        "env": [{"name": "A", "value": "1"}],
        "resources": {"limits": {"cpu": 1}},
    }
    spec = {"containers": [container], "nodeSelector": {"any": "thing"}, "hostNetwork": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"any": "thing"}},
        "spec": spec,
    }


def places(value, path=""):
    """Yield each object within a value whose fields are fixed, with its path."""
    if isinstance(value, dict):
        if not path.endswith(("labels", "nodeSelector", "limits")):
            yield path, value
        for name, each in value.items():
            yield from places(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from places(each, f"{path}[{index}]")


@pytest.mark.parametrize("index", range(len(list(places(a_pod())))))
def test_an_unknown_field_anywhere_is_found_with_its_path_and_pruned(index):
    pod = a_pod()
    path, place = list(places(pod))[index]
    place["nosuch"] = {"deep": 1}
    wanted = f"{path}.nosuch" if path else "nosuch"
    with pytest.raises(KubernetesError, match="strict decoding error") as caught:
        fields.checked(POD, pod, "Strict")
    assert f'unknown field "{wanted}"' in caught.value.message
    pruned, warnings = fields.checked(POD, pod, "Warn")
    assert (pruned, warnings) == (a_pod(), [f'unknown field "{wanted}"'])
    assert fields.checked(POD, pod, "Ignore") == (a_pod(), [])


# The examples of RFC 7386, appendix A.
MERGES = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


def test_a_merge_patch_does_what_its_standard_shows():
    for target, patch, wanted in MERGES:
        assert patches.merge(target, patch) == wanted


# From RFC 6902, appendix A.
OPERATIONS = [
    ({"foo": "bar"}, {"op": "add", "path": "/baz", "value": "qux"}, {"foo": "bar", "baz": "qux"}),
    ({"foo": [1, 2]}, {"op": "add", "path": "/foo/1", "value": 9}, {"foo": [1, 9, 2]}),
    ({"foo": [1]}, {"op": "add", "path": "/foo/-", "value": [2]}, {"foo": [1, [2]]}),
    ({"foo": [1, 2, 3]}, {"op": "remove", "path": "/foo/1"}, {"foo": [1, 3]}),
    ({"foo": 1, "baz": 2}, {"op": "remove", "path": "/baz"}, {"foo": 1}),
    ({"baz": 1}, {"op": "replace", "path": "/baz", "value": 2}, {"baz": 2}),
    ({"a": {"b": 1}, "c": {}}, {"op": "move", "from": "/a/b", "path": "/c/d"}, {"a": {}, "c": {"d": 1}}),
    ({"a": [1]}, {"op": "copy", "from": "/a/0", "path": "/b"}, {"a": [1], "b": 1}),
    ({"/": 9, "~1": 10}, {"op": "test", "path": "/~01", "value": 10}, {"/": 9, "~1": 10}),
    ({"a/b": {"m~n": 8}}, {"op": "replace", "path": "/a~1b/m~0n", "value": 7}, {"a/b": {"m~n": 7}}),
]
REFUSED = [
    {"op": "add", "path": "/a/b/c", "value": 1},
    {"op": "remove", "path": "/nosuch"},
    {"op": "replace", "path": "/nosuch", "value": 1},
    {"op": "test", "path": "/foo", "value": "other"},
    {"op": "add", "path": "/list/9", "value": 1},
    {"op": "invent", "path": "/foo"},
    {"path": "/foo"},
]


def test_a_json_patch_does_what_its_standard_shows():
    for target, operation, wanted in OPERATIONS:
        assert patches.json_patch(target, [operation]) == wanted
    for operation in REFUSED:
        with pytest.raises(KubernetesError, match="rejected our request"):
            patches.applied(partial(patches.json_patch, operations=[operation]), {"foo": "bar", "list": []})


def test_a_strategic_patch_merges_what_has_names_and_replaces_what_has_none():
    old = {"containers": [{"name": "a", "args": ["1", "2"]}, {"name": "b"}], "tolerations": [{"key": "x"}]}
    new = {"containers": [{"name": "c"}, {"name": "a", "args": ["3"]}], "tolerations": [{"key": "y"}]}
    merged = patches.strategic(old, new)
    assert merged["containers"] == [{"name": "a", "args": ["3"]}, {"name": "b"}, {"name": "c"}]
    assert merged["tolerations"] == [{"key": "y"}]
    gone = patches.strategic(old, {"containers": [{"name": "a", "$patch": "delete"}]})
    assert [each["name"] for each in gone["containers"]] == ["b"]
    replaced = patches.strategic(old, {"containers": [{"$patch": "replace"}, {"name": "z"}]})
    assert replaced["containers"] == [{"name": "z"}]


def test_quantities_are_what_the_official_client_takes_them_for():
    dice = random.Random(3)
    for suffix in SUFFIXES:
        for _ in range(10):
            text = f"{dice.choice([dice.randrange(10_000), round(dice.uniform(0, 99), 3)])}{suffix}"
            assert amount(text) == Fraction(parse_quantity(text)), text
    for text in ("", "ten", "1 Gi", "1GB", "--1"):
        with pytest.raises(ValueError, match="quantities must match"):
            amount(text)


def test_references_are_expanded_as_kubernetes_does():
    known = {"A": "1", "B": "$(A)"}
    texts = {"$(A)": "1", "x$(A)y$(A)": "x1y1", "$$(A)": "$(A)", "$(NO)": "$(NO)", "$(B)": "$(A)", "$A": "$A"}
    for text, wanted in texts.items():
        assert expand(text, known) == wanted


def varint(number):
    low = number & 0x7F
    return bytes([low]) if number < 0x80 else bytes([low | 0x80]) + varint(number >> 7)


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def test_protobuf_is_read_whatever_it_holds():
    dice = random.Random(9)
    for _ in range(50):
        keys = ["".join(dice.choices(string.ascii_letters, k=5)) for _ in range(dice.randrange(4))]
        data = {key: "".join(dice.choices(string.printable, k=dice.randrange(1, 300))) for key in keys}
        raw = field(1, field(1, b"name") + field(3, b"space") + field(99, b"unknown") + field(98, 7))
        raw += b"".join(
            field(2, field(1, key.encode()) + field(2, value.encode())) for key, value in data.items()
        )
        raw += field(4, 1)
        body = b"k8s\0" + field(1, field(1, b"v1") + field(2, b"ConfigMap")) + field(2, raw)
        wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "name", "namespace": "space"}}
        wanted |= {"immutable": True} | ({"data": data} if data else {})
        assert protobuf.decode(body) == wanted
        for cut in dice.sample(range(len(body)), 5):
            with suppress(KubernetesError):
                protobuf.decode(body[:cut])
