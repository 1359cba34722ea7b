"""The store: what etcd and the API server promise of objects, for whatever is done in whatever order."""

import random

import pytest

from airflow_provider_ocidist.emulator.kubernetes.controllers.garbage import GarbageCollector, Namespaces
from airflow_provider_ocidist.emulator.kubernetes.controllers.manager import Manager
from airflow_provider_ocidist.emulator.kubernetes.core_kinds import KINDS
from airflow_provider_ocidist.emulator.kubernetes.metadata import owner_reference
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError
from tests.emulator.kubernetes.waiting import until


@pytest.fixture
def cluster():
    cluster = Cluster(KINDS)
    cluster.create({"kind": "Namespace", "metadata": {"name": "default"}})
    return cluster


@pytest.fixture
def manager(cluster):
    manager = Manager(cluster, [GarbageCollector(cluster), Namespaces(cluster)])
    manager.start()
    yield manager
    manager.stop()


def config(name, *owners, **more):
    metadata = {"name": name, "namespace": "default"} | more
    if owners:
        metadata["ownerReferences"] = [owner_reference(owner) for owner in owners]
    return {"kind": "ConfigMap", "metadata": metadata, "data": {}}


def setting(part, **values):
    return lambda obj: obj[part].update(values)


def refused(code, reason):
    return pytest.raises(KubernetesError, check=lambda error: (error.code, error.reason) == (code, reason))


def names(cluster, kind="ConfigMap"):
    return {obj["metadata"]["name"] for obj in cluster.list(kind)}


def test_any_series_of_writes_is_seen_by_a_subscriber_as_it_happened(cluster):
    dice, seen = random.Random(7), {}

    def follow(event):
        metadata = event.object["metadata"]
        if event.type == "DELETED":
            del seen[metadata["name"]]
        else:
            assert (event.type == "ADDED") == (metadata["name"] not in seen)
            seen[metadata["name"]] = event.object

    cluster.subscribe_from("ConfigMap", None, follow)
    for turn in range(300):
        name = f"c{dice.randrange(8)}"
        if name not in names(cluster):
            cluster.create(config(name))
        elif dice.random() < 0.3:
            cluster.delete("ConfigMap", "default", name)
        else:
            cluster.modify("ConfigMap", "default", name, setting("data", turn=str(turn)))
        assert [seen[key] for key in sorted(seen)] == cluster.list("ConfigMap")


def test_a_watch_from_any_version_gets_each_change_after_it_and_after_a_compaction_it_is_refused(cluster):
    versions = [int(cluster.create(config(f"c{each}"))["metadata"]["resourceVersion"]) for each in range(9)]
    for index, version in enumerate(versions):
        seen = []
        cluster.subscribe_from("ConfigMap", version, seen.append)
        assert [event.version for event in seen] == versions[index + 1 :]
    cluster.compact()
    with refused(410, "Expired"):
        cluster.subscribe_from("ConfigMap", versions[-2], print)
    cluster.subscribe_from("ConfigMap", cluster.version, print)


def test_of_two_writers_that_read_the_same_version_the_second_is_refused(cluster):
    read = cluster.create(config("c"))
    first = {**read, "data": {"by": "first"}}
    cluster.update(first)
    with refused(409, "Conflict"):
        cluster.update({**read, "data": {"by": "second"}})
    assert cluster.get("ConfigMap", "default", "c")["data"] == {"by": "first"}


def test_a_write_that_changes_nothing_is_no_change(cluster):
    read = cluster.create(config("c"))
    assert cluster.update(read)["metadata"]["resourceVersion"] == read["metadata"]["resourceVersion"]


def test_what_is_returned_can_be_changed_without_harm(cluster):
    cluster.create(config("c"))["data"]["x"] = "y"
    cluster.list("ConfigMap")[0]["metadata"]["labels"] = {"x": "y"}
    found = cluster.get("ConfigMap", "default", "c")
    assert found["data"] == {}
    assert "labels" not in found["metadata"]


def test_what_an_object_controls_is_returned_by_name_and_can_be_changed_without_harm(cluster):
    owner, other = cluster.create(config("owner")), cluster.create(config("other"))
    for name, its in (("b", owner), ("a", owner), ("c", other)):
        cluster.create(config(name, its))
    loose = config("d")
    loose["metadata"]["ownerReferences"] = [owner_reference(owner, controller=False)]
    cluster.create(loose)
    found = cluster.controlled("ConfigMap", owner)
    assert [obj["metadata"]["name"] for obj in found] == ["a", "b"]
    assert cluster.controlled("Pod", owner) == []
    found[0]["data"]["x"] = "y"
    assert cluster.get("ConfigMap", "default", "a")["data"] == {}


def test_a_name_is_taken_once_and_a_generated_one_is_new_each_time(cluster):
    cluster.create(config("c"))
    with refused(409, "AlreadyExists"):
        cluster.create(config("c"))
    made = [cluster.create(config("", generateName="c-"))["metadata"]["name"] for _ in range(20)]
    assert len(set(made)) == 20
    assert all(name.startswith("c-") for name in made)


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "dash-", "a" * 254, "dot.", "spa ce"])
def test_a_name_that_dns_does_not_know_is_invalid(cluster, name):
    with refused(422, "Invalid"):
        cluster.create(config(name))


def test_status_is_written_apart_from_the_rest(cluster):
    pod = {"kind": "Pod", "metadata": {"name": "p", "namespace": "default"}}
    pod["spec"] = {"containers": [{"name": "c", "image": "i"}]}
    pod = cluster.create({**pod, "status": {"phase": "Running"}})
    assert pod["status"]["phase"] == "Pending"
    pod = cluster.update({**pod, "status": {"phase": "Running"}, "spec": {}}, "status")
    assert pod["spec"]["containers"]
    assert pod["metadata"]["generation"] == 1
    pod["spec"]["activeDeadlineSeconds"] = 9
    pod = cluster.update({**pod, "status": {"phase": "Failed"}})
    assert pod["status"]["phase"] == "Running"
    assert pod["metadata"]["generation"] == 2


