"""What a job becomes at Run:ai, without a control plane: generated jobs, read back as the platform reads them."""

from __future__ import annotations

import random
import re
import shlex
from typing import Any

import pytest

from airflow_provider_ocidist.backends.node_config import key_in
from airflow_provider_ocidist.backends.runai import command_lines, names
from airflow_provider_ocidist.backends.runai.options import Fields, runai_fields
from airflow_provider_ocidist.backends.runai.plans import CLUSTER_ID, make_plan
from airflow_provider_ocidist.emulator.kubernetes.kubelet.environment import expand
from airflow_provider_ocidist.emulator.runai.submissions import WorkloadSubmission, submission_of
from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import Plan, RunKey

SEED = 20261123
FIELDS = Fields(project="research", work_dir="s3://bucket/ocidist")
LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


def a_job(nodes: int = 2, backend: dict[str, Any] | None = None, **changes: Any) -> TrainingJob:
    return parsing.build(
        {
            "name": "train",
            "nodes": nodes,
            "image": "nvcr.io/acme/train:1",
            "program": {"script": "/app/train.py"},
            "backend": {"kind": "runai", **(backend or {})},
            **changes,
        }
    )


def a_key(**changes: Any) -> RunKey:
    return RunKey(**{"dag_id": "dag", "run_id": "run", "task_id": "train", **changes})


def planned(job: TrainingJob, key: RunKey | None = None) -> Plan:
    return make_plan(job, key or a_key(), FIELDS)


def taken(plan: Plan) -> WorkloadSubmission:
    """Return a plan as the stand-in's strict door takes it."""
    (request,) = plan.requests
    body = {**request.body, "projectId": "1", "clusterId": "c"}
    return submission_of("distributed" if request.verb == "CreateDistributed" else "trainings", body, {})


def options(dice: random.Random) -> dict[str, Any]:
    """Return a backend section with some of everything."""
    some = {
        "gpus": dice.randrange(1, 9),
        "cpus": dice.choice([0.5, 8.0]),
        "cpu_limit": 16.0,
        "memory": dice.choice(["32G", "512Mi"]),
        "memory_limit": "64G",
        "large_shm": True,
        "extended_resources": {"nvidia.com/rdma": "1"},
        "node_pools": ["h100", "a100"],
        "node_type": "dgx",
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "priority": dice.choice(["low", "very-high"]),
        "preemptible": dice.choice([True, False]),
        "volumes": [{"claim": "data", "path": "/data", "read_only": dice.choice([True, False])}],
        "secrets": {"HF_TOKEN": {"name": "hugging-face", "key": "token"}},
        "secret_files": {"/etc/oci": "oci-config"},
        "image_pull_secrets": ["dockerreg-acme"],
        "image_pull_policy": "IfNotPresent",
        "host_network": dice.choice([True, False]),
        "labels": {"stage": "lab"},
        "annotations": {"billing": "me and you"},
        "keep_for": 3600,
    }
    return {name: value for name, value in some.items() if dice.random() < 0.6}


def test_whatever_a_job_asks_for_the_platforms_door_takes_it() -> None:
    print("seed", SEED)
    dice = random.Random(SEED)
    for _ in range(200):
        nodes, section = dice.randrange(1, 9), options(dice)
        submission = taken(planned(a_job(nodes, section, env={"A": 'it\'s "two" words\n$HOME'})))
        assert submission.pods == nodes
        assert submission.gpus == nodes * section.get("gpus", 0)
        assert submission.environment["A"] == 'it\'s "two" words\n$HOME'
        spec = submission.spec
        assert spec["restartPolicy"] == "Never"
        assert spec["backoffLimit"] == 0
        assert ("cleanPodPolicy" in spec) == (nodes > 1)
        if "preemptible" in section:
            assert submission.preemptible == section["preemptible"]
        if "volumes" in section:
            (volume,) = spec["storage"]["pvc"]
            assert (volume["claimName"], volume["path"]) == ("data", "/data")
            assert volume["existingPvc"]
            assert volume["readOnly"] == section["volumes"][0]["read_only"]
        if "secrets" in section:
            assert {"name": "HF_TOKEN", "secret": {"name": "hugging-face", "key": "token"}} in spec[
                "environmentVariables"
            ]
        assert bool(spec["compute"].get("largeShmRequest") if "compute" in spec else False) == section.get(
            "large_shm", False
        )


