"""The events of a training task's outlets: each names the checkpoint, however the outlet was written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.api.datamodels._generated import AssetResponse
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import AssetResult, GetAssetByName, GetAssetByUri
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_ocidist.hooks.task_context import publish_to_outlets

pytestmark = pytest.mark.airflow
RESULT = {
    "checkpoint": {"step": 7, "loss": 0.5},
    "checkpoint_uri": "oci://b@n/checkpoints/7",
    "outputs": [],
    "job_id": "job",
}


class _Supervisor:
    """Airflow's supervisor, which knows the asset of another DAG."""

    def send(self, message: Any) -> Any:
        assert isinstance(message, (GetAssetByName, GetAssetByUri))
        asset = Asset(name="gpt", uri="s3://models/gpt")
        return AssetResult.from_asset_response(AssetResponse(name=asset.name, uri=asset.uri, group="asset"))


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", _Supervisor(), raising=False)
    ti = SimpleNamespace(task_id="train", map_index=-1, xcom_pull=lambda **_: {"oci://b@n/data": "v1"})
    return {"ti": ti, "outlet_events": OutletEventAccessors()}


@pytest.mark.parametrize(
    "outlet",
    [Asset(name="gpt", uri="s3://models/gpt"), Asset.ref(name="gpt"), Asset.ref(uri="s3://models/gpt")],
    ids=["asset", "by name", "by URI"],
)
def test_the_event_of_an_asset_or_a_reference_to_one_names_the_checkpoint(outlet: Any, context: Any) -> None:
    publish_to_outlets([outlet], RESULT, "steps", context)
    extra = context["outlet_events"][Asset(name="gpt", uri="s3://models/gpt")].extra
    assert (extra["checkpoint_uri"], extra["step"], extra["data"]) == (
        RESULT["checkpoint_uri"],
        7,
        {"oci://b@n/data": "v1"},
    )


def test_what_is_no_asset_has_no_event(context: Any) -> None:
    publish_to_outlets([SimpleNamespace(url="/data/table")], RESULT, "steps", context)
    assert len(context["outlet_events"]) == 0


def test_an_alias_has_an_event_of_the_checkpoint_itself(context: Any) -> None:
    publish_to_outlets([AssetAlias("models")], RESULT, "steps", context)
    (event,) = context["outlet_events"][AssetAlias("models")].asset_alias_events
    assert event.extra["step"] == 7