def test_an_object_with_finalizers_stays_until_the_last_is_taken_away(cluster):
    cluster.create(config("c", finalizers=["a.b/one", "a.b/two"]))
    cluster.delete("ConfigMap", "default", "c")
    for left in (["a.b/two"], []):
        assert cluster.get("ConfigMap", "default", "c")["metadata"]["deletionTimestamp"]
        cluster.modify("ConfigMap", "default", "c", setting("metadata", finalizers=left))
    with refused(404, "NotFound"):
        cluster.get("ConfigMap", "default", "c")


def test_dependents_go_with_their_last_owner(cluster, manager):
    one, two = cluster.create(config("one")), cluster.create(config("two"))
    cluster.create(config("both", one, two))
    alone = cluster.create(config("alone", one))
    cluster.create(config("grandchild", alone))
    cluster.delete("ConfigMap", "default", "one")
    until(lambda: names(cluster) == {"two", "both"})
    cluster.delete("ConfigMap", "default", "two")
    until(lambda: names(cluster) == set())


def test_in_the_foreground_an_owner_goes_after_its_dependents_and_orphans_stay(cluster, manager):
    order = []
    cluster.subscribe(
        "ConfigMap", lambda e: e.type == "DELETED" and order.append(e.object["metadata"]["name"])
    )
    owner = cluster.create(config("owner"))
    child = cluster.create(config("child", owner))
    cluster.create(config("grandchild", child))
    cluster.delete("ConfigMap", "default", "owner", "Foreground")
    until(lambda: not names(cluster))
    assert order == ["grandchild", "child", "owner"]

    cluster.create(config("child", cluster.create(config("owner"))))
    cluster.delete("ConfigMap", "default", "owner", "Orphan")
    until(lambda: names(cluster) == {"child"})
    assert not cluster.get("ConfigMap", "default", "child")["metadata"].get("ownerReferences")


def test_what_is_made_for_an_owner_that_is_gone_goes_too(cluster, manager):
    owner = cluster.create(config("owner"))
    cluster.delete("ConfigMap", "default", "owner")
    cluster.create(config("late", owner))
    until(lambda: not names(cluster))


def test_a_namespace_goes_with_all_in_it_and_takes_nothing_new_meanwhile(cluster, manager):
    cluster.create({"kind": "Namespace", "metadata": {"name": "n"}})
    until(lambda: cluster.find("ServiceAccount", "n", "default"))
    cluster.create(config("held", namespace="n", finalizers=["a.b/c"]))
    cluster.delete("Namespace", None, "n")
    with refused(403, "Forbidden"):
        cluster.create({"kind": "ConfigMap", "metadata": {"name": "new", "namespace": "n"}})
    assert cluster.get("Namespace", None, "n")["status"]["phase"] == "Terminating"
    cluster.modify("ConfigMap", "n", "held", setting("metadata", finalizers=[]))
    until(lambda: cluster.find("Namespace", None, "n") is None)
    with refused(404, "NotFound"):
        cluster.create({"kind": "ConfigMap", "metadata": {"name": "new", "namespace": "n"}})


def test_deleting_what_has_been_replaced_is_refused(cluster):
    first = cluster.create(config("c"))["metadata"]
    cluster.delete("ConfigMap", "default", "c")
    second = cluster.create(config("c"))["metadata"]
    with refused(409, "Conflict"):
        cluster.delete("ConfigMap", "default", "c", uid=first["uid"])
    with refused(409, "Conflict"):
        cluster.delete("ConfigMap", "default", "c", version=first["resourceVersion"])
    cluster.delete("ConfigMap", "default", "c", uid=second["uid"], version=second["resourceVersion"])


def test_selectors_find_what_their_words_say(cluster):
    dice = random.Random(11)
    for index in range(30):
        labels = {key: dice.choice("xyz") for key in "abc" if dice.random() < 0.7}
        cluster.create(config(f"c{index}", labels=labels))
    rules = {
        "a=x": lambda found: found.get("a") == "x",
        "a==x,b!=y": lambda found: found.get("a") == "x" and found.get("b") != "y",
        "a in (x, y),!c": lambda found: found.get("a") in ("x", "y") and "c" not in found,
        "b notin (x),c": lambda found: found.get("b") != "x" and "c" in found,
    }
    for text, rule in rules.items():
        found = {obj["metadata"]["name"] for obj in cluster.list("ConfigMap", "default", text)}
        wanted = {
            obj["metadata"]["name"]
            for obj in cluster.list("ConfigMap")
            if rule(obj["metadata"].get("labels", {}))
        }
        assert found == wanted, text
    with refused(400, "BadRequest"):
        cluster.list("ConfigMap", None, "a=(b")


@pytest.mark.parametrize(
    "value, taken", [("", True), ("a.b_c-1", True), ("a b", False), ("-a", False), ("a" * 64, False)]
)
def test_a_label_has_the_values_that_kubernetes_takes(cluster, value, taken):
    made = config("labelled", labels={"k": value})
    if taken:
        cluster.create(made)
        return
    with refused(422, "Invalid"):
        cluster.create(made)


def test_a_subscription_may_be_ended_twice(cluster):
    told, others = [], []
    end = cluster.subscribe("ConfigMap", told.append)
    cluster.subscribe("ConfigMap", others.append)
    end()
    end()
    cluster.create(config("c"))
    assert (len(told), len(others)) == (0, 1)
