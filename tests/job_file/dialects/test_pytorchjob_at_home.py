"""Kubeflow's PyTorchJob on the backend that it is meant for: each field of a manifest arrives, or is refused."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml

from airflow_provider_ocidist.backends.kubernetes.pods import SAVING_TIME
from airflow_provider_ocidist.backends.pytorchjob import PyTorchJob, options
from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.job_file.dialects import pytorchjob as dialect
from airflow_provider_ocidist.job_file.dialects.pytorchjob import limits, roles
from tests.backends.kubernetes.test_names import drawn
from tests.job_file.dialects.test_pytorchjob import CPU, GPU, SPEC, manifest
from tests.training_jobs import a_key

TO_CHOOSE: Mapping[str, Callable[[random.Random], Any]] = {
    "tolerations": lambda draw: [
        {"key": "gpu", "operator": "Exists", "tolerationSeconds": draw.randint(1, 9)}
    ],
    "nodeSelector": lambda draw: {"pool": f"a{draw.randint(1, 9)}"},
    "hostNetwork": lambda _: True,
    "serviceAccountName": lambda _: "trainer",
    "imagePullSecrets": lambda _: [{"name": "ocir"}],
    "initContainers": lambda _: [{"name": "fetch", "image": "busybox", "command": ["true"]}],
    "terminationGracePeriodSeconds": lambda draw: draw.randint(1, 300),
    "securityContext": lambda draw: {"runAsUser": draw.randint(1000, 2000), "fsGroup": 100},
    "affinity": lambda _: {"nodeAffinity": {}},
    "priorityClassName": lambda _: "high",
    "hostAliases": lambda _: [{"ip": "10.0.0.1", "hostnames": ["store"]}],
    "dnsPolicy": lambda _: "Default",
    "schedulerName": lambda _: "volcano",
}
IN_CONTAINER: Mapping[str, Callable[[random.Random], Any]] = {
    "imagePullPolicy": lambda _: "Always",
    "ports": lambda _: [{"containerPort": 23456, "name": "pytorchjob-port"}],
    "envFrom": lambda _: [{"secretRef": {"name": "keys"}}],
    "resources": lambda draw: {"limits": {"nvidia.com/gpu": draw.randint(1, 8)}, "requests": {"cpu": "4"}},
    "securityContext": lambda _: {"capabilities": {"add": ["IPC_LOCK"]}},
    "workingDir": lambda _: "/opt/train",
    "args": lambda draw: ["--epochs", str(draw.randint(1, 9)), "--rank=$(RANK)"],
    "livenessProbe": lambda _: {"tcpSocket": {"port": 23456}},
    "env": lambda _: [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
}


SAID_IN_JOB = {"workingDir", "args"}
"""What the agent does where there is a command."""


def created(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the PyTorchJob that the text of a manifest becomes."""
    job = parsing.parse(yaml.safe_dump(mapping, sort_keys=False))
    fields = {"kube_config": "{}", "work_dir": "oci://bucket@ns/ocidist"}
    plan = PyTorchJob.connect(fields).plan(job, a_key())
    (body,) = [request.body for request in plan.requests if request.verb == "CreatePyTorchJob"]
    return body


def lacking(given: Any, made: Any, path: str = "") -> list[str]:
    """Return what a manifest has and the object that is made of it has not."""
    if isinstance(given, dict):
        if not isinstance(made, dict):
            return [path]
        return [each for key, item in given.items() for each in lacking(item, made.get(key), f"{path}.{key}")]
    if isinstance(given, list) and all(isinstance(item, dict) and "name" in item for item in given):
        named = {item["name"]: item for item in made or ()}
        return [
            each
            for item in given
            for each in lacking(item, named.get(item["name"]), f"{path}.{item['name']}")
        ]
    return [] if given == made else [path]


@pytest.mark.parametrize("path", [CPU, GPU], ids=["cpu", "gpu"])
def test_nothing_of_the_seeds_manifests_is_lost(path: Any) -> None:
    given = yaml.safe_load(path.read_text())
    made = created(given)
    del given["metadata"]["name"]
    assert lacking(given, made) == []
    pods = {name: role["template"]["spec"] for name, role in made["spec"]["pytorchReplicaSpecs"].items()}
    # The Master alone has the claim.
    assert [volume["name"] for volume in pods["Master"]["volumes"]] == ["data"]
    assert not pods["Worker"].get("volumes")
    for pod in pods.values():
        assert "command" not in pod["containers"][0]


