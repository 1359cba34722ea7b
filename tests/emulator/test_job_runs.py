"""Job runs: real processes with addresses, environment, logs, exit codes, and an end in every case."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import oci
import pytest
from oci.data_science import models
from oci.exceptions import ServiceError

from tests.emulator.conftest import Cloud, zipped

SHOW = "import json, os, sys; print(json.dumps([sys.argv, dict(os.environ), os.getcwd()]))"
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", sleep])
stray = subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
print(os.getpid(), child.pid, stray.pid)
time.sleep(600)
"""
GRANDCHILD = """
import os, subprocess, sys
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
pids = [subprocess.Popen(sleep, start_new_session=new).pid for new in (False, True)]
print(os.getpid(), *pids)
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def first_message(cloud: Cloud, run_id: str, timeout: float = 30) -> str:
    deadline = time.monotonic() + timeout
    while not (found := cloud.messages(run_id)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found[0]


def test_a_python_program_runs_to_success(cloud):
    run = cloud.run("print('hello')")
    assert (run.lifecycle_state, run.lifecycle_details) == (
        "SUCCEEDED",
        "Job run artifact execution succeeded.",
    )
    assert run.time_accepted <= run.time_started <= run.time_finished
    assert run.display_name.startswith("jobrun20")
    assert run.log_details.log_id == cloud.access.log_id
    assert run.job_infrastructure_configuration_details.shape_name == "VM.Standard.E4.Flex"
    assert cloud.messages(run.id) == ["hello"]


@pytest.mark.parametrize(
    "program,code", [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_exit_code_is_reported(cloud, program, code):
    run = cloud.run(program)
    assert run.lifecycle_state == "FAILED"
    assert run.lifecycle_details == f"Job run artifact execution failed with exit code {code}."


def test_a_zip_runs_its_entrypoint(cloud):
    program = zipped(
        pack__main="import helper, sys; print(helper.WORD, *sys.argv[1:])", pack__helper="WORD = 'hi'"
    )
    run = cloud.run(
        program,
        name="code.zip",
        environment_variables={"JOB_RUN_ENTRYPOINT": "pack/main.py"},
        command_line_arguments="--name 'two words'",
    )
    assert cloud.messages(run.id) == ["hi --name two words"]


@pytest.mark.parametrize(
    "content,entrypoint,told",
    [
        (zipped(main="pass"), None, "JOB_RUN_ENTRYPOINT is required"),
        (zipped(main="pass"), "other.py", "contains no file 'other.py'"),
        (zipped(main="pass"), "../../rpst", "contains no file"),
        (zipped(**{"..__..__evil": "pass"}), "main.py", "unsafe path"),
        (b"no zip", "main.py", "cannot be unpacked"),
    ],
)
def test_a_bad_archive_fails_the_run_in_words(cloud, content, entrypoint, told):
    variables = {"JOB_RUN_ENTRYPOINT": entrypoint} if entrypoint else {}
    run = cloud.run(content, name="code.zip", environment_variables=variables)
    assert run.lifecycle_state == "FAILED"
    assert told in run.lifecycle_details


def test_a_shell_script_runs(cloud):
    run = cloud.run('echo "$0" | grep -o "start.sh"; exit 4', name="start.sh")
    assert run.lifecycle_details.endswith("exit code 4.")
    assert cloud.messages(run.id) == ["start.sh"]


def test_a_run_overrides_its_job(cloud):
    job_id = cloud.job(SHOW, environment_variables={"A": "job", "B": "job"}, command_line_arguments="one")
    override = models.DefaultJobConfigurationDetails(
        environment_variables={"B": "run"}, command_line_arguments="two"
    )
    run = cloud.wait(cloud.start(job_id, job_configuration_override_details=override))
    arguments, variables, _ = json.loads(cloud.messages(run.id)[0])
    assert (variables["A"], variables["B"], arguments[1:]) == ("job", "run", ["two"])
    assert run.job_configuration_override_details == override


def test_limits_hold_for_job_and_run_together(cloud):
    job_id = cloud.job("pass", environment_variables={"A": "x" * 15_000})
    override = models.DefaultJobConfigurationDetails(environment_variables={"B": "x" * 15_000})
    with pytest.raises(ServiceError) as caught:
        cloud.start(job_id, job_configuration_override_details=override)
    assert caught.value.status == 400


def test_a_node_has_the_services_variables_and_not_ours(cloud, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_SHELL", "x")
    run = cloud.run(SHOW)
    _, variables, folder = json.loads(cloud.messages(run.id)[0])
    expected = {
        "TENANCY_OCID": cloud.access.tenancy_id,
        "PROJECT_OCID": cloud.access.project_id,
        "PROJECT_COMPARTMENT_OCID": cloud.access.compartment_id,
        "JOB_OCID": run.job_id,
        "JOB_COMPARTMENT_OCID": cloud.access.compartment_id,
        "JOB_ARTIFACT_FILE_NAME": "program.py",
        "JOB_RUN_OCID": run.id,
        "JOB_RUN_COMPARTMENT_OCID": cloud.access.compartment_id,
        "OCI_RESOURCE_PRINCIPAL_VERSION": "2.2",
    }
    assert expected.items() <= variables.items()
    assert "SECRET_OF_THE_SHELL" not in variables
    assert folder.startswith(variables["HOME"])


def test_live_nodes_have_addresses_of_their_own(cloud):
    program = """
