"""One look of the training operator at a PyTorchJob: what it makes, what it deletes, what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime

from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob import conditions
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.admission import refusals
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.backoff import (
    is_past_deadline,
    past_backoff,
)
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.defaults import (
    CONTAINER,
    replica_specs,
    with_defaults,
)
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.generation import Generation
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.replicas import (
    by_index,
    labels,
    of_kind,
    pod,
    service,
)
from airflow_provider_ocidist.emulator.kubernetes.controllers.steps import (
    Note,
    Step,
    age_s,
    is_terminating,
    phase,
)
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import stamp

OWN_MANAGER = "kubeflow.org/training-operator"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How the operator was installed."""

    generation: Generation = field(default_factory=Generation)
    init_image: str = "alpine:3.10"
    init_tries: int = 100
    """Number of times that a worker looks for its master, every two seconds, before it fails."""
    status_delay_s: float = 0.0
    """Seconds after the creation for which the status stays empty, as with a busy operator."""


@dataclass(slots=True)
class _Draft:
    """The step as it grows; all changes of status and events go through here."""

    job: Obj
    now: datetime
    status: Obj
    pods: Sequence[Obj]
    services: Sequence[Obj]
    delete: list[Obj] = field(default_factory=list)
    create: list[Obj] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    again_s: float | None = None
    remove: bool = False

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def policy(self) -> Obj:
        policy: Obj = self.job["spec"]["runPolicy"]
        return policy

    def say(self, kind: str, message: str, *, truth: bool = True, reason: str = "") -> None:
        """Set a condition, and write an event with it if it is new."""
        reason = reason or f"PyTorchJob{kind}"
        if conditions.set_condition(self.status, kind, message, self.now, truth=truth, reason=reason):
            self.notes.append(Note(reason, message, warning=kind == "Restarting"))

    def complete(self) -> None:
        self.status.setdefault("completionTime", stamp(self.now))

    def step(self, settings: Settings) -> Step:
        wait_s = _left_of_delay_s(self.job, self.now, settings.status_delay_s)
        late = wait_s > 0
        changed = self.status != self.job.get("status", {})
        return Step(
            delete=self.delete,
            create=self.create,
            notes=[] if late else self.notes,
            status=self.status if changed and not late else None,
            again_s=wait_s if late else self.again_s,
            remove=self.remove,
        )


def _left_of_delay_s(job: Obj, now: datetime, delay_s: float) -> float:
    """Return for how long the status stays empty; creation is known to the second, and may have been at its end."""
    return delay_s + 1 - age_s(job["metadata"]["creationTimestamp"], now) if delay_s else 0.0


def look(
    job: Obj, owned: Mapping[str, Sequence[Obj]], now: datetime, settings: Settings | None = None
) -> Step:
    """Return what the operator does next. Source: ReconcileJobs in kubeflow/trainer v1.9.4."""
    settings = settings or Settings()
    if job["spec"].get("runPolicy", {}).get("managedBy") not in (None, OWN_MANAGER):
        return Step()
    status = deepcopy(job.get("status", {}))
    if not settings.generation.webhook and (texts := refusals(job)):
        return _refused_late(status, texts, now)
    draft = _Draft(with_defaults(job), now, status, owned.get("Pod", ()), owned.get("Service", ()))
    draft.say("Created", f"PyTorchJob {draft.name} is created.")
    _reconcile(draft, settings)
    return draft.step(settings)


def _refused_late(status: Obj, texts: Sequence[str], now: datetime) -> Step:
    """Fail a job that a webhook would have refused; no pod is made."""
    reason = "PyTorchJobFailedValidation"
    message = f"PyTorchJob failed validation because {', '.join(texts)}"
    changed = conditions.set_condition(status, "Failed", message, now, reason=reason)
    notes = [Note(reason, message, warning=True)] if changed else []
    return Step(status=status if changed else None, notes=notes)


