"""Multi-node job runs: one run, many nodes that find one another, groups that decide how it ends."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from oci.data_science import models
from oci.exceptions import ServiceError

from tests.emulator.conftest import Cloud, zipped
from tests.emulator.test_job_runs import STUBBORN, is_alive

MEET = """
import json, os, socket, sys, time
rank, size = int(os.environ["NODE_RANK"]), int(os.environ["INITIAL_CLUSTER_SIZE"])
seen = []
while not seen or len(seen[-1]) < size:
    with open(os.environ["CLUSTER_NODES_METADATA_FILE"]) as file:
        nodes = json.load(file)
    if not seen or nodes != seen[-1]:
        seen.append(nodes)
    time.sleep(0.01)
address = {node["Rank"]: node["IPAddress"] for node in nodes}
if rank == 0:
    with socket.create_server((address[0], 28761)) as server:
        for _ in range(size - 1):
            server.accept()[0].sendall(b"hi")
else:
    for _ in range(1000):
        try:
            with socket.create_connection((address[0], 28761)) as client:
                assert client.recv(2) == b"hi"
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
print(json.dumps([rank, size, os.environ["JOB_RUN_OCID"], os.environ["FQDN"], [len(each) for each in seen],
                  sys.argv[1:], os.environ.get("WHO")]))
