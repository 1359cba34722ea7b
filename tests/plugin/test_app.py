"""The plugin in Airflow: who loads what, and that every route asks who is there."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from dataclasses import replace
from datetime import datetime
from importlib.metadata import entry_points

import pytest

from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.plugin import TrainingPlugin
from airflow_provider_ocidist.plugin.records import Position
from tests.plugin.gangs import TASK, record

IMPORTING = """
import sys
import airflow.plugins_manager
before = set(sys.modules)
from airflow_provider_ocidist.plugin import TrainingPlugin
TrainingPlugin().external_views
print(*(set(sys.modules) - before))
"""


def test_airflow_finds_the_plugin_by_its_entry_point():
    (found,) = [each for each in entry_points(group="airflow.plugins") if each.name == "ocidist"]
    assert found.load() is TrainingPlugin


def test_what_every_component_loads_is_light():
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    ours = {name for name in modules if name.startswith("airflow_provider_ocidist")}
    assert ours <= {"airflow_provider_ocidist", "airflow_provider_ocidist.plugin"}
    assert not {name.partition(".")[0] for name in modules} & {"fastapi", "starlette", "oci", "sqlalchemy"}


def test_views_are_found_wherever_airflow_lives():
    hrefs = [view["href"] for view in TrainingPlugin.external_views]
    assert all(not href.startswith(("/", "http")) for href in hrefs)
    assert [view["destination"] for view in TrainingPlugin.external_views] == ["task_instance", "nav"]


@pytest.fixture(scope="module")
def app():
    with warnings.catch_warnings():
        # Airflow's own imports; none of ours.
        warnings.simplefilter("ignore")
        (served,) = TrainingPlugin().fastapi_apps
    assert served["url_prefix"] == "/ocidist"
    return served["app"]


def test_every_route_asks_who_is_there(app):
    from airflow.api_fastapi.core_api.security import get_user

    assert len(app.routes) == 6
    for route in app.routes:
        assert get_user in asked_by(route.dependant), route.path


def test_what_belongs_to_a_dag_takes_the_right_to_see_it(app):
    for route in app.routes:
        checks = [
            call
            for call in asked_by(route.dependant)
            if "requires_access_dag" in getattr(call, "__qualname__", "")
        ]
        assert len(checks) == (3 if "{dag_id}" in route.path else 0), route.path


@pytest.mark.parametrize(
    "rights", [(), ("TASK_INSTANCE",), ("XCOM",), ("TASK_INSTANCE", "XCOM")], ids="+".join
)
def test_the_list_shows_the_runs_of_dags_whose_task_instances_and_xcoms_the_user_may_read(
    app, monkeypatch, rights
):
    from airflow.api_fastapi.core_api import security
    from airflow.models.dag import DagModel
    from fastapi.testclient import TestClient

    from airflow_provider_ocidist.plugin import app as module

    class Manager:
        def get_authorized_dag_ids(self, **_):
            return {"open", "asked"}

        def is_authorized_dag(self, *, access_entity, details, **_):
            return details.id == "open" or access_entity.name in rights

    handed_on = {"checkpoint_uri": "oci://b@n/c", "checkpoint": {"step": 9, "loss": 0.5}}
    found = [
        record(id=replace(TASK, dag_id=name), state="success", result=handed_on) for name in ("open", "asked")
    ]
    for place in (module, security):
        monkeypatch.setattr(place, "get_auth_manager", Manager)
    monkeypatch.setattr(DagModel, "get_team_name", staticmethod(lambda *_, **__: None), raising=False)
    monkeypatch.setattr(module.records, "recent_tasks", lambda *_: (found, None))
    monkeypatch.setitem(app.dependency_overrides, security.get_user, lambda: None)
    rows = TestClient(app).get("/api/runs").json()["runs"]
    fields = [(row["task"]["dag_id"], row["step"], row["loss"], row["checkpoint_uri"]) for row in rows]
    expected = ["open", "asked"] if len(rights) == 2 else ["open"]
    assert fields == [(name, 9, 0.5, "oci://b@n/c") for name in expected]


def test_the_next_page_begins_where_the_list_says_and_nowhere_else(app, monkeypatch):
    from airflow.api_fastapi.core_api import security
    from fastapi.testclient import TestClient

    from airflow_provider_ocidist.plugin import app as module

    class Manager:
        def get_authorized_dag_ids(self, **_):
            return {"dag"}

    there = Position(datetime(2026, 11, 28, 20, 0, 0, 7, tzinfo=UTC), 12, -1, "a~task")
    asked = []
    monkeypatch.setattr(module, "get_auth_manager", Manager)
    monkeypatch.setattr(module.records, "recent_tasks", lambda _, before: asked.append(before) or ([], there))
    monkeypatch.setitem(app.dependency_overrides, security.get_user, lambda: None)
    client = TestClient(app)
    before = client.get("/api/runs").json()["before"]
    assert client.get("/api/runs", params={"before": before}).status_code == 200
    assert client.get("/api/runs", params={"before": "yesterday"}).status_code == 422
    assert asked == [None, there]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, "half \ud800 of a pair"], ids=repr)
def test_a_value_that_json_does_not_have_in_one_runs_xcoms_hides_no_page(app, monkeypatch, odd):
    from airflow.api_fastapi.core_api import security
    from fastapi.testclient import TestClient

    from airflow_provider_ocidist.plugin import app as module

    class Manager:
        def get_authorized_dag_ids(self, **_):
            return {"dag"}

        def is_authorized_dag(self, **_):
            return True

    result = {"checkpoint_uri": "oci://b@n/c", "checkpoint": {"step": 9, "loss": odd}}
    odd_one = record(state="success", result=result)
    other = record(id=replace(TASK, run_id="other"), state="success", result={"checkpoint": {"step": 7}})
    for place in (module, security):
        monkeypatch.setattr(place, "get_auth_manager", Manager)
    monkeypatch.setattr(module, "_sees_rows", lambda *_: True)
    monkeypatch.setattr(module.records, "recent_tasks", lambda *_: ([odd_one, other], None))
    monkeypatch.setitem(app.dependency_overrides, security.get_user, lambda: None)
    rows = TestClient(app).get("/api/runs").json()["runs"]
    assert [row["step"] for row in rows] == [9, 7]
    assert rows[0]["loss"] in (None, "half \ufffd of a pair")


def asked_by(dependant):
    return [dependant.call, *(call for each in dependant.dependencies for call in asked_by(each))]
