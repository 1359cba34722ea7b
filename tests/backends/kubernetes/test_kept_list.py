"""Lists that are kept up to date by what has changed: they hold what a list made now would hold."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_ocidist.backends.kubernetes.api import Api
from airflow_provider_ocidist.backends.kubernetes.kept_list import LIST_EVERY, KeptList
from airflow_provider_ocidist.backends.kubernetes.options import ClusterFields
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.errors import BackendError
from tests.backends.clusters import Home, cluster

SEED = int(os.environ.get("TEST_SEED", random.randrange(1_000_000)))
LABELS = {"wanted": "yes"}
Kept = KeptList[tuple[str, str]]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with cluster("pytorchjob") as found:
        yield found


@pytest.fixture
def maps(home: Home) -> Iterator[Cluster]:
    """The cluster's objects, among them no ConfigMap that is wanted."""
    yield (found := home.emulator.kubernetes.cluster)
    home.control("/faults", method="DELETE")
    for each in found.list("ConfigMap", home.namespace):
        found.delete("ConfigMap", home.namespace, each["metadata"]["name"])


def kept(home: Home, clock: Clock | None = None, **fields: Any) -> Kept:
    api = Api(ClusterFields(**({"kube_config_path": home.emulator.access.kubeconfig} | fields)))
    path = f"/api/v1/namespaces/{home.namespace}/configmaps"

    def name_and_text(obj: Any) -> tuple[str, str] | None:
        text = obj["data"]["text"]
        return (obj["metadata"]["name"], text) if text != "nothing" else None

    return KeptList(api, path, name_and_text, clock=clock or Clock(), labelSelector="wanted=yes")


def write(maps: Cluster, name: str, text: str, *, wanted: bool = True) -> None:
    labels = {"wanted": "yes" if wanted else "no"}
    obj = {"kind": "ConfigMap", "metadata": {"name": name, "namespace": "training", "labels": labels}}
    body = {**obj, "data": {"text": text}}
    if maps.find("ConfigMap", "training", name) is None:
        maps.create(body)
    else:
        maps.update(body)


def asked(home: Home) -> list[str]:
    """Return how the ConfigMaps were asked for since the last call."""
    found = ["watch" if "watch=true" in path else "list" for path in home.calls() if "/configmaps" in path]
    home.control("/calls", method="DELETE")
    return found


def test_whatever_has_happened_in_between_it_holds_what_a_list_made_now_would_hold(
    home: Home, maps: Cluster
) -> None:
    print(f"seed {SEED}")
    draw, found = random.Random(SEED), kept(home)
    asked(home)
    for _ in range(3):
        for _ in range(40):
            name = f"map-{draw.randrange(12)}"
            if draw.random() < 0.3 and maps.find("ConfigMap", "training", name):
                maps.delete("ConfigMap", "training", name)
            else:
                text = draw.choice(["nothing", "a\u2028b", "c\r\nd", str(draw.random())])
                write(maps, name, text, wanted=draw.random() < 0.7)
        now = {
            (each["metadata"]["name"], each["data"]["text"])
            for each in maps.list("ConfigMap", "training", LABELS)
            if each["data"]["text"] != "nothing"
        }
        assert set(found.now()) == now
    assert asked(home) == ["list", "watch", "watch"]


def test_what_a_server_no_longer_remembers_is_listed_again(home: Home, maps: Cluster) -> None:
    write(maps, "one", "1")
    found = kept(home)
    assert found.now() == [("one", "1")]
    maps.delete("ConfigMap", "training", "one")
    write(maps, "two", "2")
    home.control("/compact")
    asked(home)
    assert found.now() == [("two", "2")]
    assert asked(home) == ["watch", "list"]


def test_it_is_listed_again_once_in_a_while(home: Home, maps: Cluster) -> None:
    clock = Clock()
    found = kept(home, clock)
    found.now()
    write(maps, "one", "1")
    clock.now += LIST_EVERY
    asked(home)
    assert found.now() == [("one", "1")]
    assert asked(home) == ["list"]


def test_a_user_who_may_not_watch_lists_and_asks_for_it_once(home: Home, maps: Cluster) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}
    place = {"namespace": "training", "name": "lister"}
    maps.create({"kind": "Role", "metadata": place, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "lister"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "lister"}
    maps.create({"kind": "RoleBinding", "metadata": place, "roleRef": role, "subjects": [subject]})
    config = home.user("lister")["kube_config"]
    found = kept(home, kube_config_path=None, kube_config=config)
    asked(home)
    for number in range(3):
        write(maps, "one", str(number))
        assert found.now() == [("one", str(number))]
    assert asked(home) == ["list", "watch", "list", "list"]


def test_a_server_that_fails_is_an_error_and_nothing_is_missed(home: Home, maps: Cluster) -> None:
    found = kept(home)
    write(maps, "one", "1")
    found.now()
    home.control("/faults", path="/api/v1/.*configmaps", status=403, message="you may not")
    write(maps, "one", "2")
    with pytest.raises(BackendError):
        found.now()
    home.control("/faults", method="DELETE")
    assert found.now() == [("one", "2")]
