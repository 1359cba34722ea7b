"""The backend `pytorchjob`: what a job becomes, and gangs of it on the stand-in for a cluster."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from airflow_provider_ocidist.backends.kubernetes import names
from airflow_provider_ocidist.backends.kubernetes.gang_state import GangState
from airflow_provider_ocidist.backends.kubernetes.presets import SHAPES
from airflow_provider_ocidist.backends.pytorchjob.operator import OPERATOR
from airflow_provider_ocidist.emulator.kubernetes.kubelet.environment import expand
from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.model.agent_config import CONFIG_VARIABLE, INSTANCE_VARIABLE
from airflow_provider_ocidist.model.run import Plan
from tests.backends.kubernetes.jobs import body, job_of, planned, problems_in
from tests.backends.kubernetes.test_names import any_key, drawn
from tests.training_jobs import PROGRAMS

SECRETS = {"API_KEY": "sk-1f0c77aa9b", "DB_PASSWORD": "correct horse battery", "MY_TOKEN": "t0ken-of-mine-77"}

a_job, problems_of = partial(job_of, "pytorchjob"), partial(problems_in, "pytorchjob")


def containers(plan: Plan) -> list[Mapping[str, Any]]:
    roles = body(plan)["spec"]["pytorchReplicaSpecs"]
    return [role["template"]["spec"]["containers"][0] for role in roles.values()]


def test_a_gang_is_a_master_and_workers_that_nothing_restarts_and_whose_ended_pods_keep_their_logs() -> None:
    for nodes in (1, 2, 7, 1000):
        made = body(planned(a_job(nodes)))
        roles = made["spec"]["pytorchReplicaSpecs"]
        assert sum(role["replicas"] for role in roles.values()) == nodes
        assert roles["Master"]["replicas"] == 1
        assert {role["restartPolicy"] for role in roles.values()} == {"Never"}
        policy = made["spec"]["runPolicy"]
        assert policy["cleanPodPolicy"] == "Running"
        assert policy["ttlSecondsAfterFinished"] > 0


def test_the_same_key_makes_the_same_objects_in_every_process_and_another_key_others() -> None:
    draw = drawn()
    keys = [any_key(draw) for _ in range(30)]
    job = a_job()
    made = [planned(job, key) for key in keys]
    assert made == [planned(job, key) for key in keys]
    assert len({body(plan)["metadata"]["name"] for plan in made}) == len(set(keys))
    for plan, key in zip(made, keys, strict=True):
        assert names.is_of(key, body(plan))


def test_every_object_and_every_pod_carries_the_labels_by_which_all_are_listed() -> None:
    plan = planned(a_job(env={"API_KEY": "sk-1f0c77aa9b"}, tags={"team": "nlp", "note": "any text / at all"}))
    found = [body(plan), body(plan, "CreateSecret")]
    found += [role["template"] for role in body(plan)["spec"]["pytorchReplicaSpecs"].values()]
    for each in found:
        labels = each["metadata"]["labels"]
        assert labels[names.MANAGER] == names.OURS
        assert labels["team"] == "nlp"
        assert each["metadata"]["annotations"]["note"] == "any text / at all"


def test_no_secret_stands_in_anything_but_the_secret() -> None:
    draw = drawn()
    for _ in range(20):
        homes = {name: draw.choice(["env", "main_env", "worker_env"]) for name in SECRETS}
        changes: dict[str, dict[str, str]] = {"env": {"PLAIN": "1"}}
        for name, home in homes.items():
            changes.setdefault(home, {})[name] = SECRETS[name]
        plan = planned(a_job(3, **changes))
        for request in plan.requests:
            text = json.dumps(request.body)
            assert any(value in text for value in SECRETS.values()) == (request.verb == "CreateSecret")
        main, worker = containers(plan)
        stored = body(plan, "CreateSecret")["stringData"]
        for name, home in homes.items():
            for container, has_it in ((main, home != "worker_env"), (worker, home != "main_env")):
                entries = [entry for entry in container["env"] if entry["name"] == name]
                assert [stored[entry["valueFrom"]["secretKeyRef"]["key"]] for entry in entries] == [
                    SECRETS[name]
                ] * has_it


def test_a_secret_among_the_arguments_takes_the_whole_configuration_with_it() -> None:
    program = {"source": str(PROGRAMS), "script": "steps.py", "args": ["--api-key", "sk-1f0c77aa9b"]}
    plan = planned(a_job(program=program))
    assert "sk-1f0c77aa9b" not in json.dumps(body(plan))
    assert "sk-1f0c77aa9b" in body(plan, "CreateSecret")["stringData"]["OCIDIST_CONFIG"]


def any_text(draw: random.Random) -> str:
    return "".join(
        draw.choice(["$", "$", "(", ")", "A", "RANK", " ", '"']) for _ in range(draw.randint(0, 8))
    )


def test_every_value_is_in_the_pod_what_it_is_in_the_job_whatever_looks_like_a_reference() -> None:
    draw = drawn()
    for _ in range(200):
        text = any_text(draw)
        program = {"source": str(PROGRAMS), "script": "steps.py", "args": [text]}
        (main, _) = containers(planned(a_job(env={"A": "a", "B": text}, program=program)))
        known = {"A": "a", "RANK": "0"}
        seen = {entry["name"]: expand(entry["value"], known) for entry in main["env"] if "value" in entry}
        assert seen["B"] == text
        assert json.loads(seen[CONFIG_VARIABLE])["program"]["args"] == [text]


OPTIONS: dict[str, tuple[Any, str, Any]] = {
    "gpus": (4, "containers.0.resources.limits.nvidia.com/gpu", 4),
    "cpu": ("8", "containers.0.resources.requests.cpu", "8"),
    "memory": ("64Gi", "containers.0.resources.limits.memory", "64Gi"),
    "shm_size": ("16Gi", "volumes.-1.emptyDir.sizeLimit", "16Gi"),
    "priority_class": ("high", "priorityClassName", "high"),
    "service_account": ("trainer", "serviceAccountName", "trainer"),
    "image_pull_secrets": (["ocir"], "imagePullSecrets", [{"name": "ocir"}]),
    "image_pull_policy": ("Always", "containers.0.imagePullPolicy", "Always"),
    "node_selector": ({"pool": "a10"}, "nodeSelector", {"pool": "a10"}),
    "tolerations": ([{"operator": "Exists"}], "tolerations", [{"operator": "Exists"}]),
    "affinity": ({"nodeAffinity": {}}, "affinity", {"nodeAffinity": {}}),
    "security_context": ({"runAsUser": 1000}, "securityContext", {"runAsUser": 1000}),
    "host_network": (True, "hostNetwork", True),
    "env_from": ([{"secretRef": {"name": "s"}}], "containers.0.envFrom", [{"secretRef": {"name": "s"}}]),
    "init_containers": ([{"name": "i", "image": "x"}], "initContainers.0", {"name": "i", "image": "x"}),
}


def at(value: Any, path: str) -> Any:
    """Return what stands at a path; keys of Kubernetes may hold dots."""
    if path == "":
        return value
    if isinstance(value, list):
        index, _, rest = path.partition(".")
        return at(value[int(index)], rest)
    name = max((name for name in value if f"{path}.".startswith(f"{name}.")), key=len)
    return at(value[name], path[len(name) + 1 :])


def test_each_option_arrives_in_the_pods_of_both_roles_whichever_others_are_set() -> None:
    draw = drawn()
    for _ in range(60):
        chosen = draw.sample(sorted(OPTIONS), draw.randint(0, len(OPTIONS)))
        plan = planned(a_job(backend={name: OPTIONS[name][0] for name in chosen}))
        for role in body(plan)["spec"]["pytorchReplicaSpecs"].values():
            for name in chosen:
                _, path, expected = OPTIONS[name]
                assert at(role["template"]["spec"], path) == expected, (name, role)


def test_workers_with_an_agent_wait_for_their_master_last_of_all_init_containers() -> None:
    container = {"name": "pytorch", "securityContext": {"runAsNonRoot": True}}
    options = {
        "init_containers": [{"name": "fetch", "image": "x"}],
        "image_pull_policy": "Always",
        "pod_template": {"spec": {"containers": [container]}},
    }
    plan = planned(a_job(3, backend=options))
    roles = body(plan)["spec"]["pytorchReplicaSpecs"]
    master, worker = (roles[name]["template"]["spec"] for name in ("Master", "Worker"))
    assert [each["name"] for each in master["initContainers"]] == ["fetch"]
    fetch, wait = worker["initContainers"]
    assert fetch["name"] == "fetch"
    assert wait["command"][-1] == f"{body(plan)['metadata']['name']}-master-0"
    (own,) = worker["containers"]
    for name in ("image", "imagePullPolicy", "securityContext"):
        assert wait[name] == own[name]
    own_start = a_job(3, program={}, container={"entrypoint": ["true"]}, checkpoints=None, launcher={})
    for job in (own_start, a_job(3, backend={"elastic_policy": {"minReplicas": 1}})):
        for role in body(planned(job))["spec"]["pytorchReplicaSpecs"].values():
            assert "initContainers" not in role["template"]["spec"]


def test_a_pod_template_is_laid_over_all_the_rest() -> None:
    template = {
        "metadata": {"annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {
            "dnsPolicy": "Default",
            "containers": [
                {"name": "pytorch", "env": [{"name": "A", "value": "theirs"}]},
                {"name": "sidecar", "image": "s"},
            ],
        },
    }
    plan = planned(
        a_job(env={"A": "ours", "B": "ours"}, backend={"pod_template": template, "host_network": True})
    )
    (main, _) = containers(plan)
    values = {entry["name"]: entry.get("value") for entry in main["env"]}
    assert (values["A"], values["B"]) == ("theirs", "ours")
    pod = body(plan)["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    assert pod["spec"]["dnsPolicy"] == "Default"
    assert [each["name"] for each in pod["spec"]["containers"]] == ["pytorch", "sidecar"]
    assert pod["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"


def test_the_label_of_a_queue_is_the_jobs_and_not_the_pods() -> None:
    # Kueue may hold back pods by that label, too.
    for changes in ({"queue": "gpus"}, {"labels": {names.QUEUE: "gpus", "team": "nlp"}}):
        made = body(planned(a_job(backend=changes)))
        assert made["metadata"]["labels"][names.QUEUE] == "gpus"
        for role in made["spec"]["pytorchReplicaSpecs"].values():
            assert names.QUEUE not in role["template"]["metadata"]["labels"]


@pytest.mark.parametrize("amount", [".5", "1e9", "2.", "+4", "100u", "64Gi", "1E", "1.5"])
def test_every_form_of_an_amount_is_taken(amount: str) -> None:
    assert body(planned(a_job(backend={"memory": amount})))


def test_a_plan_says_that_no_pod_is_restarted() -> None:
    assert "no pod is started again" in planned(a_job()).reason


def test_only_a_gang_of_which_lost_pods_are_made_anew_asks_the_operator_for_it() -> None:
    draw = drawn()
    for _ in range(60):
        changes: dict[str, Any] = {
            "restarts": {"node": draw.choice((0, 1, 3))},
            "limits": {"lease": draw.choice((0, 600))},
        }
        elastic = draw.random() < 0.3
        own = draw.random() < 0.3
        if elastic:
            changes["backend"] = {"elastic_policy": {"minReplicas": 1}}
        if own:
            changes |= {
                "container": {"entrypoint": ["true"]},
                "program": {},
                "checkpoints": None,
                "launcher": {},
            }
            changes.pop("restarts")
        nodes = draw.randint(1, 4)
        plan = planned(a_job(nodes, **changes))
        wanted = (
            nodes > 1
            and not (elastic or own)
            and changes["restarts"]["node"] > 0
            and changes["limits"]["lease"] > 0
        )
        made = body(plan)
        roles = made["spec"]["pytorchReplicaSpecs"].values()
        assert plan.replaces is wanted, changes
        assert {role["restartPolicy"] for role in roles} == {"OnFailure" if wanted else "Never"}
        assert made["spec"]["runPolicy"].get("backoffLimit") == (20 * (nodes + 1) if wanted else None)
        assert (names.REPLACES in made["metadata"]["annotations"]) is wanted
        for container in containers(plan):
            instances = [each for each in container["env"] if each["name"] == INSTANCE_VARIABLE]
            uid = {"fieldRef": {"fieldPath": "metadata.uid"}}
            assert instances == ([{"name": INSTANCE_VARIABLE, "valueFrom": uid}] if wanted else [])
        assert ("a pod that is lost is created again" in plan.reason) is wanted


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_preset_gives_host_network_devices_and_the_librarys_parameters(shape: str) -> None:
    (main, _) = containers(plan := planned(a_job(backend={"preset": shape})))
    pod = body(plan)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert {each["mountPath"] for each in main["volumeMounts"]} >= {"/dev/infiniband", "/dev/shm"}
    (parameters,) = [each["configMapRef"]["name"] for each in main["envFrom"]]
    assert parameters.endswith(shape.lower().replace(".", "-"))
    assert list(main["resources"]["limits"].values()) == [8]


def test_a_queue_is_kueues_label_on_the_job() -> None:
    plan = planned(a_job(backend={"queue": "gpus", "suspend": True}))
    assert body(plan)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert body(plan)["spec"]["runPolicy"]["suspend"] is True


def test_claims_and_exports_are_mounted_each_source_once() -> None:
    mounts = [
        {"source": "pvc://data/train", "path": "/data"},
        {"source": "pvc://data", "path": "/all"},
        {"source": "10.0.0.1:/export", "path": "/nfs"},
    ]
    plan = planned(a_job(mounts=mounts))
    pod = body(plan)["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    sources = {each["name"]: each for each in pod["volumes"]}
    mounted = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert sources[mounted["/data"]["name"]]["persistentVolumeClaim"] == {"claimName": "data"}
    assert mounted["/data"]["subPath"] == "train"
    assert mounted["/all"]["name"] == mounted["/data"]["name"]
    assert sources[mounted["/nfs"]["name"]]["nfs"] == {"server": "10.0.0.1", "path": "/export"}


def test_workers_alone_learn_their_rank_from_their_pods_label() -> None:
    plan = planned(a_job(3, backend={"elastic_policy": {"minReplicas": 1, "maxReplicas": 3}}))
    roles = body(plan)["spec"]["pytorchReplicaSpecs"]
    assert list(roles) == ["Worker"]
    assert roles["Worker"]["replicas"] == 3
    assert body(plan)["spec"]["runPolicy"]["cleanPodPolicy"] == "None"
    (own,) = containers(plan)
    assert own["env"][-1]["valueFrom"]["fieldRef"]["fieldPath"].endswith("replica-index']")


@pytest.mark.parametrize(
    "changes, path, words",
    [
        ({"backend": {"gpu": 1}}, "backend.gpu", "did you mean 'gpus'?"),
        ({"backend": {"memory": "64 GB"}}, "backend.memory", "must be an amount"),
        ({"backend": {"preset": "BM.GPU.H100"}}, "backend.preset", "did you mean 'BM.GPU.H100.8'?"),
        ({"backend": {"labels": {"ocidist/task": "x"}}}, "backend.labels.ocidist/task", "are reserved"),
        ({"backend": {"labels": {"a": "x y"}}}, "backend.labels.a", "not a valid value of a label"),
        ({"backend": {"pod_template": {"specs": {}}}}, "backend.pod_template.specs", "did you mean 'spec'?"),
        (
            {"backend": {"pod_template": {"spec": {"tolerationz": []}}}},
            "backend.pod_template.spec.tolerationz",
            "did you mean 'tolerations'?",
        ),
        (
            {"backend": {"pod_template": {"spec": {"containers": [{"name": "pytorch", "command": ["x"]}]}}}},
            "backend.pod_template.spec.containers.0.command",
            "name the program",
        ),
        ({"backend": {"restart_policy": "OnFailure"}}, "backend.restart_policy", "Airflow retries"),
        ({"backend": {"backoff_limit": 9}, "restarts": {"node": 1}}, "backend.backoff_limit", "ocidist sets the limit"),
        ({"backend": {"elastic_policy": {"minReplicas": 5}}}, "backend.elastic_policy.minReplicas", "excludes"),
        ({"backend": {"secrets": {"A": {"name": "s", "kei": "k"}}}}, "backend.secrets.A.kei", "'key'"),
        (
            {"backend": {"elastic_policy": {"maxRestarts": 1}, "main_template": {"spec": {}}}},
            "backend.main_template",
            "no Master",
        ),
        ({"backend": {"elastic_policy": {"maxRestarts": 1}}, "main_env": {"A": "1"}}, "main_env", "no Master"),
        ({"image": None}, "image", "is needed"),
        ({"work_dir": "/mnt/shared"}, "work_dir", "mount the claim"),
        ({"mounts": [{"source": "oci://b@n/x", "path": "/x"}]}, "mounts.0.source", "cannot be mounted"),
        ({"mounts": [{"source": "pvc://A_b", "path": "/x"}]}, "mounts.0.source", "must name a claim"),
    ],
)  # fmt: skip
def test_what_kubernetes_would_refuse_is_reported_with_its_path(changes: Any, path: str, words: str) -> None:
    assert words in problems_of(**changes)[path]


def test_a_folder_on_a_claim_is_a_work_dir() -> None:
    job = a_job(work_dir="/mnt/shared/ocidist", mounts=[{"source": "pvc://shared", "path": "/mnt/shared"}])
    assert planned(job).run_dir.startswith("/mnt/shared/ocidist/")


def test_a_plan_without_a_work_dir_says_where_it_may_stand() -> None:
    job = a_job(work_dir=None)
    with pytest.raises(JobFileError, match=r"work_dir: is needed here"):
        planned(job)
    assert planned(job, work_dir="oci://bucket@ns/other").run_dir.startswith("oci://bucket@ns/other/")


def test_the_namespace_is_the_jobs_else_the_connections_else_that_of_the_context() -> None:
    config = json.dumps(
        {
            "current-context": "one",
            "contexts": [
                {"name": "one", "context": {"namespace": "first"}},
                {"name": "two", "context": {"namespace": "second"}},
            ],
        }
    )
    for job, fields, expected in (
        (a_job(backend={"namespace": "mine"}), {"namespace": "theirs"}, "mine"),
        (a_job(), {"namespace": "theirs", "kube_config": config}, "theirs"),
        (a_job(), {"kube_config": config}, "first"),
        (a_job(), {"kube_config": config, "cluster_context": "two"}, "second"),
        (a_job(), {}, "default"),
    ):
        plan = planned(job, **fields)
        assert body(plan)["metadata"]["namespace"] == plan.compartment_id == expected


LABELS = {names.GANG: "gang", "training.kubeflow.org/replica-index": "1"}


@pytest.mark.parametrize(
    "name, labels, expected",
    [
        ("gang-master-0", {}, ("gang", 0)),
        ("gang-worker-1", {}, ("gang", 2)),
        ("renamed", {"training.kubeflow.org/replica-type": "worker"}, ("gang", 2)),
        ("renamed", {"training.kubeflow.org/replica-type": "Worker"}, ("gang", 2)),
        ("renamed", {}, None),
        ("gang-monitor-1", {}, None),
    ],
)
def test_a_pod_is_known_by_its_name_and_by_its_labels_where_a_webhook_has_named_it_anew(
    name: str, labels: Mapping[str, str], expected: Any
) -> None:
    assert OPERATOR.gang_and_rank({"metadata": {"name": name, "labels": {**LABELS, **labels}}}) == expected
    assert OPERATOR.gang_and_rank({"metadata": {"name": name, "labels": labels}}) is None


@pytest.mark.parametrize("order", [1, -1])
def test_the_conditions_of_a_gang_mean_the_same_in_any_order(order: int) -> None:
    def read(**conditions: bool) -> GangState:
        found = [{"type": name, "status": str(value)} for name, value in conditions.items()]
        return OPERATOR.read({"status": {"conditions": found[::order]}}).state

    assert OPERATOR.read({}).state is OPERATOR.read({"status": None}).state is GangState.NEW
    assert read(Created=True, Running=False, Failed=True) is GangState.FAILED
    assert read(Created=True, Suspended=True, Succeeded=True) is GangState.SUCCEEDED
    assert read(Created=True, Suspended=False, Running=True) is GangState.ACTIVE
    assert read(Created=True, Suspended=True, Running=False) is GangState.SUSPENDED


def test_a_gang_is_suspended_before_its_operator_says_so_and_until_it_says_otherwise() -> None:
    def read(suspend: bool, **conditions: bool) -> GangState:
        found = [{"type": name, "status": str(value)} for name, value in conditions.items()]
        spec = {"runPolicy": {"suspend": suspend}}
        return OPERATOR.read({"spec": spec, "status": {"conditions": found}}).state

    assert read(True) is read(True, Running=True) is read(False, Suspended=True) is GangState.SUSPENDED
    assert read(False, Running=True, Suspended=False) is GangState.ACTIVE
    assert read(True, Running=True, Succeeded=True) is GangState.SUCCEEDED
    assert read(True, Failed=True) is GangState.FAILED