def _reconcile(draft: _Draft, settings: Settings) -> None:
    if conditions.is_finished(draft.status):
        _clean_up(draft)
        _count_as_succeeded(draft.status)
        _expire(draft)
    elif settings.generation.suspends and draft.policy.get("suspend"):
        _suspend(draft)
    else:
        _resume(draft)
        if not _exceeds_a_limit(draft, settings.generation):
            _bring_about(draft, settings)


def _clean_up(draft: _Draft, *, all_of_them: bool = False) -> None:
    """Delete pods, each with its service: cleanPodPolicy counts once the job has ended, else all go."""
    policy = draft.policy["cleanPodPolicy"]
    ended = conditions.is_finished(draft.status) and not all_of_them
    if ended and policy == "None":
        return
    for each in draft.pods:
        if ended and policy == "Running" and phase(each) not in ("Running", "Pending"):
            continue
        _delete_pod(draft, each)
        name = each["metadata"]["name"]
        draft.delete += [one for one in draft.services if one["metadata"]["name"] == name]


def _delete_pod(draft: _Draft, each: Obj) -> None:
    if not is_terminating(each):
        draft.delete.append(each)


def _count_as_succeeded(status: Obj) -> None:
    """When a job has succeeded, what still runs is counted as if it had succeeded too."""
    if conditions.is_true(status, "Succeeded"):
        for counts in status.get("replicaStatuses", {}).values():
            if active := counts.pop("active", 0):
                counts["succeeded"] = counts.get("succeeded", 0) + active


def _expire(draft: _Draft) -> None:
    """A job that has ended without completionTime is never removed."""
    ttl, ended = draft.policy.get("ttlSecondsAfterFinished"), draft.status.get("completionTime")
    if ttl is None or ended is None:
        return
    left_s = ttl - age_s(ended, draft.now)
    draft.remove = left_s <= 0
    draft.again_s = left_s if left_s > 0 else None


def _suspend(draft: _Draft) -> None:
    _clean_up(draft)
    for counts in draft.status.get("replicaStatuses", {}).values():
        counts.pop("active", None)
    draft.status.setdefault("replicaStatuses", {})
    message = f"PyTorchJob {draft.name} is suspended."
    if conditions.is_true(draft.status, "Running"):
        draft.say("Running", message, truth=False, reason="PyTorchJobSuspended")
    draft.say("Suspended", message)


def _resume(draft: _Draft) -> None:
    if conditions.is_true(draft.status, "Suspended"):
        message = f"PyTorchJob {draft.name} is resumed."
        draft.say("Suspended", message, truth=False, reason="PyTorchJobResumed")
        draft.status["startTime"] = stamp(draft.now)


def _exceeds_a_limit(draft: _Draft, generation: Generation) -> bool:
    """Fail the job if it has; the deadline is only looked at when something else gives a reason to look."""
    backoff = past_backoff(draft.job, draft.pods, draft.status)
    if not backoff and not is_past_deadline(draft.policy, draft.status, draft.now):
        return False
    why = (
        "has reached the specified backoff limit" if backoff else "was active longer than specified deadline"
    )
    draft.complete()
    draft.say("Failed", f"Job {draft.name} has failed because it {why}")
    _clean_up(draft, all_of_them=generation.cleans_all_on_backoff)
    _expire(draft)
    return True


def _bring_about(draft: _Draft, settings: Settings) -> None:
    draft.status["replicaStatuses"] = {}
    for kind, spec in replica_specs(draft.job):
        draft.status["replicaStatuses"][kind] = _reconcile_pods(draft, kind, spec, settings)
        _reconcile_services(draft, kind, spec, settings)
    draft.status.setdefault("startTime", stamp(draft.now))
    for kind, spec in replica_specs(draft.job):
        if _judge(draft, kind, spec, settings.generation):
            return


def _reconcile_pods(draft: _Draft, kind: str, spec: Obj, settings: Settings) -> Obj:
    counts: dict[str, int] = {}
    present = by_index(of_kind(draft.pods, kind))
    for index in range(max([spec["replicas"], *(index + 1 for index in present)])):
        each = present.get(index)
        if each is None:
            if index < spec["replicas"]:
                init = (settings.init_image, settings.init_tries)
                draft.create.append(pod(draft.job, kind, index, settings.generation, *init))
            continue
        if index >= spec["replicas"]:
            _delete_pod(draft, each)
        _restart_or_fail(draft, kind, spec, each)
        if counted := _counted(each):
            counts[counted] = counts.get(counted, 0) + 1
    return counts


