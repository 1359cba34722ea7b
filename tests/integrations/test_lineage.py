"""How datasets and assets in Object Storage are named; the events themselves need OpenLineage's provider."""

from __future__ import annotations

import random
from urllib.parse import urlsplit

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.failure import Failure
from airflow_provider_ocidist.integrations.lineage import (
    dataset_name,
    lineage_of_copy,
    lineage_of_training,
    normalized_uri,
)
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.run import Plan, RunKey, RunRef

COMMIT = "0123456789abcdef0123456789abcdef01234567"
JOB = {
    "name": "gpt",
    "nodes": 2,
    "program": {"source": f"https://git.example/team/gpt.git#{COMMIT}", "script": "train.py"},
    "inputs": [{"source": "oci://data@space/corpus/", "target": "data"}],
    "outputs": [{"path": "out", "uri": "oci://models@space/gpt/"}],
    "backend": {"kind": "oci_data_science", "shape": "VM.GPU.A10.1"},
}
REF = RunRef(
    backend="oci_data_science",
    key=RunKey(dag_id="d", run_id="r", task_id="t"),
    nodes=2,
    job_id="job",
    run_ids=("run-0", "run-1"),
    run_dir="oci://b@n/w",
    submitted_at=0.0,
)
PLAN = Plan(
    key=REF.key,
    backend="oci_data_science",
    nodes=2,
    topology="job_runs",
    reason="there is a subnet",
    requests=(),
    run_dir="oci://b@n/w",
    checkpoints_uri="oci://b@n/w/checkpoints/gpt",
)


@pytest.mark.parametrize(
    "uri, name",
    [
        ("oci://bucket@space/a/b.txt", ("oci://bucket@space", "a/b.txt")),
        ("oci://bucket@space/folder/", ("oci://bucket@space", "folder")),
        ("oci://bucket@space", ("oci://bucket@space", "/")),
        ("s3://bucket/key", ("s3://bucket", "key")),
        ("/mnt/data/x", ("file", "/mnt/data/x")),
        ("/", ("file", "/")),
        ("file:///mnt/data/x", ("file", "/mnt/data/x")),
        ("https://me:secret@host/x?sig=1", ("https://host", "x")),
        ("https://host/x#part", ("https://host", "x")),
    ],
)
def test_a_dataset_has_the_name_that_openlineage_gives_those_in_object_stores(uri, name):
    assert dataset_name(uri) == name
    assert dataset_name("data/x") == ("file", "data/x")


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("folder", ["oci://bucket@space", "s3://bucket", "file://", "/mnt"])
def test_a_dataset_has_all_of_an_objects_name_whatever_characters_are_in_it(folder, number):
    dice = random.Random(f"{folder}.{number}")
    name = "/".join("".join(dice.choices("ab.#?%&=:@;+", k=5)) for _ in range(3))
    namespace, place = (
        ("file", "/mnt/") if folder == "/mnt" else ("file", "/") if folder == "file://" else (folder, "")
    )
    assert dataset_name(f"{folder}/{name}") == (namespace, place + name)


def test_one_asset_has_one_spelling():
    assert normalized_uri(urlsplit("oci://b@n//models///gpt/?x=1")).geturl() == "oci://b@n/models/gpt"
    with pytest.raises(ValueError, match="oci://bucket@namespace/path"):
        normalized_uri(urlsplit("oci://@n/models"))


def test_airflow_normalizes_the_uri_of_an_asset():
    from airflow.sdk import Asset

    assert Asset("oci://b@n//models/gpt/").uri == "oci://b@n/models/gpt"


class TestEvents:
    """What the provider makes its events of."""

    @pytest.fixture(autouse=True)
    def _provider(self):
        pytest.importorskip("airflow.providers.openlineage", reason="the provider is optional")

    @staticmethod
    def names(datasets) -> list[str]:
        return [f"{dataset.namespace} {dataset.name}" for dataset in datasets]

    def test_a_training_reports_what_it_will_write_before_it_has(self):
        told = lineage_of_training(parsing.build(JOB), PLAN)
        assert self.names(told.inputs) == ["oci://data@space corpus"]
        assert self.names(told.outputs) == ["oci://b@n w/checkpoints/gpt", "oci://models@space gpt"]
        assert told.run_facets == {}
        code = told.job_facets["sourceCodeLocation"]
        assert (code.type, code.repoUrl, code.version) == ("git", "https://git.example/team/gpt.git", COMMIT)
        about = told.job_facets["ocidist_training"]
        assert (about.nodes, about.topology) == (2, "job_runs")

    def test_a_success_reports_what_was_written(self):
        result = {
            "checkpoint": {"uri": "oci://b@n/c/step-8", "step": 8},
            "outputs": ["oci://models@space/gpt/out/"],
            "progress": {"step": 8, "steps": 8, "loss": 0.5, "losses": [[1, 2.0]]},
        }
        told = lineage_of_training(parsing.build(JOB), PLAN, REF, result, None, "https://console/run")
        assert self.names(told.outputs) == ["oci://b@n c/step-8", "oci://models@space gpt/out"]
        assert told.outputs[0].facets["version"].datasetVersion == "step-8"
        assert told.run_facets["ocidist_training"].progress == {"step": 8, "steps": 8, "loss": 0.5}
        query = told.run_facets["externalQuery"]
        assert (query.externalQueryId, query.source) == ("run-0", "https://console/run")

    def test_a_failure_reports_its_cause_and_what_is_left(self):
        failure = Failure(
            cause=Cause.USER, message="boom", remedy="x", rank=1, checkpoint_uri="oci://b@n/c/step-4"
        )
        told = lineage_of_training(parsing.build(JOB), PLAN, REF, None, failure)
        assert self.names(told.outputs) == ["oci://b@n c/step-4"]
        assert told.run_facets["ocidist_training"].failure == {"cause": "USER", "message": "boom", "rank": 1}

    def test_a_failures_message_has_no_secret(self):
        from airflow.sdk.log import mask_secret

        mask_secret("known-to-airflow-alone")
        message = "boom: known-to-airflow-alone, --wandb-api-key=abcdef0123456789"
        failure = Failure(cause=Cause.USER, message=message, remedy="x")
        published = lineage_of_training(parsing.build(JOB), PLAN, REF, None, failure)
        found = published.run_facets["ocidist_training"].failure["message"]
        assert found.startswith("boom: ")
        assert not any(secret in found for secret in ("known-to-airflow-alone", "abcdef0123456789"))

    def test_an_asset_is_reported_as_the_dataset_that_a_training_writes(self):
        from airflow.providers.openlineage.utils.utils import translate_airflow_asset
        from airflow.sdk import Asset

        dataset = translate_airflow_asset(Asset("oci://models@space/gpt/out/"), None)
        assert (dataset.namespace, dataset.name) == ("oci://models@space", "gpt/out")

    def test_a_copy_names_sources_and_targets_once_each(self):
        told = lineage_of_copy([("oci://a@n/x", "oci://b@n/y"), ("oci://a@n/x", "/mnt/y")])
        assert self.names(told.inputs) == ["oci://a@n x"]
        assert self.names(told.outputs) == ["oci://b@n y", "file /mnt/y"]
