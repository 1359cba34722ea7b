"""The contract of backends and nothing else, on any cluster: nothing is left behind, nothing but its API is used."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.contract import Contract
from tests.backends.contract import Home as ContractHome
from tests.homes.clusters import Cluster, any_cluster, left_as_found

pytestmark = [pytest.mark.slow, pytest.mark.timeout(540)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with any_cluster(tmp_path_factory.mktemp("cluster")) as found, left_as_found(found):
        yield found


def home_of(cluster: Cluster, kind: str) -> ContractHome:
    if not cluster.has(kind):
        pytest.skip("the cluster has no such kind")
    changes = {"image": cluster.image, "backend": {"kind": kind, **cluster.section}}
    return ContractHome(kind, cluster.fields, changes)


class TestPytorchjob(Contract):
    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, cluster: Cluster) -> ContractHome:
        return home_of(cluster, "pytorchjob")


class TestTrainjob(Contract):
    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, cluster: Cluster) -> ContractHome:
        return home_of(cluster, "trainjob")