import os, socket, time
server = socket.create_server((os.environ["FQDN"], 29511))
print(os.environ["FQDN"])
time.sleep(1)
"""
    job_id = cloud.job(program)
    runs = [cloud.start(job_id) for _ in range(3)]
    ended = [cloud.wait(run_id) for run_id in runs]
    assert [run.lifecycle_state for run in ended] == ["SUCCEEDED"] * 3
    addresses = {cloud.messages(run_id)[0] for run_id in runs}
    assert len(addresses) == 3
    assert all(address.startswith("127.0.") for address in addresses)


def test_output_is_logged_in_order(cloud):
    program = """
import sys
for number in range(300):
    print(number, file=sys.stderr if number % 3 == 0 else sys.stdout)
"""
    run = cloud.run(program)
    entries = cloud.log(run.id)
    kinds = ["stdout", "stderr"]
    for kind in kinds:
        numbers = [int(each["data"]["message"]) for each in entries if each["type"].endswith(kind)]
        assert numbers == sorted(numbers)
    assert sorted(int(each["data"]["message"]) for each in entries) == list(range(300))
    assert {each["type"] for each in entries} == {
        f"com.oraclecloud.datascience.jobrun.{kind}" for kind in kinds
    }
    assert {each["source"] for each in entries} == {run.id}
    assert len({each["id"] for each in entries}) == 300
    assert [each["time"] for each in entries] == sorted(each["time"] for each in entries)


def test_much_output_is_taken_fast(cloud):
    run_id = cloud.start(cloud.job("for number in range(100_000): print('line', number)"))
    run = cloud.wait(run_id)
    assert (run.time_finished - run.time_started).total_seconds() < 20
    assert [each["data"]["message"] for each in cloud.last_entries(run.id, 3)] == [
        "line 99999",
        "line 99998",
        "line 99997",
    ]


def test_a_log_is_read_in_pages(cloud):
    run = cloud.run("for number in range(2500): print(number)")
    assert [int(message) for message in cloud.messages(run.id)] == list(range(2500))
    newest_first = cloud.log(run.id, order="DESC", limit=700)
    assert [int(each["data"]["message"]) for each in newest_first] == list(range(2499, -1, -1))


def test_long_lines_and_odd_bytes_are_logged_within_bounds(cloud):
    program = r"""
