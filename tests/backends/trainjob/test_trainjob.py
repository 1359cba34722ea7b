"""The backend `trainjob`: what a job becomes, in the words of each release of Kubeflow Trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from airflow_provider_ocidist.backends.kubernetes import names
from airflow_provider_ocidist.backends.kubernetes.gang_state import GangState
from airflow_provider_ocidist.backends.kubernetes.plans import without_replacements
from airflow_provider_ocidist.backends.trainjob.operator import OPERATOR
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.jobset import jobset
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.release import RELEASES
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.runtime import TORCH_DISTRIBUTED
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.agent_config import INSTANCE_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.run import Plan
from tests.backends.kubernetes.jobs import IMAGE, body, job_of, planned, problems_in
from tests.backends.kubernetes.test_names import any_key, drawn

FIELDS = {
    "2.0": {"runtimeRef", "trainer", "suspend", "labels", "annotations", "podSpecOverrides"},
    "2.1": {"runtimeRef", "trainer", "suspend", "labels", "annotations", "podTemplateOverrides"},
    "2.2": {"runtimeRef", "trainer", "suspend", "activeDeadlineSeconds", "runtimePatches"},
    "2.3": {"runtimeRef", "trainer", "suspend", "activeDeadlineSeconds", "runtimePatches"},
}

a_job, problems_of = partial(job_of, "trainjob"), partial(problems_in, "trainjob")


def pod_of(plan: Plan, release: str) -> Mapping[str, Any]:
    """Return the template of the pods that Trainer of this release makes of a plan's object, sent in its words."""
    sent = OPERATOR.fitted(body(plan), lambda: FIELDS[release])
    assert set(sent["spec"]) <= FIELDS[release]
    created = {**sent, "metadata": {**sent["metadata"], "uid": "1"}}
    made = jobset(created, TORCH_DISTRIBUTED, RELEASES[release])
    (job,) = made["spec"]["replicatedJobs"]
    template: Mapping[str, Any] = job["template"]["spec"]["template"]
    return template