"""
BY_RANK = (
    "import os, time; time.sleep({wait}); raise SystemExit({{{codes}}}.get(int(os.environ['NODE_RANK']), 0))"
)


def group(name: str = "node-group", replicas: int = 2, **more) -> models.JobNodeGroupConfigurationDetails:
    configuration = models.DefaultJobConfigurationDetails(
        environment_variables=more.pop("env", {}),
        command_line_arguments=more.pop("arguments", None),
        startup_probe_details=more.pop("probe", None),
    )
    return models.JobNodeGroupConfigurationDetails(
        name=name,
        replicas=replicas,
        job_infrastructure_configuration_details=models.MultiNodeJobInfrastructureConfigurationDetails(
            shape_name="VM.GPU.A10.1", block_storage_size_in_gbs=100
        ),
        job_configuration_details=configuration,
        **more,
    )


def multi_node_details(cloud: Cloud, *groups, order="IN_PARALLEL", **more) -> models.CreateJobDetails:
    details = cloud.job_details()
    details.job_configuration_details = details.job_infrastructure_configuration_details = None
    details.job_node_configuration_details = models.MultiNodeJobNodeConfigurationDetails(
        startup_order=order,
        job_network_configuration=models.JobCustomNetworkConfiguration(subnet_id=cloud.access.subnet_id),
        job_node_group_configuration_details_list=list(groups) or [group()],
        **more,
    )
    return details


def multi_node_job(cloud: Cloud, program: str, *groups, **more) -> str:
    job_id = cloud.jobs.create_job(multi_node_details(cloud, *groups, **more)).data.id
    cloud.jobs.create_job_artifact(job_id, program.encode(), content_disposition="attachment; filename=a.py")
    return str(job_id)


def by_rank(codes: dict[int, int], wait: str = "0") -> str:
    inside = ", ".join(f"{rank}: {code}" for rank, code in codes.items())
    return BY_RANK.format(wait=wait, codes=inside)


def states(run) -> dict[str, str]:
    return {each.name: each.lifecycle_state for each in run.node_group_details_list}


def refusal(call, *arguments, **more) -> tuple[int, str]:
    with pytest.raises(ServiceError) as caught:
        call(*arguments, **more)
    return caught.value.status, caught.value.code


def test_all_nodes_of_all_groups_meet(cloud):
    job_id = multi_node_job(
        cloud,
        MEET,
        group("head", 1, env={"WHO": "head"}),
        group("workers", 2, env={"WHO": "worker"}, arguments="--fast 1"),
    )
    run_id = cloud.start(job_id)
    run = cloud.wait(run_id)
    assert (run.lifecycle_state, run.lifecycle_details) == (
        "SUCCEEDED",
        "Job run artifact execution succeeded.",
    )
    assert states(run) == {"head": "DELETED", "workers": "DELETED"}
    told = sorted(json.loads(message) for message in cloud.messages(run_id))
    assert [each[0] for each in told] == [0, 1, 2]
    assert {(each[1], each[2]) for each in told} == {(3, run_id)}
    assert len({each[3] for each in told}) == 3
    assert [each[5:] for each in told] == [
        [[], "head"],
        [["--fast", "1"], "worker"],
        [["--fast", "1"], "worker"],
    ]


def test_the_nodes_file_grows_as_nodes_come_up(cloud):
    cloud.control("POST", "/nodes", rank=1, delay_s=3)
    run = cloud.wait(cloud.start(multi_node_job(cloud, MEET)))
    told = {each[0]: each[4] for each in map(json.loads, cloud.messages(run.id))}
    assert told == {0: [1, 2], 1: [2]}


def test_a_log_line_names_its_node(cloud):
    run = cloud.wait(cloud.start(multi_node_job(cloud, "import os; print(os.environ['NODE_RANK'])")))
    entries = cloud.log(run.id)
    assert {entry["subject"]: entry["data"]["message"] for entry in entries} == {"node-0": "0", "node-1": "1"}
    assert len({entry["id"] for entry in entries}) == 2
    query = f"SEARCH \"{cloud.log_scope}\" | WHERE source = '*{run.id}' AND subject = 'node-1'"
    assert [entry["data"]["message"] for entry in cloud.search(query)] == ["1"]


def test_a_job_shows_its_layout(cloud):
    details = multi_node_details(cloud, maximum_runtime_in_minutes=7)
    job = cloud.jobs.create_job(details).data
    shown = job.job_node_configuration_details
    assert shown == details.job_node_configuration_details
    assert job.job_configuration_details is None
    assert job.job_infrastructure_configuration_details is None


def test_one_failed_node_ends_all(cloud):
    program = by_rank({1: 3}, wait="600 if os.environ['NODE_RANK'] == '0' else 0")
    run = cloud.wait(cloud.start(multi_node_job(cloud, program)))
    assert run.lifecycle_state == "FAILED"
    assert run.lifecycle_details == (
        "Job run artifact execution failed with exit code 3 on node 1 of node group node-group."
    )
    assert states(run) == {"node-group": "FAILED"}
    assert run.node_group_details_list[0].lifecycle_details == run.lifecycle_details


def test_a_group_may_do_with_fewer_nodes(cloud):
    groups = [group("a", 3, minimum_success_replicas=2), group("b", 1)]
    run = cloud.wait(cloud.start(multi_node_job(cloud, by_rank({1: 1}), *groups)))
    assert run.lifecycle_state == "SUCCEEDED"
    run = cloud.wait(cloud.start(multi_node_job(cloud, by_rank({1: 1, 2: 1}), *groups)))
    assert (run.lifecycle_state, states(run)["a"]) == ("FAILED", "FAILED")


def test_nodes_that_are_not_needed_any_more_are_ended(cloud):
    program = by_rank({}, wait="600 if os.environ['NODE_RANK'] == '1' else 0")
    run = cloud.wait(cloud.start(multi_node_job(cloud, program, group(minimum_success_replicas=1))))
    assert run.lifecycle_state == "SUCCEEDED"


def test_groups_start_in_order(cloud, tmp_path):
    program = f"""
import os, pathlib, time
folder = pathlib.Path({str(tmp_path)!r})
if os.environ["NODE_RANK"] == "0":
    time.sleep(0.5)
    (folder / "healthy").touch()
    time.sleep(600)