import sys
sys.stdout.buffer.write(b"x" * 200_000 + b"\nshort\r\n\xff\n" + "no newline \u00e9".encode())
"""
    run = cloud.run(program)
    assert cloud.messages(run.id) == ["x" * 10_000, "short", "\ufffd", "no newline é"]


def test_a_job_without_logging_leaves_no_log(cloud):
    run = cloud.run("print('unheard')", logging=False)
    assert run.lifecycle_state == "SUCCEEDED"
    assert run.log_details is None
    assert cloud.messages(run.id) == []


def test_a_log_can_be_made_for_each_run(cloud):
    job = cloud.job_details()
    job.job_log_configuration_details = models.JobLogConfigurationDetails(
        enable_logging=True, enable_auto_log_creation=True, log_group_id=cloud.access.log_group_id
    )
    job_id = cloud.jobs.create_job(job).data.id
    cloud.jobs.create_job_artifact(job_id, b"print('x')", content_disposition="attachment; filename=a.py")
    run = cloud.wait(cloud.start(job_id))
    assert run.log_details.log_id != cloud.access.log_id
    client = cloud.client(oci.logging.LoggingManagementClient)
    log = client.get_log(run.log_details.log_group_id, run.log_details.log_id).data
    assert log.display_name == run.id


def test_a_run_makes_no_log_in_a_group_that_is_gone(cloud):
    logging = cloud.client(oci.logging.LoggingManagementClient)
    logging.create_log_group(
        oci.logging.models.CreateLogGroupDetails(compartment_id=cloud.access.compartment_id, display_name="g")
    )
    group = logging.list_log_groups(cloud.access.compartment_id, display_name="g").data[0]
    details = cloud.job_details()
    details.job_log_configuration_details = models.JobLogConfigurationDetails(
        enable_logging=True, enable_auto_log_creation=True, log_group_id=group.id
    )
    job_id = cloud.jobs.create_job(details).data.id
    cloud.jobs.create_job_artifact(job_id, b"", content_disposition="attachment; filename=a.py")
    logging.delete_log_group(group.id)
    with pytest.raises(ServiceError) as caught:
        cloud.start(job_id)
    assert caught.value.status == 404
    assert cloud.search(f'SEARCH "{cloud.access.compartment_id}"') == []


def test_a_canceled_node_may_end_by_itself(cloud):
    program = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("bye"), sys.exit(0)))
print("ready")
time.sleep(600)
"""
    run_id = cloud.start(cloud.job(program))
    first_message(cloud, run_id)
    assert cloud.jobs.cancel_job_run(run_id).status == 204
    run = cloud.wait(run_id)
    assert run.lifecycle_state == "CANCELED"
    assert cloud.messages(run_id) == ["ready", "bye"]


def test_a_node_that_ignores_sigterm_is_killed_with_all_its_offspring(cloud):
    run_id = cloud.start(cloud.job(STUBBORN))
    pids = [int(pid) for pid in first_message(cloud, run_id).split()]
    assert all(map(is_alive, pids))
    cloud.jobs.cancel_job_run(run_id)
    assert cloud.jobs.get_job_run(run_id).data.lifecycle_state == "CANCELING"
    cloud.wait(run_id, "CANCELED")
    assert not any(map(is_alive, pids))


def test_a_node_that_ends_leaves_no_process(cloud):
    run = cloud.run(GRANDCHILD)
    assert run.lifecycle_state == "SUCCEEDED"
    assert not any(is_alive(int(pid)) for pid in cloud.messages(run.id)[0].split())


def test_a_node_whose_first_process_is_killed_has_failed(cloud):
    run_id = cloud.start(cloud.job("import os, time; print(os.getppid()); time.sleep(600)"))
    os.kill(int(first_message(cloud, run_id)), signal.SIGKILL)
    run = cloud.wait(run_id)
    assert run.lifecycle_details.endswith("exit code 137.")


def test_only_live_runs_can_be_canceled_and_only_ended_ones_deleted(cloud):
    run_id = cloud.start(cloud.job("import time; time.sleep(600)"))
    for call in (cloud.jobs.delete_job_run,):
        with pytest.raises(ServiceError) as caught:
            call(run_id)
        assert (caught.value.status, caught.value.code) == (409, "IncorrectState")
    cloud.jobs.cancel_job_run(run_id)
    cloud.wait(run_id, "CANCELED")
    with pytest.raises(ServiceError) as caught:
        cloud.jobs.cancel_job_run(run_id)
    assert (caught.value.status, caught.value.code) == (409, "IncorrectState")
    cloud.jobs.delete_job_run(run_id)
    assert cloud.jobs.get_job_run(run_id).data.lifecycle_state == "DELETED"


def test_a_run_is_stopped_when_its_time_is_over(cloud):
    run = cloud.run("import time; time.sleep(600)", maximum_runtime_in_minutes=1)
    assert run.lifecycle_state == "FAILED"
    assert "maximum runtime of 1 minutes" in run.lifecycle_details


def test_the_same_retry_token_runs_once(cloud):
    job_id = cloud.job("pass")
    with ThreadPoolExecutor(8) as pool:
        tokens = ["a", "b"] * 4
        calls = [
            pool.submit(cloud.jobs.create_job_run, cloud.run_details(job_id), opc_retry_token=token)
            for token in tokens
        ]
        ids = {call.result().data.id for call in calls}
    assert len(ids) == 2
    assert len(cloud.jobs.list_job_runs(cloud.access.compartment_id).data) == 2
    with pytest.raises(ServiceError) as caught:
        cloud.jobs.create_job_run(cloud.run_details(job_id, display_name="x"), opc_retry_token="a")
    assert (caught.value.status, caught.value.code) == (409, "InvalidatedRetryToken")