def test_whatever_a_manifest_has_arrives_for_each_role_apart() -> None:
    seed = random.randrange(10**9)
    print("seed of the manifests:", seed)
    draw = random.Random(seed)
    for _ in range(60):
        mapping = manifest({"command": None})
        for role in mapping["spec"]["pytorchReplicaSpecs"].values():
            role["restartPolicy"] = "OnFailure"
            pod = role["template"]["spec"]
            for name in draw.sample(sorted(TO_CHOOSE), draw.randint(0, len(TO_CHOOSE))):
                pod[name] = TO_CHOOSE[name](draw)
            for name in draw.sample(sorted(IN_CONTAINER), draw.randint(0, len(IN_CONTAINER))):
                pod["containers"][0][name] = IN_CONTAINER[name](draw)
            if draw.random() < 0.5:
                pod["containers"].append(
                    {"name": "sidecar", "image": "s", "env": [{"name": "A", "value": "1"}]}
                )
        policy = {"cleanPodPolicy": draw.choice(["None", "All"]), "backoffLimit": draw.randint(0, 9)}
        mapping["spec"]["runPolicy"] = {
            **policy,
            "ttlSecondsAfterFinished": draw.randint(1, 999),
            "schedulingPolicy": {"minAvailable": 3, "queue": "gpus"},
        }
        mapping["metadata"] = {
            "name": "train",
            "namespace": "ml",
            "labels": {"app.kubernetes.io/name": "gpt"},
            "annotations": {"note": "any text"},
        }
        given = copy.deepcopy(mapping)
        del given["metadata"]["name"]
        assert lacking(given, created(mapping)) == []


def test_plain_variables_arrive_too_and_secrets_among_them_in_a_secret() -> None:
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)2"},
        {"name": "API_KEY", "value": "sk-1f0c77aa9b"},
    ]
    made = created(manifest({"command": None, "env": env}, {"command": None, "env": env[:1]}))
    roles = made["spec"]["pytorchReplicaSpecs"]
    main, worker = (
        {each["name"]: each for each in roles[name]["template"]["spec"]["containers"][0]["env"]}
        for name in roles
    )
    assert main["A"] == worker["A"] == env[0]
    assert main["B"] == env[1]
    assert "secretKeyRef" in main["API_KEY"]["valueFrom"]
    assert not {"B", "API_KEY"} & worker.keys()
    # A variable may use only those before it.
    assert list(main).index("A") < list(main).index("B")


def test_a_command_is_started_by_the_agent_in_the_pods_that_the_manifest_describes() -> None:
    pod = {"tolerations": [{"operator": "Exists"}]}
    mapping = manifest({"command": ["torchrun", "train.py"], "args": ["--epochs", "3"]}, pod=pod)
    job = parsing.build(mapping)
    assert (job.program.script, job.program.args) == ("train.py", ("--epochs", "3"))
    for role in created(mapping)["spec"]["pytorchReplicaSpecs"].values():
        spec = role["template"]["spec"]
        assert spec["tolerations"] == pod["tolerations"]
        assert spec["containers"][0]["command"][0] == "python3"
        assert role["restartPolicy"] == "Never"


REFUSED = [
    ({"comand": []}, {}, {}, f"{SPEC}.Master.template.spec.containers.0.comand", "did you mean 'command'?"),
    (
        {},
        {"pod": {"tolerationz": []}},
        {},
        f"{SPEC}.Master.template.spec.tolerationz",
        "did you mean 'tolerations'?",
    ),
    ({}, {}, {"runPolicy": {"cleanPodPolicy": "Maybe"}}, "spec.runPolicy.cleanPodPolicy", "must be"),
    (
        {},
        {},
        {"runPolicy": {"schedulingPolicy": {"minAvailable": 1}}},
        "spec.runPolicy.schedulingPolicy.minAvailable",
        "starts whole",
    ),
    ({}, {}, {"nprocPerNode": "gpu"}, "spec.nprocPerNode", "must be auto or a whole number"),
    ({}, {}, {"elasticPolicy": {"minReplicas": 2}}, f"{SPEC}.Master", "make the Master a Worker"),
    ({}, {}, {"pytorchReplicaSpec": {}}, "spec.pytorchReplicaSpec", "did you mean"),
]


@pytest.mark.parametrize("container, pod, spec, path, words", REFUSED, ids=[item[3] for item in REFUSED])
def test_what_cannot_arrive_is_refused_with_path_and_line(
    container: Any, pod: Any, spec: Any, path: str, words: str
) -> None:
    with pytest.raises(JobFileError) as caught:
        parsing.parse(
            yaml.safe_dump(manifest({"command": None, **container}, **pod, **spec), sort_keys=False)
        )
    found = {problem.path: problem for problem in caught.value.problems}
    assert words in found[path].message
    assert found[path].line


