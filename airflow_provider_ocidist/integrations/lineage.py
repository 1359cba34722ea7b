"""Lineage: what a task read and wrote, for OpenLineage; and Airflow's form of an asset's URI.

OpenLineage is optional: only its provider calls these functions, which import its classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Asset
    from openlineage.client.event_v2 import Dataset

    from airflow_provider_ocidist.gangs.failure import Failure
    from airflow_provider_ocidist.model.job import TrainingJob
    from airflow_provider_ocidist.model.run import Plan, RunRef

FACET = "ocidist_training"
"""Name of our facets; OpenLineage requires a prefix for custom ones."""


def normalized_uri(parts: SplitResult) -> SplitResult:
    """Return the canonical URI of an asset in Object Storage. Raises ValueError for one without a bucket."""
    if not parts.netloc.partition("@")[0]:
        raise ValueError("an asset in Object Storage is written oci://bucket@namespace/path")
    return parts._replace(path=re.sub(r"/{2,}", "/", parts.path).rstrip("/"), query="")


def dataset_name(uri: str) -> tuple[str, str]:
    """Return the namespace and name of a dataset: bucket and key, as OpenLineage defines for object stores."""
    from airflow_provider_ocidist.storage.locations import shown

    scheme, separator, rest = shown(uri).partition("://")
    # By hand: in a name that is no web address, `?` and `#` are characters like any other.
    place, slash, name = rest.partition("/")
    if not separator:
        return "file", uri
    if scheme == "file":
        return "file", f"{slash}{name}" or "/"
    return f"{scheme}://{place}", name.strip("/") or "/"


def dataset_of_asset(asset: Asset, lineage_context: Any) -> Dataset:
    """Return the dataset of an asset; Airflow calls this for the scheme `oci`."""
    del lineage_context
    return dataset_of(asset.uri)


def dataset_of(uri: str, version: str | None = None) -> Dataset:
    from openlineage.client.event_v2 import Dataset
    from openlineage.client.facet_v2 import dataset_version_dataset

    namespace, name = dataset_name(uri)
    facets: dict[str, Any] = {}
    if version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=version)
    return Dataset(namespace=namespace, name=name, facets=facets)


def lineage_of_copy(pairs: Iterable[tuple[str, str]]) -> OperatorLineage[Any, Any]:
    """Return the lineage of a copy, given as sources and targets."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    pairs = list(pairs)
    return OperatorLineage(
        inputs=[dataset_of(uri) for uri in _once(source for source, _ in pairs)],
        outputs=[dataset_of(uri) for uri in _once(target for _, target in pairs)],
    )


def lineage_of_training(
    job: TrainingJob,
    plan: Plan,
    ref: RunRef | None = None,
    result: Mapping[str, Any] | None = None,
    failure: Failure | None = None,
    address: str | None = None,
) -> OperatorLineage[Any, Any]:
    """Return the lineage of a training so far; `address` is the page of its main run."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    return OperatorLineage(
        inputs=[dataset_of(uri) for uri in _once(item.source for item in job.inputs)],
        outputs=_outputs(job, plan, result, failure),
        run_facets=_run_facets(ref, result, failure, address),
        job_facets=_job_facets(job, plan),
    )


def _outputs(
    job: TrainingJob, plan: Plan, result: Mapping[str, Any] | None, failure: Failure | None
) -> list[Dataset]:
    """Return the datasets that were written; before the end, those that will be."""
    if failure is not None:
        return [dataset_of(failure.checkpoint_uri)] if failure.checkpoint_uri else []
    if result is None:
        planned = [plan.checkpoints_uri, *(item.uri for item in job.outputs if "${" not in item.uri)]
        return [dataset_of(uri) for uri in _once(uri for uri in planned if uri)]
    checkpoint = result.get("checkpoint") or {}
    found = [dataset_of(checkpoint["uri"], _version_of(checkpoint))] if checkpoint else []
    return [*found, *(dataset_of(uri) for uri in _once(result.get("outputs") or ()))]


def _version_of(checkpoint: Mapping[str, Any]) -> str | None:
    """Return the step of a checkpoint, else the digest of its content."""
    step = checkpoint.get("step")
    return checkpoint.get("digest") if step is None else f"step-{step}"


def _job_facets(job: TrainingJob, plan: Plan) -> dict[str, Any]:
    from openlineage.client.facet_v2 import JobFacet

    about = {
        "name": job.name,
        "nodes": plan.nodes,
        "topology": plan.topology,
        "reason": plan.reason,
        "launcher": job.launcher.kind,
        "image": job.image,
        "shape": getattr(job.backend, "shape", None),
    }
    facets: dict[str, Any] = {FACET: JobFacet().with_additional_properties(**about)}
    if (code := _code_version(job.program.source)) is not None:
        facets["sourceCodeLocation"] = code
    return facets


def _code_version(source: str | None) -> Any:
    """Return the repository of a Git source; only the nodes know a branch's newest commit."""
    from openlineage.client.facet_v2 import source_code_location_job

    from airflow_provider_ocidist.model.git_source import COMMIT, parse

    repository = parse(source) if source else None
    if repository is None:
        return None
    ref = repository.ref
    is_commit = bool(ref and COMMIT.fullmatch(ref))
    return source_code_location_job.SourceCodeLocationJobFacet(
        type="git",
        url=repository.url,
        repoUrl=repository.url,
        version=ref if is_commit else None,
        branch=None if is_commit else ref,
    )


def _run_facets(
    ref: RunRef | None, result: Mapping[str, Any] | None, failure: Failure | None, address: str | None
) -> dict[str, Any]:
    from openlineage.client.facet_v2 import RunFacet, external_query_run

    from airflow_provider_ocidist.hooks.task_context import without_secrets

    if ref is None:
        return {}
    about: dict[str, Any] = {"job_id": ref.job_id, "run_ids": list(ref.run_ids), "run_dir": ref.run_dir}
    if result is not None:
        progress = result.get("progress") or {}
        about["progress"] = {name: progress.get(name) for name in ("step", "steps", "loss")}
    if failure is not None:
        message = without_secrets(failure.message)
        about["failure"] = {"cause": str(failure.cause), "message": message, "rank": failure.rank}
    query = external_query_run.ExternalQueryRunFacet(
        externalQueryId=ref.main_run_id, source=address or ref.backend
    )
    return {FACET: RunFacet().with_additional_properties(**about), "externalQuery": query}


def _once(uris: Iterable[str]) -> Sequence[str]:
    return list(dict.fromkeys(uris))