def test_many_runs_at_once_all_come_to_their_end(cloud):
    job_id = cloud.job("import os, sys; sys.exit(int(os.environ['CODE']))")
    runs = {}
    for number in range(24):
        override = models.DefaultJobConfigurationDetails(environment_variables={"CODE": str(number % 2)})
        run_id = cloud.start(
            job_id, job_configuration_override_details=override, display_name=f"n{number:02}"
        )
        runs[run_id] = number
    for run_id, number in runs.items():
        assert cloud.wait(run_id).lifecycle_state == ("FAILED" if number % 2 else "SUCCEEDED")
    pages = oci.pagination.list_call_get_all_results
    found = pages(
        cloud.jobs.list_job_runs,
        cloud.access.compartment_id,
        job_id=job_id,
        lifecycle_state="FAILED",
        sort_by="displayName",
        sort_order="ASC",
        limit=5,
    ).data
    assert [run.display_name for run in found] == [f"n{number:02}" for number in range(1, 24, 2)]
    with pytest.raises(ServiceError):
        cloud.jobs.list_job_runs(cloud.access.compartment_id, limit=101)


def test_a_node_is_its_own_resource_principal(cloud):
    program = """
import os, oci
signer = oci.auth.signers.get_resource_principals_signer()
endpoint = os.environ["OCI_CLI_ENDPOINT"]
client = oci.data_science.DataScienceClient({}, signer=signer, service_endpoint=endpoint)
run = client.get_job_run(os.environ["JOB_RUN_OCID"]).data
print(run.id, run.lifecycle_state, signer.tenancy_id)
import fsspec
with fsspec.open(os.environ["TARGET"], "wb") as file:
    file.write(b"from the node")
"""
    target = f"oci://{cloud.access.bucket}@{cloud.access.namespace}/from-node"
    run = cloud.run(program, environment_variables={"TARGET": target})
    assert cloud.messages(run.id) == [f"{run.id} IN_PROGRESS {cloud.access.tenancy_id}"]
    assert cloud.objects.get_object(*cloud.place, "from-node").data.content == b"from the node"


def container_job(cloud: Cloud, **container) -> str:
    details = cloud.job_details()
    details.job_environment_configuration_details = models.OcirContainerJobEnvironmentConfigurationDetails(
        image="iad.ocir.io/ns/image:1", **container
    )
    return str(cloud.jobs.create_job(details).data.id)


def test_a_container_runs_its_command_as_a_process(cloud):
    job_id = container_job(cloud, entrypoint=["python", "-c"], cmd=["print('in the box')"])
    run = cloud.wait(cloud.start(job_id))
    assert cloud.messages(run.id) == ["in the box"]


def test_a_container_without_command_fails_in_words(cloud):
    run = cloud.wait(cloud.start(container_job(cloud)))
    assert run.lifecycle_state == "FAILED"
    assert "entrypoint or cmd" in run.lifecycle_details


def test_a_job_without_artifact_cannot_run(cloud):
    job_id = cloud.jobs.create_job(cloud.job_details()).data.id
    with pytest.raises(ServiceError) as caught:
        cloud.start(job_id)
    assert (caught.value.status, caught.value.code) == (409, "IncorrectState")


def test_a_program_that_does_not_exist_fails_as_in_a_shell(cloud):
    run = cloud.wait(cloud.start(container_job(cloud, entrypoint=["no-such-program"])))
    assert run.lifecycle_details.endswith("exit code 127.")
    assert cloud.messages(run.id) == ["no-such-program: No such file or directory"]


def test_a_run_can_be_renamed_and_tagged(cloud):
    run = cloud.run("pass")
    change = models.UpdateJobRunDetails(display_name="new", freeform_tags={"a": "b"})
    changed = cloud.jobs.update_job_run(run.id, change).data
    assert (changed.display_name, changed.freeform_tags) == ("new", {"a": "b"})


def test_a_nodes_folder_is_gone_after_it(cloud, emulator):
    cloud.run("open('left-behind', 'w')")
    deadline = time.monotonic() + 5
    while list((emulator.folder / "runs").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


DEEP = """
import os
for _ in range(1200):
    os.mkdir("d")
    os.chdir("d")
"""


def test_folders_nested_deeper_than_a_stack_are_gone_with_their_node(cloud, emulator):
    run = cloud.run(DEEP)
    assert run.lifecycle_state == "SUCCEEDED", run.lifecycle_details
    deadline = time.monotonic() + 30
    while (emulator.folder / "runs" / run.id.rpartition(".")[2]).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
