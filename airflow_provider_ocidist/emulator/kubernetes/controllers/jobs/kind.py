"""The kind Job: what the API server fills in and refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_ocidist.emulator.kubernetes.controllers.jobs.pods import UIDS, own_labels
from airflow_provider_ocidist.emulator.kubernetes.kinds import MAX_REPLICAS, TOO_MANY, Kind, Obj
from airflow_provider_ocidist.emulator.kubernetes.pod_specs import pod_defaults, pod_problems
from airflow_provider_ocidist.emulator.kubernetes.statuses import Problem

FIXED = ("completions", "selector", "template", "completionMode", "podFailurePolicy")
COUNTS = ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")


def _defaults(job: Obj) -> None:
    spec = job.setdefault("spec", {})
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    if spec.get("parallelism") is None:
        spec["parallelism"] = 1
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    replaced = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    if spec.get("podReplacementPolicy") is None:
        spec["podReplacementPolicy"] = replaced
    pod_defaults(spec.setdefault("template", {}).setdefault("spec", {}))


def _begins(job: Obj) -> None:
    """A Job finds its pods by its own uid; its status is empty."""
    labels = own_labels(job)
    template = job["spec"]["template"]
    template["metadata"] = {**(template.get("metadata") or {})}
    template["metadata"]["labels"] = {**(template["metadata"].get("labels") or {}), **labels}
    job["spec"]["selector"] = {"matchLabels": {UIDS[0]: labels[UIDS[0]]}}
    job["metadata"]["labels"] = {**(job["metadata"].get("labels") or {})}
    job["status"] = {}


def _problems(job: Obj, old: Obj | None) -> Sequence[Problem]:
    return [*_of_spec(job["spec"]), *(_of_changes(job["spec"], old["spec"]) if old else ())]


def _of_spec(spec: Obj) -> Iterator[Problem]:
    for name in COUNTS:
        if (spec.get(name) or 0) < 0:
            yield Problem(f"spec.{name}", f"Invalid value: {spec[name]}: must be greater than or equal to 0")
    for name in ("parallelism", "completions"):
        if (spec.get(name) or 0) > MAX_REPLICAS:
            yield Problem(f"spec.{name}", TOO_MANY)
    if spec["completionMode"] == "Indexed" and spec.get("completions") is None:
        yield Problem("spec.completions", "Required value: when completion mode is Indexed")
    policies = ("OnFailure", "Never")
    yield from pod_problems(spec["template"]["spec"], "spec.template.spec", policies)
    yield from _of_replacement(spec)


def _of_replacement(spec: Obj) -> Iterator[Problem]:
    """Source: validatePodFailurePolicy and validatePodReplacementPolicy in pkg/apis/batch/validation, 1.34."""
    given, restarts = spec["podReplacementPolicy"], spec["template"]["spec"].get("restartPolicy")
    if given not in ("Failed", "TerminatingOrFailed"):
        text = f'Unsupported value: "{given}": supported values: "Failed", "TerminatingOrFailed"'
        yield Problem("spec.podReplacementPolicy", text)
    if not spec.get("podFailurePolicy"):
        return
    if given == "TerminatingOrFailed":
        text = f'Unsupported value: "{given}": supported values: "Failed"'
        yield Problem("spec.podReplacementPolicy", text)
    if restarts == "OnFailure":
        text = f'Invalid value: "{restarts}": only "Never" is supported when podFailurePolicy is specified'
        yield Problem("spec.template.spec.restartPolicy", text)


def _of_changes(spec: Obj, old: Obj) -> Iterator[Problem]:
    for name in FIXED:
        # Of a suspended job that never began, the template may change: Kueue puts node selectors there.
        if spec.get(name) != old.get(name) and not (name == "template" and old.get("suspend")):
            yield Problem(f"spec.{name}", "Invalid value: field is immutable")


JOB = Kind(
    name="Job",
    plural="jobs",
    group="batch",
    has_status=True,
    schema="V1Job",
    defaults=_defaults,
    prepare=_begins,
    problems=_problems,
    columns=(("Completions", ".status.succeeded"), ("Active", ".status.active")),
)
