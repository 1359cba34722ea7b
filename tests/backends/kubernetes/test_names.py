"""Names of a gang's objects: the same for the same key, another for each other, and short enough for its pods."""

from __future__ import annotations

import json
import random
import re
import string
from dataclasses import replace

from airflow_provider_ocidist.backends.kubernetes import names
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.run import RunKey

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
SUFFIXES = ("-worker-999", "-node-0-999-xxxxx")


def any_text(draw: random.Random) -> str:
    letters = draw.choice([string.ascii_letters, string.digits, string.printable, "äß中🙂", "-_."])
    return "".join(draw.choice(letters) for _ in range(draw.randint(1, 250)))


def any_key(draw: random.Random) -> RunKey:
    return RunKey(
        dag_id=any_text(draw),
        run_id=any_text(draw),
        task_id=any_text(draw),
        map_index=draw.randint(-1, 2000),
        generation=draw.choice([0, 1, draw.randint(0, 10_000)]),
        attempt=draw.choice([1, draw.randint(1, 10_000)]),
    )


def drawn() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def test_a_name_is_a_dns_label_with_room_for_what_the_operator_appends() -> None:
    draw = drawn()
    for _ in range(500):
        key, suffix = any_key(draw), draw.choice(SUFFIXES)
        name = names.gang_name(key, suffix)
        assert DNS_1035.fullmatch(name), (key, name)
        assert len(name + suffix) <= 63, (key, name)


def test_the_same_key_has_one_name_and_any_other_key_another() -> None:
    draw = drawn()
    keys = [any_key(draw) for _ in range(300)]
    keys += [
        RunKey(dag_id="d", run_id="r", task_id="t", generation=generation, attempt=attempt)
        for generation in range(12)
        for attempt in range(1, 12)
    ]
    made = {names.gang_name(key, SUFFIXES[0]) for key in keys}
    assert len(made) == len(set(keys))
    assert made == {names.gang_name(key, SUFFIXES[0]) for key in keys}


def test_a_person_finds_dag_and_task_in_the_name() -> None:
    key = RunKey(dag_id="train_llm", run_id="r", task_id="Fine.Tune")
    assert names.gang_name(key, SUFFIXES[0]).startswith("train-llm-fine-tune-")


def test_an_object_belongs_to_the_key_that_it_was_made_for_and_to_no_other() -> None:
    draw = drawn()
    for _ in range(100):
        key, other = any_key(draw), any_key(draw)
        made = {
            "metadata": {
                "labels": names.labels_of(key, "x"),
                "annotations": names.annotations_of(key, "oci://b/x"),
            }
        }
        assert names.key_of_object(made) == key
        assert names.is_of(key, made)
        assert not names.is_of(other, made)
        del made["metadata"]["labels"][names.MANAGER]
        assert names.key_of_object(made) is None
        assert not names.is_of(key, made)


def test_labels_hold_only_what_kubernetes_takes() -> None:
    draw = drawn()
    for _ in range(100):
        key = any_key(draw)
        for value in names.labels_of(key, names.gang_name(key, SUFFIXES[0])).values():
            assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value)


KEY = RunKey(dag_id="Train LLM", run_id="r", task_id="tune", generation=2, attempt=3)


def test_a_name_is_made_of_dag_task_digest_generation_and_attempt() -> None:
    tail = f"{KEY.task_digest[:12]}-g2-a3"
    assert names.gang_name(KEY, SUFFIXES[0]) == f"train-llm-tune-{tail}"
    # Each of both has half of the room.
    long = replace(KEY, dag_id="d" * 99, task_id="t" * 99)
    tail = f"{long.task_digest[:12]}-g2-a3"
    room = 63 - len(SUFFIXES[0]) - len(tail) - 1
    each = (room - 1) // 2
    assert names.gang_name(long, SUFFIXES[0]) == f"{'d' * each}-{'t' * each}-{tail}"
    # What cannot be in a name takes no room.
    odd = replace(long, dag_id="_" + "d" * 99)
    assert names.gang_name(odd, SUFFIXES[0]).startswith(f"{'d' * each}-{'t' * each}-")


