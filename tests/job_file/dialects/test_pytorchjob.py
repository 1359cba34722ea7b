"""Kubeflow's PyTorchJob elsewhere: the same gang, or a reason with path and line; nothing is dropped in silence."""

from __future__ import annotations

import copy
import random
import re
from pathlib import Path

import pytest
import yaml

from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.job import Container, LauncherOptions, Mount, Program
from airflow_provider_ocidist.job_file import parsing

FOLDER = Path(__file__).parent
CPU, GPU = FOLDER / "pytorchjob_cpu.yaml", FOLDER / "pytorchjob_gpu.yaml"
IMAGE = "iad.ocir.io/ns/train:1"
SPEC = "spec.pytorchReplicaSpecs"
ELSEWHERE = {"backend.kind": "oci_data_science"}
"""A home for which a manifest is not meant."""


def manifest(master=None, worker=None, *, pod=None, **spec):
    """Return a manifest of one Master and two Workers with these keys in their containers."""

    def replica(count, more):
        container = {"name": "pytorch", "image": IMAGE, "command": ["torchrun", "train.py"], **more}
        container = {key: value for key, value in container.items() if value is not None}
        return {
            "replicas": count,
            "restartPolicy": "Never",
            "template": {"spec": {"containers": [container], **(pod or {})}},
        }

    master = master or {}
    replicas = {"Master": replica(1, master), "Worker": replica(2, master if worker is None else worker)}
    return copy.deepcopy(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "train"},
            "spec": {"pytorchReplicaSpecs": replicas, **spec},
        }
    )


def job_of(*arguments, **keywords):
    return parsing.build(manifest(*arguments, **keywords), overrides=ELSEWHERE)


def problems_of(mapping):
    """Return what is wrong, as a user who wrote YAML sees it."""
    with pytest.raises(JobFileError) as caught:
        parsing.parse(yaml.safe_dump(mapping, sort_keys=False), overrides=ELSEWHERE)
    assert all(problem.line for problem in caught.value.problems)
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


# the manifests of the seed, unchanged


def test_the_cpu_manifest_starts_what_its_image_starts_on_three_nodes_with_its_volume():
    job = parsing.load(CPU, overrides=ELSEWHERE)
    assert (job.name, job.nodes) == ("pytorchjob-distributed-training", 3)
    assert job.image.endswith("model-training-pytorch:1.11.0-cpu-py3.8-v0.1")
    assert job.container == Container()
    assert job.env["WORLD_SIZE"] == "3"
    # The claim is a folder of the work directory, so that the next run finds it again.
    assert job.mounts == (Mount(source="volumes/data", path="/opt/pytorch/output"),)


def test_the_gpu_manifest_gives_its_arguments_to_the_image():
    job = parsing.load(GPU, overrides=ELSEWHERE)
    assert job.nodes == 2
    assert job.container == Container(command=("--backend", "nccl"))


def test_the_shell_script_around_a_manifest_is_distinguished_from_yaml():
    text = f"cat <<EOF | kubectl create -n $USER_NAMESPACE -f -\n{CPU.read_text()}EOF\n"
    with pytest.raises(
        JobFileError, match=r"line 1: is a shell script around a job file: keep only the lines between"
    ):
        parsing.parse(text)


def test_several_documents_are_several_files():
    with pytest.raises(
        JobFileError, match=r"line \d+: .*another document.*: put each job into a file of its own"
    ):
        parsing.parse(f"{CPU.read_text()}---\n{GPU.read_text()}")


# commands