def test_workers_do_not_count_the_first_node() -> None:
    assert "numWorkers" not in taken(planned(a_job(1))).spec
    assert taken(planned(a_job(2))).spec["numWorkers"] == 1
    assert taken(planned(a_job(5))).spec["numWorkers"] == 4


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_nodes_configuration_is_in_the_environment_and_waits_where_others_would_be_ended(
    nodes: int,
) -> None:
    plan = planned(a_job(nodes))
    config = AgentConfig.from_env(taken(plan).environment)
    assert config.run_dir == plan.run_dir
    assert config.nodes == nodes
    assert config.ends_others == (nodes > 1)
    assert key_in(taken(plan).environment) == plan.key


def test_what_starts_is_one_line_that_a_shell_would_read_alike() -> None:
    command = taken(planned(a_job())).spec["command"]
    assert "\n" not in command
    words = shlex.split(command)
    assert words[:2] == ["python3", "-c"]
    compile(words[2], "start", "exec")
    own = taken(
        planned(a_job(container={"entrypoint": ["run", "a b"], "command": ["--x", "it's"]}, program={}))
    ).spec
    assert shlex.split(own["command"]) == ["run", "a b"]
    assert shlex.split(own["args"]) == ["--x", "it's"]


@pytest.mark.parametrize(
    "section, expected",
    [
        (
            {"gpus": 2, "gpu_fraction": 0.5},
            {"gpuRequestType": "portion", "gpuPortionRequest": 0.5, "gpuDevicesRequest": 2},
        ),
        (
            {"gpu_fraction": 0.25},
            {"gpuRequestType": "portion", "gpuPortionRequest": 0.25, "gpuDevicesRequest": 1},
        ),
        (
            {"gpu_memory": "20G"},
            {"gpuRequestType": "memory", "gpuMemoryRequest": "20G", "gpuDevicesRequest": 1},
        ),
        ({"gpus": 8}, {"gpuDevicesRequest": 8}),
    ],
)
def test_gpus_are_whole_or_parts(section: dict[str, Any], expected: dict[str, Any]) -> None:
    assert taken(planned(a_job(2, section))).spec["compute"] == expected


def test_an_export_is_mounted_by_the_platform() -> None:
    (mount,) = taken(planned(a_job(mounts=[{"source": "10.0.0.1:/data", "path": "/data"}]))).spec["storage"][
        "nfs"
    ]
    assert mount == {"server": "10.0.0.1", "path": "/data", "mountPath": "/data", "readOnly": False}


WRONG = [
    ({"image": None}, "image"),
    ({"backend": {"gpu_fraction": 1.5}}, "backend.gpu_fraction"),
    ({"backend": {"gpu_fraction": 0.5, "gpu_memory": "1G"}}, "backend.gpu_memory"),
    ({"backend": {"gpus": 2, "gpu_memory": "1G"}}, "backend.gpu_memory"),
    ({"backend": {"gpus": 0, "gpu_fraction": 0.5}}, "backend.gpus"),
    ({"backend": {"memory": "much"}}, "backend.memory"),
    ({"backend": {"volumes": [{"claim": "c", "path": "data"}]}}, "backend.volumes.0.path"),
    ({"backend": {"secrets": {"A": {"name": "s", "key": "k"}}}, "env": {"A": "1"}}, "backend.secrets.A"),
    ({"backend": {"secrets": {"A B": {"name": "s", "key": "k"}}}}, "backend.secrets.A B"),
    ({"backend": {"volumes": [{"claim": "My_Data", "path": "/data"}]}}, "backend.volumes.0.claim"),
    (
        {"backend": {"volumes": [{"claim": "c", "path": "/d"}, {"claim": "e", "path": "/d/"}]}},
        "backend.volumes.1.path: is the place of backend.volumes.0.path too",
    ),
    (
        {
            "backend": {"secret_files": {"/etc/oci": "oci-config"}},
            "mounts": [{"source": "pvc://c", "path": "/etc/oci"}],
        },
        "mounts.0.path: is the place of backend.secret_files./etc/oci too",
    ),
    ({"backend": {"labels": {"ocidist/x": "1"}}}, "backend.labels.ocidist/x"),
    ({"backend": {"priority": "urgent"}}, "backend.priority"),
    ({"backend": {"gpu": 1}}, "gpus"),
    ({"mounts": [{"source": "oci://b@n/x", "path": "/x"}]}, "mounts.0.source"),
]


