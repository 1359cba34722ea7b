"""Metrics as the SDK posts, lists and summarises them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import oci
import pytest
from oci.exceptions import ServiceError
from oci.monitoring import models

from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import Cloud

NOW = dt.datetime.now(dt.timezone.utc)
MINUTE = (NOW - dt.timedelta(minutes=10)).replace(second=0, microsecond=0)


def at(minutes: float, value: float, count: int | None = None) -> models.Datapoint:
    return models.Datapoint(timestamp=MINUTE + dt.timedelta(minutes=minutes), value=value, count=count)


def metric(cloud: Cloud, *points: models.Datapoint, **more) -> models.MetricDataDetails:
    details = {
        "namespace": "training",
        "name": "gpu.power",
        "dimensions": {"node": "0"},
        "compartment_id": cloud.access.compartment_id,
        "datapoints": list(points) or [at(0, 1)],
    }
    return models.MetricDataDetails(**{**details, **more})


@pytest.fixture
def client(cloud):
    return cloud.client(oci.monitoring.MonitoringClient)


@pytest.fixture
def post(client) -> Callable:
    def post(*metrics, **more):
        return client.post_metric_data(models.PostMetricDataDetails(metric_data=list(metrics), **more)).data

    return post


@pytest.fixture
def summarize(cloud, client) -> Callable:
    def summarize(query: str, namespace="training", **more):
        details = models.SummarizeMetricsDataDetails(
            **{"query": query, "namespace": namespace, "start_time": MINUTE - dt.timedelta(hours=1), **more}
        )
        return client.summarize_metrics_data(cloud.access.compartment_id, details).data

    return summarize


def values(results) -> list[list[float]]:
    return [[point.value for point in result.aggregated_datapoints] for result in results]


@pytest.mark.parametrize(
    "statistic,found",
    [
        ("mean", [3.0, 10.0]),
        ("avg", [3.0, 10.0]),
        ("max", [4.0, 10.0]),
        ("min", [1.0, 10.0]),
        ("sum", [9.0, 10.0]),
        ("count", [3.0, 1.0]),
    ],
)
def test_points_are_summarised_by_interval(cloud, post, summarize, statistic, found):
    post(metric(cloud, at(0, 1), at(0.5, 4, count=2), at(2, 10)))
    results = summarize(f"gpu.power[1m].{statistic}()")
    assert values(results) == [found]
    stamps = [point.timestamp for point in results[0].aggregated_datapoints]
    assert stamps == [MINUTE, MINUTE + dt.timedelta(minutes=2)]
    assert results[0].dimensions == {"node": "0"}


@pytest.mark.parametrize(
    "dimensions,nodes",
    [
        ("", ["0", "1", "2"]),
        ('{node = "1"}', ["1"]),
        ('{ node != "1" , host = "a"}', ["0", "2"]),
        ('{node =~ "0|2"}', ["0", "2"]),
        ('{host = "b"}', []),
        ('{host =~ "a*", node="2"}', ["2"]),
    ],
)
def test_streams_are_chosen_by_dimension(cloud, post, summarize, dimensions, nodes):
    post(*(metric(cloud, dimensions={"node": str(node), "host": "a"}) for node in range(3)))
    results = summarize(f"gpu.power[1m]{dimensions}.mean()")
    assert sorted(result.dimensions["node"] for result in results) == nodes


def test_streams_are_grouped(cloud, post, summarize):
    streams = [("0", "a", 1), ("1", "a", 2), ("2", "b", 4)]
    post(*(metric(cloud, at(0, value), dimensions={"node": n, "host": h}) for n, h, value in streams))
    assert values(summarize("gpu.power[1m].grouping().sum()")) == [[7.0]]
    grouped = summarize("gpu.power[5m].groupBy(host).sum()")
    assert {result.dimensions["host"]: values([result])[0][0] for result in grouped} == {"a": 3.0, "b": 4.0}


@pytest.mark.parametrize(
    "query",
    ["gpu.power", "gpu.power[1m]", "x[1x].mean()", "x[2d].mean()", "x[1m].wrong()", "x[1m]{a}.sum()"],
)
def test_a_query_that_makes_no_sense_is_refused(summarize, query):
    with pytest.raises(ServiceError) as caught:
        summarize(query)
    assert (caught.value.status, caught.value.code) == (400, "InvalidParameter")


WRONG = [
    {"namespace": "oci_mine"},
    {"namespace": "my space"},
    {"name": "1st"},
    {"dimensions": {}},
    {"dimensions": {"a b": "c"}},
    {"dimensions": {"a": ""}},
    {"dimensions": {f"d{number}": "x" for number in range(21)}},
    {"datapoints": []},
    {"datapoints": [models.Datapoint(timestamp=NOW - dt.timedelta(hours=3), value=1)]},
    {"datapoints": [models.Datapoint(timestamp=NOW + dt.timedelta(hours=3), value=1)]},
    {"compartment_id": "ocid1.compartment.oc1..other"},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_metric_is_named_and_the_others_are_kept(cloud, post, summarize, wrong):
    answer = post(metric(cloud, **wrong), metric(cloud, name="right"))
    assert answer.failed_metrics_count == 1
    assert answer.failed_metrics[0].message
    assert values(summarize("right[1m].sum()")) == [[1.0]]


def test_an_atomic_batch_is_kept_whole_or_not_at_all(cloud, post, summarize):
    with pytest.raises(ServiceError) as caught:
        post(metric(cloud, name="right"), metric(cloud, name="1st"), batch_atomicity="ATOMIC")
    assert caught.value.status == 400
    assert summarize("right[1m].sum()") == []


def test_fifty_streams_a_call(cloud, post):
    assert post(*(metric(cloud) for _ in range(50))).failed_metrics_count == 0
    with pytest.raises(ServiceError) as caught:
        post(*(metric(cloud) for _ in range(51)))
    assert caught.value.status == 400


def test_metrics_are_listed_and_grouped(cloud, client, post):
    post(
        metric(cloud), metric(cloud, dimensions={"node": "1"}), metric(cloud, name="loss", namespace="other")
    )

    def listed(compartment_id=cloud.access.compartment_id, limit=100, subtree=False, **details):
        return oci.pagination.list_call_get_all_results(
            client.list_metrics,
            compartment_id,
            models.ListMetricsDetails(**details),
            limit=limit,
            compartment_id_in_subtree=subtree,
        ).data

    assert [each.name for each in listed(limit=1)] == ["loss", "gpu.power", "gpu.power"]
    assert [each.dimensions for each in listed(dimension_filters={"node": "1"})] == [{"node": "1"}]
    assert [each.namespace for each in listed(group_by=["namespace"])] == ["other", "training"]
    assert len(listed(namespace="training", name="gpu.power")) == 2
    tenancy_id = cloud.access.tenancy_id
    assert listed(tenancy_id) == []
    assert len(listed(tenancy_id, subtree=True)) == 3


def test_metrics_survive_a_restart(folder):
    with Emulator(state=folder) as emulator:
        cloud = Cloud.of(emulator.access)
        details = models.PostMetricDataDetails(metric_data=[metric(cloud, at(0, 1), at(0, 2))])
        cloud.client(oci.monitoring.MonitoringClient).post_metric_data(details)
    with Emulator(state=folder) as emulator:
        cloud = Cloud.of(emulator.access)
        client = cloud.client(oci.monitoring.MonitoringClient)
        details = models.SummarizeMetricsDataDetails(query="gpu.power[1m].sum()", namespace="training")
        asked = (cloud.access.compartment_id, details)
        assert values(client.summarize_metrics_data(*asked).data) == [[3.0]]
        cloud.control("POST", "/reset")
        assert client.summarize_metrics_data(*asked).data == []