@pytest.mark.parametrize(
    "command, args, launcher, program",
    [
        (["torchrun", "train.py"], None, ("torchrun", None, ()), ("train.py", False, ())),
        (
            ["torchrun"],
            ["--max-restarts=0", "-m", "pkg.train", "--lr", 0.1],
            ("torchrun", None, ("--max-restarts=0",)),
            ("pkg.train", True, ("--lr", "0.1")),
        ),
        (
            ["torchrun"],
            # As the operator's documentation has it.
            [
                *("--nnodes=2", "--nproc_per_node=8", "--node_rank=$(RANK)", "--master_addr=$(MASTER_ADDR)"),
                *("--master_port=$(MASTER_PORT)", "train.py"),
            ],
            ("torchrun", None, ("--nnodes=2", "--nproc_per_node=8")),
            ("train.py", False, ()),
        ),
        (
            ["torchrun", "--rdzv-endpoint", "train-master-0:23456", "--rdzv-backend", "c10d", "a.py"],
            None,
            ("torchrun", None, ("--rdzv-backend", "c10d")),
            ("a.py", False, ()),
        ),
        (
            ["python3", "-u", "/opt/mnist.py"],
            ["--epochs", "1"],
            ("python", 1, ()),
            ("/opt/mnist.py", False, ("--epochs", "1")),
        ),
        (
            ["python", "-m", "torch.distributed.run", "a.py"],
            None,
            ("torchrun", None, ()),
            ("a.py", False, ()),
        ),
        (
            ["deepspeed", "--no_ssh", "--num_gpus", "2", "a.py", "--x"],
            None,
            ("deepspeed", None, ("--no_ssh", "--num_gpus", "2")),
            ("a.py", False, ("--x",)),
        ),
        (
            ["accelerate", "launch", "--multi_gpu", "--mixed_precision", "bf16", "a.py"],
            None,
            ("accelerate", None, ("--multi_gpu", "--mixed_precision", "bf16")),
            ("a.py", False, ()),
        ),
        (["bash", "-c", "torchrun a.py"], None, ("command", 1, ()), ("bash", False, ("-c", "torchrun a.py"))),
        (["python", "-c", "print()"], None, ("command", 1, ()), ("python", False, ("-c", "print()"))),
    ],
)
def test_commands_are_taken_apart_as_launchers_do(command, args, launcher, program):
    job = job_of({"command": command, "args": args})
    kind, processes, flags = launcher
    script, module, rest = program
    assert job.launcher == LauncherOptions(kind=kind, processes_per_node=processes, args=flags)
    assert job.program == Program(script=script, module=module, args=rest)


@pytest.mark.parametrize("word", ["|", "&", "&&", ">", "a|b", "2>&1"])
def test_an_argument_in_a_list_is_plain_text_whatever_a_shell_would_make_of_it(word):
    job = job_of({"command": ["python", "a.py", "--pattern", word, "x"]})
    assert job.program.args == ("--pattern", word, "x")


WRONG_COMMANDS = {
    ("torchrun", "--nnodes=2"): "names no program after torchrun and its flags",
    ("python", "-m"): "names no module after -m",
    ("python", "-m", "torch.distributed.launch", "a.py"): "write torchrun",
    ("A=1", "python", "a.py"): "put A into the environment",
}


@pytest.mark.parametrize("command", WRONG_COMMANDS)
def test_a_command_that_cannot_run_is_refused(command):
    [problem] = problems_of(manifest({"command": list(command)}))
    assert problem.startswith(f"{SPEC}.Master.template.spec.containers.0.command: ")
    assert WRONG_COMMANDS[command] in problem


def test_variables_of_kubernetes_are_filled_in_where_they_are_known():
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"}]
    job = job_of({"args": ["--b=$(B)", "$$(A)", "$(UNKNOWN)"], "env": env})
    assert job.program.args == ("--b=12", "$(A)", "$(UNKNOWN)")
    assert job.env == {"A": "1", "B": "12"}


def test_a_rank_in_the_arguments_of_a_program_is_refused_with_the_remedy():
    problems = problems_of(manifest({"args": ["--rank=$(RANK)"]}))
    assert "$(RANK) is not filled in here: the program finds it in its environment" in problems[0]


def test_a_rank_that_kubernetes_would_not_fill_in_arrives_as_it_is():
    env = [{"name": "PRICE", "value": "$$(RANK)"}]
    job = job_of({"args": ["--rank=$$(RANK)", "$$$$", "$(PRICE)"], "env": env})
    assert job.program.args == ("--rank=$(RANK)", "$$", "$(RANK)")


