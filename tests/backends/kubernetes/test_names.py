"""Names of a gang's objects: the same for the same key, another for each other, and short enough for its pods."""

from __future__ import annotations

import random
import re
import string

from airflow_provider_ocidist.backends.kubernetes import names
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