def test_roles_that_restart_differently_are_refused() -> None:
    mapping = manifest({"command": None})
    mapping["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = "Always"
    with pytest.raises(JobFileError, match="restartPolicy: differs from that of"):
        parsing.build(mapping)


def test_workers_alone_with_an_elastic_policy_arrive() -> None:
    mapping = manifest(
        {"command": None}, elasticPolicy={"minReplicas": 1, "maxReplicas": 4, "rdzvBackend": "c10d"}
    )
    del mapping["spec"]["pytorchReplicaSpecs"]["Master"]
    made = created(mapping)
    assert made["spec"]["elasticPolicy"] == mapping["spec"]["elasticPolicy"]
    assert list(made["spec"]["pytorchReplicaSpecs"]) == ["Worker"]


@pytest.mark.parametrize("command", [None, ["torchrun", "train.py"]])
def test_workers_alone_arrive_in_the_pods_of_all_nodes_also_in_that_of_the_master_made_of_one(
    command: Any,
) -> None:
    draw = drawn()
    for _ in range(20):
        pod = {name: TO_CHOOSE[name](draw) for name in draw.sample(sorted(TO_CHOOSE), 4)}
        container = {
            name: IN_CONTAINER[name](draw) for name in draw.sample(sorted({*IN_CONTAINER} - SAID_IN_JOB), 4)
        }
        mapping = manifest({}, {"command": command, **container}, pod=pod)
        roles = mapping["spec"]["pytorchReplicaSpecs"]
        del roles["Master"]
        roles["Worker"]["restartPolicy"] = "OnFailure" if command is None else "Never"
        # A pod has the time of `limits.stop_grace` and what saving takes.
        roles["Worker"]["template"]["spec"].pop("terminationGracePeriodSeconds", None)
        given = roles["Worker"]["template"]
        if command:
            given = copy.deepcopy(given)
            del given["spec"]["containers"][0]["command"]
        made = created(mapping)["spec"]["pytorchReplicaSpecs"]
        assert sum(role["replicas"] for role in made.values()) == roles["Worker"]["replicas"]
        for name, role in made.items():
            assert lacking(given, role["template"]) == [], name


def test_the_folders_of_roles_that_a_command_starts_in_are_one_or_are_refused() -> None:
    own = {"command": ["torchrun", "train.py"]}
    with pytest.raises(JobFileError, match=r"Worker.*workingDir differs from"):
        parsing.build(manifest({**own, "workingDir": "/a"}, {**own, "workingDir": "/b"}))
    assert parsing.build(manifest({**own, "workingDir": "/a"})).program.working_dir == "/a"


def test_a_grace_period_is_the_programs_and_its_pod_has_what_saving_takes_besides() -> None:
    mapping = manifest({"command": ["torchrun", "train.py"]}, pod={"terminationGracePeriodSeconds": 60})
    assert parsing.build(mapping).limits.stop_grace == 60
    for role in created(mapping)["spec"]["pytorchReplicaSpecs"].values():
        assert role["template"]["spec"]["terminationGracePeriodSeconds"] == 60 + SAVING_TIME


def test_dollars_are_read_as_kubernetes_reads_them() -> None:
    env = [{"name": "A", "value": "a$$b"}, {"name": "B", "value": "$$(A)"}, {"name": "C", "value": "$5"}]
    mapping = manifest({"command": ["torchrun", "train.py"], "env": env})
    assert dict(parsing.build(mapping).env) == {"A": "a$b", "B": "$(A)", "C": "$5"}


def test_every_key_of_an_elastic_policy_arrives() -> None:
    policy = {
        "rdzvBackend": "c10d",
        "rdzvHost": "head",
        "standalone": False,
        "nProcPerNode": 2,
        "metrics": [],
    }
    mapping = manifest({"command": None}, elasticPolicy=policy)
    del mapping["spec"]["pytorchReplicaSpecs"]["Master"]
    assert created(mapping)["spec"]["elasticPolicy"] == policy


def test_the_dialect_and_the_options_of_its_backend_name_the_same_keys() -> None:
    """The dialect is loaded with each job file, of any backend: it does not import the backend's options."""
    assert set(options.SCHEDULING) == limits.SCHEDULING
    assert set(options.ELASTIC) == limits.ELASTIC | set(limits.NO_ELASTIC)
    assert (options.KIND, options.CONTAINER) == (dialect.KIND, roles.CONTAINER)


def test_a_limit_of_restarts_is_ignored_where_the_agent_starts_the_command() -> None:
    for policy in ("Never", "OnFailure"):
        mapping = manifest()
        for role in mapping["spec"]["pytorchReplicaSpecs"].values():
            role["restartPolicy"] = policy
        mapping["spec"]["runPolicy"] = {"backoffLimit": 3}
        made = created(mapping)
        assert "backoffLimit" not in made["spec"]["runPolicy"]
        roles_made = made["spec"]["pytorchReplicaSpecs"].values()
        assert {role["restartPolicy"] for role in roles_made} == {"Never"}
