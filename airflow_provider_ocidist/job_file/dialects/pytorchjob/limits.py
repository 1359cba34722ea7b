"""Limits of a run: the run policy, grace periods, the elastic policy."""

from __future__ import annotations

from airflow_provider_ocidist.job_file.dialects.base import Draft, Section
from airflow_provider_ocidist.job_file.dialects.pytorchjob.roles import Role

RUN_POLICY = {
    "activeDeadlineSeconds",
    "backoffLimit",
    "cleanPodPolicy",
    "managedBy",
    "schedulingPolicy",
    "suspend",
    "ttlSecondsAfterFinished",
}
SCHEDULING = {"minAvailable", "minResources", "priorityClass", "queue", "scheduleTimeoutSeconds"}
NO_SCHEDULING = {
    **dict.fromkeys(
        ("queue", "priorityClass"), "is not supported here: Airflow's pools and priorities do that"
    ),
    "minResources": "cannot be asked for here: backend.shape says what a node has",
}
"""Keys of the scheduling that only a cluster keeps."""
ELASTIC = {"maxReplicas", "maxRestarts", "minReplicas", "nProcPerNode", "rdzvBackend"}
NO_ELASTIC = dict.fromkeys(
    ("metrics", "rdzvConf", "rdzvHost", "rdzvId", "rdzvPort", "standalone"),
    "cannot be set here: all nodes start together, and find one another by themselves",
)


AT_HOME = {
    "backoffLimit": "backend.backoff_limit",
    "cleanPodPolicy": "backend.clean_pod_policy",
    "schedulingPolicy": "backend.scheduling_policy",
    "suspend": "backend.suspend",
    "ttlSecondsAfterFinished": "backend.ttl",
}


def put(draft: Draft, spec: Section, roles: list[Role], *, at_home: bool) -> None:
    """Put the time limits of a run's start, duration and stop."""
    policy = draft.section(spec, "runPolicy", RUN_POLICY)
    draft.only(policy, "cleanPodPolicy", "None", "Running", "All")
    draft.only(policy, "managedBy", "kubeflow.org/training-operator")
    for key in ("backoffLimit", "ttlSecondsAfterFinished"):
        draft.whole_number(policy, key, 0, default=0)
    if at_home:
        has_own_start = "container" in draft.mapping
        draft.copy(policy, {key: to for key, to in AT_HOME.items() if has_own_start or key != "backoffLimit"})
        _restarts(draft, roles)
    elif policy.value.get("suspend"):
        draft.complain(policy.at("suspend"), "cannot be done here: a run starts when its task does")
    if "activeDeadlineSeconds" in policy.value:
        seconds = draft.whole_number(policy, "activeDeadlineSeconds", 1, default=1)
        draft.put("limits.max_runtime", policy.at("activeDeadlineSeconds"), seconds)
    _gang(draft, policy, sum(role.replicas for role in roles), at_home=at_home)
    for role in roles:
        if "terminationGracePeriodSeconds" in role.pod.value:
            seconds = draft.whole_number(role.pod, "terminationGracePeriodSeconds", 0, default=30)
            # Ours is above 0.
            draft.put("limits.stop_grace", role.pod.at("terminationGracePeriodSeconds"), seconds or 0.1)


def _restarts(draft: Draft, roles: list[Role]) -> None:
    """Put what the operator does with a container that ends; a gang of ours is never restarted by it."""
    if "container" not in draft.mapping:
        return
    for role in roles[1:]:
        if role.section.value.get("restartPolicy") != roles[0].section.value.get("restartPolicy"):
            draft.complain(
                role.section.at("restartPolicy"),
                f"differs from that of {roles[0].section.path}: make them equal",
            )
    # The operator's own default.
    policy = roles[0].section.value.get("restartPolicy", "OnFailure")
    draft.put("backend.restart_policy", roles[0].section.at("restartPolicy"), policy)


def _gang(draft: Draft, policy: Section, nodes: int, *, at_home: bool) -> None:
    scheduling = draft.section(policy, "schedulingPolicy", SCHEDULING)
    least = draft.whole_number(scheduling, "minAvailable", 1, default=nodes)
    if least != nodes:
        draft.complain(scheduling.at("minAvailable"), f"must be {nodes}: a gang starts whole or not at all")
    for key, reason in NO_SCHEDULING.items() if not at_home else ():
        if key in scheduling.value:
            draft.complain(scheduling.at(key), reason)
    if "scheduleTimeoutSeconds" in scheduling.value:
        seconds = draft.whole_number(scheduling, "scheduleTimeoutSeconds", 1, default=1800)
        draft.put("limits.start_timeout", scheduling.at("scheduleTimeoutSeconds"), seconds)


def elastic(draft: Draft, spec: Section, workers: int) -> Section:
    """Return the elastic policy of a gang that may change its size; ours has a fixed size."""
    policy = draft.section(spec, "elasticPolicy", ELASTIC, refused=NO_ELASTIC)
    draft.only(policy, "rdzvBackend", "c10d", "static")
    for key, wrong in (("minReplicas", workers.__lt__), ("maxReplicas", workers.__gt__)):
        count = draft.whole_number(policy, key, 1, default=workers)
        if wrong(count):
            draft.complain(policy.at(key), f"{count} excludes the {workers} replicas of the gang")
    if "nProcPerNode" in policy.value:
        count = draft.whole_number(policy, "nProcPerNode", 1, default=1)
        draft.put("launcher.processes_per_node", policy.at("nProcPerNode"), count)
    return policy