@pytest.mark.parametrize("changes, place", WRONG, ids=[place for _, place in WRONG])
def test_what_cannot_run_there_is_one_problem_with_its_place(changes: dict[str, Any], place: str) -> None:
    section = changes.get("backend", {})
    with pytest.raises(JobFileError) as caught:
        a_job(2, section, **{name: value for name, value in changes.items() if name != "backend"})
    assert place in str(caught.value)


def test_project_and_work_dir_come_from_the_job_or_the_connection() -> None:
    with pytest.raises(JobFileError) as caught:
        make_plan(a_job(), a_key(), Fields())
    assert [problem.path for problem in caught.value.problems] == ["backend.project", "work_dir"]
    plan = make_plan(
        a_job(2, {"project": "7", "cluster_id": "uuid"}, work_dir="s3://other/ocidist"), a_key(), Fields()
    )
    assert plan.requests[0].body["projectId"] == "7"
    assert plan.requests[0].body["clusterId"] == "uuid"
    assert plan.run_dir.startswith("s3://other/ocidist/")
    assert planned(a_job()).requests[0].body["clusterId"] == CLUSTER_ID


def test_every_attempt_has_a_name_of_its_own_that_fits_whatever_it_is_called() -> None:
    print("seed", SEED)
    dice = random.Random(SEED)
    letters = "abcXYZ019_-. é/"
    seen: dict[str, RunKey] = {}
    for _ in range(2000):
        texts = ["".join(dice.choices(letters, k=dice.randrange(1, 80))) for _ in range(3)]
        key = RunKey(
            dag_id=texts[0],
            run_id=texts[1],
            task_id=texts[2],
            generation=dice.choice([0, 1, 12]),
            attempt=dice.choice([1, 2, 33]),
        )
        name = names.workload_name(key)
        assert LABEL.fullmatch(name), name
        assert len(name) + len("-worker-999") <= 63
        assert seen.setdefault(name, key) == key
        assert all(len(pod) <= 63 for pod in names.pod_names(name, 1000))


def test_secrets_are_named_and_never_held() -> None:
    plan = planned(a_job(2, {"secrets": {"HF_TOKEN": {"name": "hugging-face", "key": "token"}}}))
    variables = {item["name"]: item for item in plan.requests[0].body["spec"]["environmentVariables"]}
    assert "value" not in variables["HF_TOKEN"]


@pytest.mark.parametrize(
    "host, url", [("acme.run.ai", "https://acme.run.ai"), ("http://127.0.0.1:8080/", "http://127.0.0.1:8080")]
)
def test_a_connection_names_the_control_plane_by_host_or_url(host: str, url: str) -> None:
    fields = Fields.of(runai_fields(host, "id", "secret", {"project": "research", "verify": "false"}))
    assert (fields.url, fields.client_id, fields.project, fields.verify) == (url, "id", "research", False)
    assert "secret" not in repr(fields).replace("client_secret", "")


def test_the_equivalent_command_lines_say_the_same_in_both_generations() -> None:
    section = {
        "gpus": 8,
        "volumes": [{"claim": "data", "path": "/data"}],
        "large_shm": True,
        "node_pools": ["a", "b"],
    }
    lines = command_lines.equivalents(planned(a_job(2, section, env={"CONFIG_FILE": "./llama 3.toml"})))
    v1, v2 = (shlex.split(lines[name], comments=True) for name in ("v1", "v2"))
    assert v1[:3] == ["runai", "submit-dist", "pytorch"]
    assert v2[:5] == ["runai", "training", "pytorch", "submit", planned(a_job()).requests[0].body["name"]]
    for words in (v1, v2):
        assert "--workers=1" in words
        assert words[words.index("-g") + 1] == "8"
        assert words[words.index("-i") + 1] == "nvcr.io/acme/train:1"
        assert words[words.index("-p") + 1] == "research"
        assert words[words.index("--existing-pvc") + 1] == "claimname=data,path=/data"
        assert "CONFIG_FILE=./llama 3.toml" in words
        assert "--large-shm" in words
        assert words[words.index("--node-pools") + 1] == "a,b"
        assert words[words.index("--") + 1 :][:2] == ["python3", "-c"]
    assert "POD_IP" in lines["v1"].partition("#")[2]
    one = command_lines.equivalents(planned(a_job(1)))
    assert shlex.split(one["v1"], comments=True)[:2] == ["runai", "submit"]
    assert shlex.split(one["v2"], comments=True)[:3] == ["runai", "training", "submit"]
    assert "--workers" not in one["v1"] + one["v2"]