def _restart_or_fail(draft: _Draft, kind: str, spec: Obj, each: Obj) -> None:
    code = exit_code(each)
    if code is not None:
        metadata = each["metadata"]
        text = f"Pod: {metadata['namespace']}.{metadata['name']} exited with code {code}"
        draft.notes.append(Note("ExitedWithCode", text))
    if phase(each) != "Failed" or spec["restartPolicy"] == "Never":
        return
    if spec["restartPolicy"] == "ExitCode" and not is_retryable(code):
        # Here, and only here, the job ends without completionTime: its ttl never begins.
        draft.say("Failed", f'job "{draft.name}" is failing because "{kind}" replica(s) failed.')
    else:
        _delete_pod(draft, each)
        draft.say("Restarting", f"job {draft.name} is restarting because {kind} replica(s) failed.")


def _counted(each: Obj) -> str | None:
    """Return what a pod counts as; one that is deleted while it runs counts as failed."""
    if phase(each) == "Running":
        return "failed" if is_terminating(each) else "active"
    return {"Succeeded": "succeeded", "Failed": "failed"}.get(phase(each))


def _reconcile_services(draft: _Draft, kind: str, spec: Obj, settings: Settings) -> None:
    present = by_index(of_kind(draft.services, kind))
    for index in range(spec["replicas"]):
        if index not in present:
            draft.create.append(service(draft.job, kind, index, settings.generation))
    draft.delete += [one for index, one in present.items() if index >= spec["replicas"]]


def _judge(draft: _Draft, kind: str, spec: Obj, generation: Generation) -> bool:
    """Set conditions by the pods of one kind; return whether the others no longer count."""
    counts = draft.status["replicaStatuses"][kind]
    selector = {**labels(draft.job, kind, 0, generation)}
    counts["selector"] = ",".join(
        f"{name}={value}" for name, value in sorted(selector.items()) if "replica-index" not in name
    )
    has_master = "Master" in draft.job["spec"]["pytorchReplicaSpecs"]
    succeeded = counts.get("succeeded", 0)
    if kind == "Master" or not has_master:
        shown = draft.name if has_master else f"{draft.job['metadata']['namespace']}/{draft.name}"
        elastic = not has_master and draft.job["spec"].get("elasticPolicy") is not None
        if succeeded == spec["replicas"] or (elastic and succeeded):
            draft.complete()
            is_or_not = " is" if has_master else ""
            draft.say("Succeeded", f"PyTorchJob {shown}{is_or_not} successfully completed.")
            return True
        if counts.get("active"):
            draft.say("Running", f"PyTorchJob {shown} is running.")
    _judge_failures(draft, kind, spec, counts)
    return False


def _judge_failures(draft: _Draft, kind: str, spec: Obj, counts: Obj) -> None:
    failed = counts.get("failed", 0)
    if not failed or spec["replicas"] <= counts.get("succeeded", 0) + counts.get("active", 0):
        return
    if spec["restartPolicy"] != "Never":
        text = f"PyTorchJob {draft.name} is restarting because {failed} {kind} replica(s) failed."
        draft.say("Restarting", text)
    elif not conditions.is_true(draft.status, "Failed"):
        draft.complete()
        draft.say("Failed", f"PyTorchJob {draft.name} is failed because {failed} {kind} replica(s) failed.")


def exit_code(each: Obj) -> int | None:
    """Return the exit code of the container `pytorch`, if it has ended."""
    for container in each.get("status", {}).get("containerStatuses", ()):
        if container["name"] == CONTAINER and "terminated" in container.get("state", {}):
            return int(container["state"]["terminated"]["exitCode"])
    return None


def is_retryable(code: int | None) -> bool:
    """Return whether `restartPolicy: ExitCode` tries again: 128 and more, and where there is no code."""
    return code is None or code >= 128