# processes


@pytest.mark.parametrize(
    "nproc, gpus, command, processes",
    [
        (None, None, ["torchrun", "a.py"], None),
        ("4", None, ["torchrun", "a.py"], 4),
        ("auto", 8, ["torchrun", "a.py"], 8),
        ("gpu", "2", ["torchrun", "a.py"], 2),
        (None, 8, ["python", "a.py"], 1),
        (2, None, ["python", "a.py"], 2),
    ],
)
def test_processes_per_node(nproc, gpus, command, processes):
    resources = {"limits": {"nvidia.com/gpu": gpus, "cpu": "4", "memory": "8Gi"}} if gpus else {}
    spec = {} if nproc is None else {"nprocPerNode": nproc}
    assert (
        job_of({"command": command, "resources": resources}, **spec).launcher.processes_per_node == processes
    )


# roles


def test_what_differs_between_master_and_workers_goes_to_their_own_environment():
    shared, mine, theirs = (
        {"name": "A", "value": "1"},
        {"name": "B", "value": "main"},
        {"name": "B", "value": "worker"},
    )
    job = job_of({"env": [shared, mine]}, {"env": [shared, theirs, {"name": "C", "value": 3}]})
    assert (job.env, job.main_env, job.worker_env) == ({"A": "1"}, {"B": "main"}, {"B": "worker", "C": "3"})


def test_different_commands_and_images_are_refused_where_they_stand():
    problems = problems_of(manifest({}, {"command": ["torchrun", "other.py"], "image": "other"}))
    where = f"{SPEC}.Worker.template.spec.containers.0"
    assert [problem.split(" differs from")[0] for problem in problems] == [
        f"{where}.image: image",
        f"{where}.command: command",
    ]


def test_workers_alone_are_a_gang():
    mapping = manifest()
    del mapping["spec"]["pytorchReplicaSpecs"]["Master"]
    assert parsing.build(mapping, overrides=ELSEWHERE).nodes == 2


# the rest


def test_policies_become_limits_and_labels_become_tags():
    mapping = manifest(
        pod={
            "terminationGracePeriodSeconds": 45,
            "nodeSelector": {"gpu": "a10"},
            "tolerations": [],
            "hostNetwork": True,
        },
        runPolicy={
            "activeDeadlineSeconds": 3600,
            "backoffLimit": 3,
            "cleanPodPolicy": "None",
            "ttlSecondsAfterFinished": 60,
            "schedulingPolicy": {"minAvailable": 3, "scheduleTimeoutSeconds": 300},
        },
        elasticPolicy={"rdzvBackend": "c10d", "minReplicas": 1, "maxReplicas": 4, "maxRestarts": 2},
    )
    mapping["metadata"] |= {
        "namespace": "ml",
        "labels": {"app.kubernetes.io/name": "gpt"},
        "annotations": {"a": "b"},
    }
    job = parsing.build(mapping, overrides=ELSEWHERE)
    assert (job.limits.max_runtime, job.limits.stop_grace, job.limits.start_timeout) == (3600, 45, 300)
    assert job.tags == {"app-kubernetes-io/name": "gpt"}
    assert job.launcher.args == ("--max-restarts", "2")


VOLUMES = [
    ({"persistentVolumeClaim": {"claimName": "data"}}, "/out", "volumes/data"),
    ({"nfs": {"server": "10.0.0.5", "path": "/export"}}, "/out", "10.0.0.5:/export"),
    ({"emptyDir": {"medium": "Memory"}}, "/dev/shm", None),
]


@pytest.mark.parametrize("volume, path, source", VOLUMES)
def test_volumes_become_mounts(volume, path, source):
    pod = {"volumes": [{"name": "v", **volume}]}
    job = job_of({"volumeMounts": [{"name": "v", "mountPath": path}]}, pod=pod)
    assert job.mounts == ((Mount(source=source, path=path),) if source else ())