def variables(container: Mapping[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


OPTIONS: dict[str, tuple[Any, Any]] = {
    "gpus": (4, lambda pod: pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 4),
    "cpu": ("8", lambda pod: pod["containers"][0]["resources"]["requests"]["cpu"] == "8"),
    "memory": ("64Gi", lambda pod: pod["containers"][0]["resources"]["limits"]["memory"] == "64Gi"),
    "shm_size": ("16Gi", lambda pod: pod["volumes"][-1]["emptyDir"]["sizeLimit"] == "16Gi"),
    "service_account": ("trainer", lambda pod: pod["serviceAccountName"] == "trainer"),
    "image_pull_secrets": (["ocir"], lambda pod: pod["imagePullSecrets"] == [{"name": "ocir"}]),
    "node_selector": ({"pool": "a10"}, lambda pod: pod["nodeSelector"] == {"pool": "a10"}),
    "tolerations": ([{"operator": "Exists"}], lambda pod: pod["tolerations"] == [{"operator": "Exists"}]),
    "affinity": ({"nodeAffinity": {}}, lambda pod: pod["affinity"] == {"nodeAffinity": {}}),
    "secrets": (
        {"HF_TOKEN": {"name": "hugging-face", "key": "token"}},
        lambda pod: variables(pod["containers"][0])["HF_TOKEN"]["secretKeyRef"]["key"] == "token",
    ),
}


@pytest.mark.parametrize("release", sorted(RELEASES))
def test_each_option_arrives_in_the_pods_of_every_release(release: str) -> None:
    draw = drawn()
    for _ in range(20):
        chosen = draw.sample(sorted(OPTIONS), draw.randint(0, len(OPTIONS)))
        nodes = draw.randint(1, 9)
        plan = planned(a_job(nodes, backend={name: OPTIONS[name][0] for name in chosen}))
        pod = pod_of(plan, release)["spec"]
        assert body(plan)["spec"]["trainer"]["numNodes"] == nodes
        (own,) = pod["containers"]
        assert (own["name"], own["image"]) == ("node", IMAGE)
        assert variables(own)["PET_NNODES"] == str(nodes)
        for name in chosen:
            assert OPTIONS[name][1](pod), (name, pod)


@pytest.mark.parametrize("release", sorted(RELEASES))
def test_mounts_and_sidecars_of_the_runtime_arrive_too(release: str) -> None:
    template = {"spec": {"containers": [{"name": "sidecar", "env": [{"name": "A", "value": "1"}]}]}}
    mounts = [{"source": "pvc://data/train", "path": "/data"}]
    pod = pod_of(planned(a_job(mounts=mounts, backend={"pod_template": template})), release)["spec"]
    own, sidecar = pod["containers"]
    assert [each["mountPath"] for each in own["volumeMounts"]] == ["/data", "/ocidist"]
    assert {"name": "mount-0", "persistentVolumeClaim": {"claimName": "data"}} in pod["volumes"]
    assert sidecar == {"name": "sidecar", "env": [{"name": "A", "value": "1"}]}


@pytest.mark.parametrize("release", ["2.1", "2.2", "2.3"])
def test_labels_and_annotations_are_on_job_and_pods(release: str) -> None:
    plan = planned(a_job(backend={"labels": {"team": "nlp"}, "annotations": {"note": "any text"}}))
    for metadata in (body(plan)["metadata"], pod_of(plan, release)["metadata"]):
        assert (metadata["labels"]["team"], metadata["annotations"]["note"]) == ("nlp", "any text")


def test_the_older_releases_refuse_what_they_cannot_change() -> None:
    for context in ({"security_context": {"runAsUser": 1000}}, {"pod_template": {"spec": {"containers": [
        {"name": "node", "securityContext": {"privileged": True}}]}}}):  # fmt: skip
        plan = planned(a_job(backend=context))
        for release in ("2.2", "2.3"):
            assert "runAsUser" in json.dumps(pod_of(plan, release)) or "privileged" in json.dumps(
                pod_of(plan, release)
            )
        for release in ("2.0", "2.1"):
            with pytest.raises(BackendError, match=r"older than 2\.2") as caught:
                pod_of(plan, release)
            assert caught.value.cause is Cause.CONFIG


def test_a_release_that_nobody_knows_is_refused_and_one_that_says_nothing_gets_the_newest_words() -> None:
    made = body(planned(a_job()))
    assert OPERATOR.fitted(made, lambda: ()) == made
    with pytest.raises(BackendError, match="choose backend pytorchjob"):
        OPERATOR.fitted(made, lambda: {"runtimeRef", "trainer", "somethingNew"})


def test_the_same_key_makes_the_same_object_and_its_pods_names_fit() -> None:
    draw = drawn()
    for _ in range(30):
        key = any_key(draw)
        made = body(planned(a_job(), key))
        assert made == body(planned(a_job(), key))
        assert names.is_of(key, made)
        # What JobSet and Job append at most, for a thousand nodes.
        assert len(f"{made['metadata']['name']}-node-0-999-abcde") <= 63


def test_variables_of_the_roles_travel_to_the_agent_and_secrets_to_the_secret() -> None:
    plan = planned(
        a_job(main_env={"A": "main"}, worker_env={"A": "worker"}, env={"MY_TOKEN": "t0ken-of-mine-77"})
    )
    own = variables(body(plan)["spec"]["trainer"])
    config = json.loads(own["OCIDIST_CONFIG"])
    assert (config["main_env"], config["worker_env"]) == ({"A": "main"}, {"A": "worker"})
    assert own["MY_TOKEN"]["secretKeyRef"]["name"] == body(plan)["metadata"]["name"]
    assert "t0ken-of-mine-77" not in json.dumps(body(plan))
    assert body(plan, "CreateSecret")["stringData"] == {"MY_TOKEN": "t0ken-of-mine-77"}


@pytest.mark.parametrize("secret", [{}, {"main_env": {"MY_TOKEN": "t0ken-$(of)-mine-77"}}])
def test_a_plan_without_replacements_differs_in_these_alone_also_where_a_secret_holds_it(
    secret: dict[str, Any],
) -> None:
    plan = planned(a_job(2, restarts={"node": 1}, limits={"lease": 600}, **secret))
    whole = without_replacements(plan)
    assert (plan.replaces, whole.replaces) == (True, False)
    assert without_replacements(whole) == whole

    def config_of(of: Plan) -> AgentConfig:
        if secret:
            return AgentConfig.from_env(body(of, "CreateSecret")["stringData"])
        return AgentConfig.from_env(variables(body(of)["spec"]["trainer"]))

    assert config_of(plan).replaces
    assert config_of(whole) == replace(config_of(plan), replaces=False)
    own, others = (variables(body(each)["spec"]["trainer"]) for each in (plan, whole))
    assert own.keys() - others.keys() == {INSTANCE_VARIABLE}
    assert "$" not in json.dumps(others["OCIDIST_CONFIG"])
    said, said_then = (body(each)["metadata"]["annotations"] for each in (plan, whole))
    assert said.keys() - said_then.keys() == {names.REPLACES}
    assert [each.verb for each in whole.requests] == [each.verb for each in plan.requests]


def test_a_program_with_its_own_start_gets_its_processes_from_trainer() -> None:
    job = a_job(container={"command": ["train"]}, program={}, launcher={"processes_per_node": 4})
    assert body(planned(job))["spec"]["trainer"]["numProcPerNode"] == 4
    assert "numProcPerNode" not in body(planned(a_job(backend={"gpus": 8})))["spec"]["trainer"]


@pytest.mark.parametrize(
    "changes, path, words",
    [
        ({"backend": {"host_network": True}}, "backend.host_network", "put it into the runtime"),
        ({"backend": {"env_from": [{"secretRef": {"name": "s"}}]}}, "backend.env_from", "the runtime"),
        ({"backend": {"preset": "BM.GPU.H100.8"}}, "backend.preset", "choose backend pytorchjob"),
        (
            {"backend": {"pod_template": {"spec": {"hostNetwork": True}}}},
            "backend.pod_template.spec.hostNetwork",
            "the runtime",
        ),
        (
            {"backend": {"pod_template": {"spec": {"containers": [{"name": "side", "image": "x"}]}}}},
            "backend.pod_template.spec.containers.0.image",
            "the runtime",
        ),
        ({"backend": {"ttl": 5}}, "backend.ttl", "unknown key"),
        ({"backend": {"runtime_kind": "Runtime"}}, "backend.runtime_kind", "TrainingRuntime"),
        ({"env": {"PET_NNODES": "3"}}, "env.PET_NNODES", "is set by Kubeflow Trainer"),
        ({"container": {}, "program": {}, "main_env": {"A": "1"}}, "main_env", "are alike"),
    ],
)
def test_what_a_trainjob_cannot_say_is_reported_with_the_remedy(changes: Any, path: str, words: str) -> None:
    assert words in problems_of(**changes)[path]


CONDITIONS = ("Suspended", "Complete", "Failed")


def test_the_state_is_that_of_the_conditions_and_else_of_the_counts() -> None:
    draw = drawn()
    for _ in range(200):
        true = {name for name in CONDITIONS if draw.random() < 0.3}
        counts = {name: draw.choice([0, 0, 1]) for name in ("active", "ready", "succeeded", "failed")}
        listed = [
            {"type": name, "status": str(name in true), "reason": "r", "message": name} for name in CONDITIONS
        ]
        draw.shuffle(listed)
        status = {"conditions": listed, "jobsStatus": [{"name": "node", **counts}]}
        suspend = draw.random() < 0.3
        gang = OPERATOR.read({"metadata": {}, "spec": {"suspend": suspend}, "status": status})
        expected = (
            GangState.FAILED
            if "Failed" in true
            else GangState.SUCCEEDED
            if "Complete" in true
            else GangState.SUSPENDED
            # The pods begin to end before the operator says so.
            if suspend or "Suspended" in true
            else GangState.ACTIVE
            if any(counts.values())
            else GangState.NEW
        )
        assert gang.state is expected, status
    assert OPERATOR.read({"metadata": {"deletionTimestamp": "x"}}).state is GangState.ENDING
    deadline = [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]
    assert OPERATOR.read({"status": {"conditions": deadline}}).cause is Cause.DEADLINE