assert (folder / "healthy").exists()
"""
    probe = models.JobExecProbeDetails(
        command=["test", "-e", str(tmp_path / "healthy")], period_in_seconds=1, failure_threshold=5
    )
    groups = [group("head", 1, probe=probe), group("worker", 2, minimum_success_replicas=2)]
    run_id = cloud.start(multi_node_job(cloud, program, *groups, order="IN_ORDER"))
    run = cloud.wait(run_id, "IN_PROGRESS")
    assert states(run) == {"head": "ACTIVE", "worker": "CREATING"}
    deadline = time.monotonic() + 10
    while states(run := cloud.jobs.get_job_run(run_id).data)["worker"] == "CREATING":
        assert time.monotonic() < deadline
        assert run.lifecycle_state == "IN_PROGRESS"
        time.sleep(0.05)
    cloud.jobs.cancel_job_run(run_id)
    assert cloud.wait(run_id).lifecycle_state == "CANCELED"
    assert (tmp_path / "healthy").exists()


def test_a_probe_that_never_succeeds_fails_the_run(cloud):
    probe = models.JobExecProbeDetails(command=["false"], period_in_seconds=1, failure_threshold=1)
    groups = [group("head", 1, probe=probe), group("worker", 1)]
    job_id = multi_node_job(cloud, "import time; time.sleep(600)", *groups, order="IN_ORDER")
    run = cloud.wait(cloud.start(job_id))
    assert "startup probe" in run.lifecycle_details
    assert states(run) == {"head": "FAILED", "worker": "DELETED"}


def test_cancel_ends_the_nodes_and_their_offspring(cloud):
    run_id = cloud.start(multi_node_job(cloud, STUBBORN))
    deadline = time.monotonic() + 10
    while len(messages := cloud.messages(run_id)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pids = [int(pid) for message in messages for pid in message.split()]
    cloud.jobs.cancel_job_run(run_id)
    run = cloud.jobs.get_job_run(run_id).data
    assert (run.lifecycle_state, states(run)) == ("CANCELING", {"node-group": "DELETING"})
    run = cloud.wait(run_id)
    assert (run.lifecycle_state, states(run)) == ("CANCELED", {"node-group": "DELETED"})
    assert len(pids) == 6
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize("where", ["nodes", "group"])
def test_the_maximum_runtime_is_that_of_all_nodes(cloud, where):
    own = group()
    if where == "group":
        own.job_configuration_details.maximum_runtime_in_minutes = 1
    more = {"maximum_runtime_in_minutes": 1} if where == "nodes" else {}
    run = cloud.wait(cloud.start(multi_node_job(cloud, "import time; time.sleep(600)", own, **more)))
    assert (run.lifecycle_state, "maximum runtime of 1 minutes" in run.lifecycle_details) == ("FAILED", True)


def test_a_run_overrides_the_layout_of_its_job(cloud):
    job_id = multi_node_job(cloud, MEET, group(env={"WHO": "job", "OTHER": "x"}))
    override = models.MultiNodeJobNodeConfigurationDetails(
        job_node_group_configuration_details_list=[
            models.JobNodeGroupConfigurationDetails(
                name="node-group",
                replicas=3,
                job_configuration_details=models.DefaultJobConfigurationDetails(
                    environment_variables={"WHO": "run"}
                ),
            )
        ]
    )
    run = cloud.wait(cloud.start(job_id, job_node_configuration_override_details=override))
    told = [json.loads(message) for message in cloud.messages(run.id)]
    assert {(each[1], each[6]) for each in told} == {(3, "run")}
    assert run.job_node_configuration_override_details == override


def test_a_run_overrides_as_ads_writes_it(cloud):
    job_id = multi_node_job(cloud, MEET, group(env={"WHO": "job"}))
    configuration = {"jobType": "DEFAULT", "environmentVariables": {"WHO": "ads"}}
    named = {"name": "node-group", "JobConfigurationDetails": configuration}
    override = {"jobNodeType": "MULTI_NODE", "jobNodeGroupConfigurationDetailsList": [named]}
    run = cloud.wait(cloud.start(job_id, job_node_configuration_override_details=override))
    assert [json.loads(message)[6] for message in cloud.messages(run.id)] == ["ads", "ads"]


def test_a_run_fits_its_job_or_is_refused(cloud):
    job_id = multi_node_job(cloud, "pass")
    other = models.MultiNodeJobNodeConfigurationDetails(
        job_node_group_configuration_details_list=[models.JobNodeGroupConfigurationDetails(name="other")]
    )
    assert refusal(cloud.start, job_id, job_node_configuration_override_details=other)[0] == 400
    variables = models.DefaultJobConfigurationDetails(environment_variables={"A": "1"})
    assert refusal(cloud.start, job_id, job_configuration_override_details=variables)[0] == 400
    nodes = models.MultiNodeJobNodeConfigurationDetails()
    single = cloud.job("pass")
    assert refusal(cloud.start, single, job_node_configuration_override_details=nodes)[0] == 400


def test_a_job_says_what_it_runs_once(cloud):
    details = multi_node_details(cloud)
    details.job_configuration_details = models.DefaultJobConfigurationDetails()
    assert refusal(cloud.jobs.create_job, details) == (400, "InvalidParameter")
    details.job_configuration_details = models.EmptyJobConfigurationDetails()
    details.job_infrastructure_configuration_details = models.EmptyJobInfrastructureConfigurationDetails()
    assert cloud.jobs.create_job(details).status == 200


@pytest.mark.parametrize(
    "change",
    [
        lambda nodes: setattr(nodes, "job_node_group_configuration_details_list", []),
        lambda nodes: nodes.job_node_group_configuration_details_list.append(group()),
        lambda nodes: setattr(nodes.job_node_group_configuration_details_list[0], "replicas", 0),
        lambda nodes: setattr(
            nodes.job_node_group_configuration_details_list[0], "minimum_success_replicas", 3
        ),
        lambda nodes: setattr(
            nodes.job_node_group_configuration_details_list[0],
            "job_infrastructure_configuration_details",
            models.StandaloneJobInfrastructureConfigurationDetails(
                shape_name="VM.GPU.A10.1", block_storage_size_in_gbs=50, subnet_id="x"
            ),
        ),
        lambda nodes: setattr(nodes, "job_network_configuration", models.JobCustomNetworkConfiguration()),
        lambda nodes: setattr(nodes, "maximum_runtime_in_minutes", 0),
        lambda nodes: setattr(nodes.job_node_group_configuration_details_list[0], "replicas", 10_000),
    ],
    ids=[
        "no group",
        "two of a name",
        "no replicas",
        "minimum",
        "standalone",
        "no subnet",
        "no time",
        "too many",
    ],
)
def test_a_layout_that_makes_no_sense_is_refused(cloud, change):
    details = multi_node_details(cloud)
    change(details.job_node_configuration_details)
    assert refusal(cloud.jobs.create_job, details)[0] == 400


def test_a_subnet_of_the_layout_must_exist(cloud):
    details = multi_node_details(cloud)
    details.job_node_configuration_details.job_network_configuration.subnet_id = "ocid1.subnet.oc1.iad.aaaa"
    assert refusal(cloud.jobs.create_job, details) == (404, "NotAuthorizedOrNotFound")


def test_each_node_unpacks_its_own_artifact(cloud):
    details = multi_node_details(cloud, group(env={"JOB_RUN_ENTRYPOINT": "pack/main.py"}))
    job_id = cloud.jobs.create_job(details).data.id
    program = zipped(pack__main="import os; open('mine', 'x').close(); print(os.getcwd())")
    cloud.jobs.create_job_artifact(job_id, program, content_disposition="attachment; filename=a.zip")
    run = cloud.wait(cloud.start(job_id))
    assert run.lifecycle_state == "SUCCEEDED"
    assert len({Path(message) for message in cloud.messages(run.id)}) == 2