CONTAINER = f"{SPEC}.Master.template.spec.containers.0"
POD = f"{SPEC}.Master.template.spec"
REFUSED = [
    (
        {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        {},
        f"{CONTAINER}.env.0.valueFrom: a variable is plain text",
    ),
    ({"envFrom": []}, {}, f"{CONTAINER}.envFrom: cannot be read here"),
    ({"comand": []}, {}, f"{CONTAINER}.comand: unknown key 'comand'; did you mean 'command'?"),
    ({"livenessProbe": {}}, {}, f"{CONTAINER}.livenessProbe: is not asked here"),
    ({"name": "main"}, {}, f"{POD}.containers: one must have the name 'pytorch'"),
    (
        {"volumeMounts": [{"name": "w", "mountPath": "/x"}]},
        {},
        f"{CONTAINER}.volumeMounts.0: there is no volume 'w'",
    ),
    ({}, {"pod": {"initContainers": []}}, f"{POD}.initContainers: is not run here"),
    ({}, {"runPolicy": {"suspend": True}}, "spec.runPolicy.suspend: cannot be done here"),
    (
        {},
        {"runPolicy": {"cleanPodPolicy": "Maybe"}},
        "spec.runPolicy.cleanPodPolicy: must be None or Running or All",
    ),
    (
        {},
        {"nprocPerNode": "many"},
        "spec.nprocPerNode: must be auto or cpu or gpu or a whole number, not 'many'",
    ),
    (
        {},
        {"elasticPolicy": {"minReplicas": 5}},
        "spec.elasticPolicy.minReplicas: 5 excludes the 2 replicas",
    ),
    (
        {"command": None},
        {"elasticPolicy": {"maxRestarts": 1}},
        "spec.elasticPolicy: is for torchrun: name it in",
    ),
    ({"volumeMounts": 3}, {}, f"{CONTAINER}.volumeMounts: must be a list, not 3"),
    ({}, {"elasticPolicy": {"rdzvId": "x"}}, "spec.elasticPolicy.rdzvId: cannot be set here"),
]


@pytest.mark.parametrize("container, spec, problem", REFUSED, ids=[item[2].split(":")[0] for item in REFUSED])
def test_what_cannot_be_had_is_refused_by_path(container, spec, problem):
    assert problems_of(manifest(container, {**container}, **spec))[0].startswith(problem)


def test_other_kinds_of_kubeflow_are_distinguished():
    with pytest.raises(
        JobFileError, match="job files of kind 'TrainJob' are not supported yet; there are ads, pytorchjob"
    ):
        parsing.build({**manifest(), "kind": "TrainJob"})
    with pytest.raises(
        JobFileError, match=r"apiVersion: must be kubeflow.org/v1, not 'kubeflow.org/v1beta1'"
    ):
        parsing.build({**manifest(), "apiVersion": "kubeflow.org/v1beta1"})


def test_numbers_that_jinja_has_filled_in_count():
    text = yaml.safe_dump(
        manifest(runPolicy={"activeDeadlineSeconds": "{{ hours }}"}, nprocPerNode="{{ hours }}")
    )
    filled = {"{{ hours }}": "7"}
    job = parsing.parse(
        text.replace("replicas: 2", "replicas: '{{ hours }}'"), render=filled.__getitem__, overrides=ELSEWHERE
    )
    assert (job.nodes, job.limits.max_runtime, job.launcher.processes_per_node) == (8, 7, 7)


def test_different_numbers_of_gpus_are_refused():
    one, two = ({"resources": {"limits": {"nvidia.com/gpu": count}}} for count in (1, 2))
    [problem] = problems_of(manifest(one, two))
    assert problem.endswith(
        "nvidia.com/gpu: asks for 2 GPUs, and the Master for 1: all nodes are of one shape"
    )


def test_no_manifest_however_wrong_ends_in_anything_but_a_job_or_its_problems():
    seed = random.randrange(10**9)
    print("seed of the wrong manifests:", seed)
    choose = random.Random(seed)
    odd = [None, 3, -1, 1.5, True, "", "x", "{{ x }}", [], {}, [3], [{}], {"a": 1}, [None], {"name": 3}]
    container = {
        "env": [{"name": "A", "value": "1"}],
        "volumeMounts": [{"name": "v", "mountPath": "/x"}],
        "args": ["a"],
    }
    pod = {"volumes": [{"name": "v", "emptyDir": {}}], "terminationGracePeriodSeconds": 3}
    for _ in range(150):
        mapping = manifest(
            container, pod=pod, runPolicy={"schedulingPolicy": {"minAvailable": 3}}, elasticPolicy={}
        )
        holder, key = choose.choice(list(places_in(mapping)))
        holder[key] = choose.choice(odd)
        for overrides in (ELSEWHERE, {}):
            assert found_in(mapping, overrides) != ()


def found_in(mapping, overrides):
    """Return the job, or its problems."""
    try:
        return parsing.build(mapping, overrides=overrides)
    except JobFileError as error:
        return error.problems


def places_in(value):
    """Yield every place in a manifest that can hold another value."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(item, dict | list):
            yield from places_in(item)


# every key of Kubernetes and of the operator, one at a time


MODELS = {
    "spec.template.spec": "V1PodSpec",
    "container": "V1Container",
    "mount": "V1VolumeMount",
    "resources": "V1ResourceRequirements",
    "claim": "V1PersistentVolumeClaimVolumeSource",
    "nfs": "V1NFSVolumeSource",
    "emptyDir": "V1EmptyDirVolumeSource",
    "hostPath": "V1HostPathVolumeSource",
    "volume": "V1Volume",
    "metadata": "V1ObjectMeta",
    "pod metadata": "V1ObjectMeta",
}
OF_THE_OPERATOR = {
    "runPolicy": {
        "activeDeadlineSeconds": 7,
        "backoffLimit": 7,
        "cleanPodPolicy": "All",
        "managedBy": "kubeflow.org/training-operator",
        "suspend": True,
        "ttlSecondsAfterFinished": 7,
    },
    "schedulingPolicy": {
        "minAvailable": 7,
        "minResources": {"cpu": "1"},
        "priorityClass": "x",
        "queue": "x",
        "scheduleTimeoutSeconds": 7,
    },
    "elasticPolicy": {
        "maxReplicas": 7,
        "maxRestarts": 7,
        "metrics": [],
        "minReplicas": 1,
        "nProcPerNode": 7,
        "rdzvBackend": "c10d",
        "rdzvConf": [],
        "rdzvHost": "x",
        "rdzvId": "x",
        "rdzvPort": 7,
        "standalone": True,
    },
    "limits": dict.fromkeys(
        [
            "nvidia.com/mig-3g.20gb",
            "rdma/hca",
            "ephemeral-storage",
            "hugepages-2Mi",
            "cpu",
            "memory",
            "x.io/y",
        ],
        1,
    ),
}
SAID = {
    *("name", "image", "command", "env", "resources", "limits", "volumeMounts", "mountPath"),
    *("containers", "volumes", "persistentVolumeClaim", "claimName", "server", "path"),
}
"""Keys that the manifest has already, with a meaning."""


def _value_of(kind):
    for beginning, value in (
        ("list", [{"name": "x"}]),
        ("dict", {"x": "y"}),
        ("bool", True),
        ("int", 7),
        ("str", "x"),
    ):
        if kind.startswith(beginning):
            return value
    return {"x": "y"}


def _all_keys():
    from kubernetes.client import models

    for place, name in MODELS.items():
        model = getattr(models, name)
        for attribute, key in model.attribute_map.items():
            if key not in SAID:
                yield place, key, _value_of(model.openapi_types[attribute])
    for place, keys in OF_THE_OPERATOR.items():
        for key, value in keys.items():
            yield place, key, value


def _with(place, key=None, value=None):
    """Return a manifest that has a volume of each kind, with one key more in a place."""
    volumes = {
        "claim": {"persistentVolumeClaim": {"claimName": "a"}},
        "nfs": {"nfs": {"server": "10.0.0.1", "path": "/b"}},
        "emptyDir": {"emptyDir": {}},
        "hostPath": {"hostPath": {"path": "/tmp"}},
    }
    paths = {"claim": "/a", "nfs": "/b", "emptyDir": "/dev/shm", "hostPath": "/tmp"}
    mounts = [{"name": name.lower(), "mountPath": path} for name, path in paths.items()]
    found = manifest(
        {"volumeMounts": mounts, "resources": {"limits": {}}, "env": [{"name": "A", "value": "b"}]}
    )
    (master, worker) = found["spec"]["pytorchReplicaSpecs"].values()
    for replica in (master, worker):
        template = replica["template"]
        pod, container = template["spec"], template["spec"]["containers"][0]
        sources = copy.deepcopy(volumes)
        pod["volumes"] = [{"name": name.lower(), **source} for name, source in sources.items()]
        spec, policy = found["spec"], found["spec"].setdefault("runPolicy", {})
        holder = {
            "spec.template.spec": pod,
            "container": container,
            "mount": container["volumeMounts"][0],
            "resources": container["resources"],
            "limits": container["resources"]["limits"],
            "volume": pod["volumes"][0],
            "metadata": found["metadata"],
            "pod metadata": template.setdefault("metadata", {}),
            "runPolicy": policy,
            "schedulingPolicy": policy.setdefault("schedulingPolicy", {}),
            "elasticPolicy": spec.setdefault("elasticPolicy", {}),
        } | {name: next(iter(source.values())) for name, source in sources.items()}
        if key:
            holder[place].setdefault(key, value)
    return found


def _ignored():
    """Return the keys that the document calls ignored, of the manifest and of pods."""
    text = (Path(__file__).parents[3] / "docs" / "job-file.md").read_text().partition("## Kubeflow")[2]
    rows = [line for line in text.splitlines() if line.startswith("|") and "ignored" in line]
    return set(re.findall(r"`([\w-]+)`", " ".join(rows)))


def test_each_key_of_kubernetes_is_translated_or_reported_or_documented_as_ignored():
    ignored, plain = _ignored(), parsing.build(_with("container"), overrides=ELSEWHERE)
    lost, count = [], 0
    for place, key, value in _all_keys():
        count += 1
        try:
            job = parsing.build(_with(place, key, value), overrides=ELSEWHERE)
        except JobFileError:
            continue
        if job == plain and key not in ignored and place != "pod metadata":
            lost.append(f"{place}: {key}")
    assert count > 100
    assert not lost


@pytest.mark.parametrize(
    "place, key, value",
    [
        ("mount", "readOnly", True),
        ("nfs", "readOnly", True),
        ("claim", "readOnly", True),
        ("limits", "nvidia.com/mig-3g.20gb", 1),
        ("limits", "rdma/hca", 8),
        ("limits", "ephemeral-storage", "1Gi"),
        ("schedulingPolicy", "minResources", {"cpu": 1}),
    ],
)
def test_what_only_a_cluster_keeps_is_reported_by_its_path(place, key, value):
    found = problems_of(_with(place, key, value))
    assert any(problem.partition(": ")[0].endswith(key) for problem in found), found


def test_a_volume_that_may_be_written_to_is_accepted():
    job = parsing.build(_with("mount", "readOnly", value=False), overrides=ELSEWHERE)
    assert [mount.path for mount in job.mounts] == ["/a", "/b"]


def test_a_folder_of_the_host_in_another_place_is_reported():
    found = _with("container")
    for replica in found["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["volumes"][-1]["hostPath"]["path"] = "/scratch"
    assert any("is another folder than /tmp" in problem for problem in problems_of(found))


def test_two_kinds_of_gpus_are_reported():
    found = _with("limits", "nvidia.com/gpu", 1)
    for replica in found["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["containers"][0]["resources"]["limits"]["amd.com/gpu"] = 1
    assert any("another kind than nvidia.com/gpu" in problem for problem in problems_of(found))