def test_a_command_line_names_what_it_cannot_say() -> None:
    section = {"secrets": {"HF_TOKEN": {"name": "s", "key": "k"}}, "priority": "high", "preemptible": False}
    for line in command_lines.equivalents(planned(a_job(2, section))).values():
        words, _, note = line.partition("  # without ")
        assert {"HF_TOKEN", "priorityClass", "preemptibility"} <= set(note.split(", "))
        assert "HF_TOKEN" not in words


def test_every_value_is_in_the_pod_what_it_is_in_the_job_whatever_looks_like_a_reference() -> None:
    dice = random.Random(SEED)
    for _ in range(100):
        text = "".join(dice.choice(["$", "$", "(", ")", "A", "RANK", " "]) for _ in range(8))
        plan = planned(
            a_job(env={"A": "a", "B": text}, program={"script": "/app/train.py", "args": [text, "$(A)"]})
        )
        variables = taken(plan).spec["environmentVariables"]
        seen = {
            each["name"]: expand(each["value"], {"A": '"', "RANK": "0"})
            for each in variables
            if "value" in each
        }
        assert seen["B"] == text
        assert names.config_in(seen).program.args == (text, "$(A)")
        assert key_in(seen) == plan.key


def test_a_tag_that_no_label_can_hold_is_an_annotation() -> None:
    tags = {"team": "nlp", "owner": "Jane Doe <jane@acme.example>"}
    spec = taken(planned(a_job(tags=tags))).spec
    assert {"name": "team", "value": "nlp"} in spec["labels"]
    assert [each["name"] for each in spec["labels"]] == ["team"]
    assert {"name": "owner", "value": tags["owner"]} in spec["annotations"]


@pytest.mark.parametrize(
    "changes, path, words",
    [
        ({"backend": {"labels": {"k": "v v"}}}, "backend.labels.k", "not a valid value of a label"),
        ({"tags": {"a b": "x"}}, "tags.a b", "is not a valid key"),
        ({"backend": {"labels": {"ocidist/x": "y"}}}, "backend.labels.ocidist/x", "are reserved"),
        (
            {"container": {"entrypoint": ["run"]}, "program": {}, "main_env": {"A": "1"}},
            "main_env",
            "are alike",
        ),
        (
            {"container": {"entrypoint": ["run"]}, "program": {}, "worker_env": {"A": "1"}},
            "worker_env",
            "are alike",
        ),
        ({"work_dir": "/mnt/shared/x", "backend": {}}, "work_dir", "backend.volumes"),
    ],
)
def test_what_would_be_refused_or_lost_is_reported_with_its_path(changes: Any, path: str, words: str) -> None:
    with pytest.raises(JobFileError) as caught:
        a_job(**changes)
    found = {problem.path: problem.message for problem in caught.value.problems}
    assert words in found[path]


def test_a_secret_in_plain_variables_is_named_in_the_plan_with_the_remedy() -> None:
    plan = planned(a_job(env={"HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz012345", "PLAIN": "1"}))
    assert "HF_TOKEN" in plan.reason
    assert "PLAIN" not in plan.reason
    assert "backend.secrets" in plan.reason
    assert "backend.secrets" not in planned(a_job(env={"PLAIN": "1"})).reason


def test_a_plan_of_a_job_that_may_lose_machines_says_that_a_lost_pod_comes_only_with_all_others() -> None:
    words = "a lost pod is created again only with all others"
    replacing: dict[str, Any] = {"restarts": {"node": 1}, "limits": {"lease": 600}}
    assert words in planned(a_job(2, **replacing)).reason
    assert words not in planned(a_job(1, **replacing)).reason
    assert words not in planned(a_job(2)).reason


def test_a_claim_among_the_mounts_is_mounted_whole() -> None:
    spec = taken(planned(a_job(mounts=[{"source": "pvc://data", "path": "/data"}]))).spec
    assert spec["storage"]["pvc"] == [
        {"claimName": "data", "existingPvc": True, "path": "/data", "readOnly": False}
    ]
    for source, words in (("pvc://data/train", "mounts a claim whole"), ("pvc://A_b", "must name a claim")):
        with pytest.raises(JobFileError, match=words):
            a_job(mounts=[{"source": source, "path": "/data"}])