def test_a_name_without_letters_at_its_beginning_has_one() -> None:
    nameless = replace(KEY, dag_id="中", task_id="🙂")
    assert names.gang_name(nameless, SUFFIXES[0]) == f"t-{nameless.task_digest[:12]}-g2-a3"
    numbered = replace(KEY, dag_id="2026", task_id="x")
    assert names.gang_name(numbered, SUFFIXES[0]) == f"t2026-x-{numbered.task_digest[:12]}-g2-a3"
    only_task = replace(KEY, dag_id="--", task_id="Fine.Tune")
    assert names.gang_name(only_task, SUFFIXES[0]).startswith("fine-tune-")
    # Where a word is cut, nothing dangles.
    room = 63 - len(SUFFIXES[0]) - len("0" * 12 + "-g2-a3") - 1
    cut = replace(KEY, dag_id="d" * ((room - 1) // 2 - 1) + ".x", task_id="..t..")
    assert names.gang_name(cut, SUFFIXES[0]).startswith("d" * ((room - 1) // 2 - 1) + "-t-")
    # Without any room at all it is still a label.
    crowded = names.gang_name(replace(KEY, dag_id="1"), "-" + "x" * 45)
    assert DNS_1035.fullmatch(crowded)


def test_labels_and_annotations_say_whose_gang_it_is_and_what_its_nodes_do() -> None:
    assert names.labels_of(KEY, "x") == {
        "app.kubernetes.io/managed-by": "ocidist",
        "ocidist/gang": "x",
        "ocidist/task": KEY.task_digest,
        "ocidist/generation": "2",
        "ocidist/attempt": "3",
    }
    few = names.annotations_of(KEY, "oci://b/x")
    assert few == {
        "ocidist/key": json.dumps(codec.encode(KEY), separators=(",", ":")),
        "ocidist/request": KEY.token("gang"),
        "ocidist/run-dir": "oci://b/x",
    }
    more = names.annotations_of(KEY, "oci://b/x", "oci://b/c", 600.0)
    assert {name: more[name] for name in more.keys() - few.keys()} == {
        "ocidist/checkpoints": "oci://b/c",
        "ocidist/lease": "600",
    }
    assert names.annotations_of(KEY, "oci://b/x", None, 0.0) == few
    assert names.SELECTOR == "app.kubernetes.io/managed-by=ocidist"
    assert names.QUEUE == "kueue.x-k8s.io/queue-name"
    # What a person may not write: all that is ours, but for the one label that Kubernetes' documentation names.
    assert all(
        name.startswith(names.RESERVED) for name in {*more, *names.labels_of(KEY, "x")} - {names.MANAGER}
    )
    assert names.RESERVED == "ocidist/"


def test_a_selector_names_all_values_in_one_order() -> None:
    assert names.any_of("ocidist/task", {"c", "a", "b"}) == "ocidist/task in (a,b,c)"


def test_an_object_that_says_nothing_readable_of_a_key_is_nobodys() -> None:
    made = {"labels": names.labels_of(KEY, "x"), "annotations": names.annotations_of(KEY, "oci://b/x")}
    assert names.is_of(KEY, {"metadata": made})
    forged = {**made["annotations"], "ocidist/request": "another"}
    assert not names.is_of(KEY, {"metadata": {**made, "annotations": forged}})
    for text in ("{", "[]", '{"dag_id": 1}', "{}"):
        assert names.key_in({"metadata": {**made, "annotations": {"ocidist/key": text}}}) is None
    for metadata in ({}, {"labels": made["labels"]}, {"annotations": made["annotations"]}, None):
        assert names.key_in({"metadata": metadata}) is None
        assert not names.is_of(KEY, {"metadata": metadata})
    assert names.key_in({}) is None
