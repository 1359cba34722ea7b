"""The emulator as a process: ready file, signals, restarts, refusals; no process is ever left."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import oci
import pytest

from airflow_provider_ocidist.emulator.access import Access
from airflow_provider_ocidist.emulator.errors import StartupError
from airflow_provider_ocidist.emulator.listening import check_host, is_own_user, listen
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import OPTIONS, Cloud
from tests.emulator.test_job_runs import STUBBORN, first_message, is_alive
from tests.http_client import http

COMMAND = [sys.executable, "-m", "airflow_provider_ocidist.emulator"]


@contextmanager
def standing_alone(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], Access]]:
    """Run the emulator as a process; kill it if the test has not ended it."""
    ready = folder.with_suffix(".ready")
    arguments = ["--port", "0", "--state", str(folder), "--ready", str(ready), "--grace", "0.5", *options]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield process, wait_ready(process, ready)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        ready.unlink(missing_ok=True)


def wait_ready(process: subprocess.Popen[str], ready: Path) -> Access:
    deadline = time.monotonic() + 20
    while not ready.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return Access(**json.loads(ready.read_text()))


def refused(*options: str) -> str:
    """Return what the emulator says when it refuses to start."""
    ended = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    return ended.stderr


def test_all_that_the_ready_file_names_exists(folder):
    with standing_alone(folder) as (process, access):
        of_others = {"kubeconfig", "kubernetes_namespace", "runai"}
        assert all(value for name, value in dataclasses.asdict(access).items() if name not in of_others)
        cloud = Cloud.of(access)
        assert cloud.objects.get_namespace().data == access.namespace
        assert cloud.objects.get_bucket(*cloud.place).status == 200
        assert cloud.jobs.get_project(access.project_id).status == 200
        identity = cloud.client(oci.identity.IdentityClient)
        assert identity.get_compartment(access.compartment_id).status == 200
        assert identity.get_tenancy(access.tenancy_id).status == 200
        assert cloud.client(oci.core.VirtualNetworkClient).get_subnet(access.subnet_id).status == 200
        log = cloud.client(oci.logging.LoggingManagementClient).get_log(access.log_group_id, access.log_id)
        assert log.status == 200
        assert cloud.client(oci.secrets.SecretsClient).get_secret_bundle(access.secret_id).status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        printed = process.stdout.read()
    for told in (
        access.url,
        "service_endpoint=",
        f"export HTTPS_PROXY={access.proxy_url}",
        f"export REQUESTS_CA_BUNDLE={access.ca_file}",
        "FSSPEC_OCI=",
        "OCI_CLI_ENDPOINT=",
        "--seed ",
        "AIRFLOW_CONN_OCI_DEFAULT=",
    ):
        assert told in printed


@pytest.mark.parametrize("number,code", [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_its_end_is_the_end_of_all_nodes(folder, number, code):
    with standing_alone(folder, "--quiet") as (process, access):
        cloud = Cloud.of(access)
        run_id = cloud.start(cloud.job(STUBBORN))
        pids = [int(pid) for pid in first_message(cloud, run_id).split()]
        process.send_signal(number)
        assert process.wait(30) == code
        deadline = time.monotonic() + 5
        while any(map(is_alive, pids)):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_restart_keeps_everything_but_live_nodes(folder):
    with Emulator(state=folder, options=OPTIONS) as emulator:
        before = Cloud.of(emulator.access)
        before.objects.put_object(*before.place, "o", b"kept", opc_meta={"a": "b"})
        ended = before.run("print('said')")
        details = oci.object_storage.models.CreateMultipartUploadDetails(object="big")
        upload_id = before.objects.create_multipart_upload(*before.place, details).data.upload_id
        part = before.objects.upload_part(*before.place, "big", upload_id, 1, b"part").headers["etag"]
        live = before.start(ended.job_id, display_name="live")
        before.control("POST", "/nodes", never_starts=True)
        waiting = before.jobs.create_job_run(before.run_details(ended.job_id), opc_retry_token="t").data.id
    with Emulator(state=folder, options=OPTIONS) as emulator:
        after = Cloud.of(emulator.access)
        same = dataclasses.replace(after.access, url="", proxy_url="")
        assert same == dataclasses.replace(before.access, url="", proxy_url="")
        got = after.objects.get_object(*after.place, "o")
        assert (got.data.content, got.headers["opc-meta-a"]) == (b"kept", "b")
        assert after.jobs.get_job_run(ended.id).data == ended
        assert after.messages(ended.id) == ["said"]
        lost = after.jobs.get_job_run(waiting).data
        assert (lost.lifecycle_state, lost.time_finished is None) == ("FAILED", False)
        assert "emulator stopped" in lost.lifecycle_details
        assert after.jobs.get_job_run(live).data.lifecycle_state in ("FAILED", "SUCCEEDED")
        again = after.jobs.create_job_run(after.run_details(ended.job_id), opc_retry_token="t").data.id
        assert again == waiting
        assert after.wait(after.start(ended.job_id)).lifecycle_state == "SUCCEEDED"
        commit = oci.object_storage.models.CommitMultipartUploadDetails(
            parts_to_commit=[
                oci.object_storage.models.CommitMultipartUploadPartDetails(part_num=1, etag=part)
            ]
        )
        after.objects.commit_multipart_upload(*after.place, "big", upload_id, commit)
        assert after.objects.get_object(*after.place, "big").data.content == b"part"


def test_small_answers_are_not_held_back():
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_folder_of_its_own_is_removed_at_the_end():
    with Emulator() as emulator:
        folder = emulator.folder
        assert folder.exists()
    assert not folder.exists()


def test_a_port_in_use_is_reported_in_a_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "in use" in refused("--port", port)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])
def test_it_serves_this_machine_only_unless_asked_twice(host):
    assert f"add --host {host} --expose" in refused("--host", host)


def test_others_have_to_sign():
    assert "--no-signatures" in refused("--host", "192.0.2.1", "--expose", "--no-signatures")


def test_others_may_come_when_that_was_said_twice():
    check_host("192.0.2.1", expose=True, verify_signatures=True)
    with pytest.raises(StartupError, match="Cannot assign"):  # said twice, but that is no address of ours
        Emulator(host="192.0.2.1", expose=True).start()


def test_the_control_api_knows_the_programs_of_its_own_user():
    with listen("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client:
            server, _ = listener.accept()
            with server:
                ends = {"client": client.getsockname(), "server": client.getpeername()}
                assert is_own_user(ends)
                assert not is_own_user({**ends, "client": ("127.0.0.1", 1)})


@pytest.mark.parametrize("peer", [("192.0.2.1", 1), ("::ffff:192.0.2.1", 1), None])
def test_the_control_api_is_closed_to_other_machines(peer):
    assert not is_own_user({"client": peer, "server": ("127.0.0.1", 2)})


def test_a_folder_that_cannot_be_written_is_reported_in_a_line(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be used" in refused("--state", str(tmp_path / "file" / "state"))


def test_a_ready_file_that_cannot_be_written_is_reported_in_a_line(tmp_path):
    assert "ready file" in refused("--quiet", "--ready", str(tmp_path / "none" / "ready"))


def test_a_folder_of_another_version_is_reported_in_a_line(folder):
    with Emulator(state=folder):
        pass
    with closing(sqlite3.connect(folder / "state.sqlite3")) as store:
        store.execute("PRAGMA user_version=0")
    assert "remove it, or give another folder" in refused("--state", str(folder))


def test_secrets_are_the_users_alone_in_a_folder_that_others_may_read(tmp_path):
    tmp_path.chmod(0o755)
    with Emulator(state=tmp_path) as emulator:
        value = emulator.access.secret_value.encode()
        holders = [each for each in tmp_path.iterdir() if each.is_file() and value in each.read_bytes()]
        stores = list(tmp_path.glob("state.sqlite3*"))
        assert len(stores) >= 2
        assert not any(each.stat().st_mode & 0o077 for each in [*holders, *stores])


def test_the_ready_file_goes_with_the_emulator(folder):
    with standing_alone(folder) as (process, _):
        process.terminate()
        assert process.wait(10) == 0
        assert not folder.with_suffix(".ready").exists()


@pytest.mark.parametrize("broken", ["installation.json", "api_key.pem", "state.sqlite3"])
def test_a_folder_that_cannot_be_read_is_reported_with_its_place_and_the_remedy(folder, broken):
    with Emulator(state=folder):
        pass
    (folder / broken).write_text("{" * 5000)
    said = refused("--quiet", "--state", str(folder))
    assert str(folder) in said
    assert "remove the folder or give another" in said


def test_an_environment_without_python_is_refused_at_the_start(tmp_path):
    ended = subprocess.run(
        [*COMMAND, "--conda", f"slug={tmp_path}"], capture_output=True, text=True, timeout=20, check=False
    )
    assert ended.returncode == 2
    assert f"{tmp_path} is not an environment" in ended.stderr


def test_two_emulators_do_not_share_a_folder(folder):
    with Emulator(state=folder):
        assert "another emulator" in refused("--state", str(folder))


def test_it_starts_beside_others_with_addresses_of_its_own(emulator, cloud):
    program = "import os, time; print(os.environ['FQDN']); time.sleep(0.5)"
    with Emulator() as other:
        clouds = [cloud, Cloud.of(other.access)]
        runs = [each.start(each.job(program)) for each in clouds]
        addresses = {first_message(each, run_id) for each, run_id in zip(clouds, runs, strict=True)}
    assert len({address.split(".")[2] for address in addresses}) == 2


def test_it_can_be_stopped_twice():
    emulator = Emulator()
    emulator.start()
    url = emulator.url
    emulator.stop()
    emulator.stop()
    with pytest.raises(httpx.ConnectError):
        http.get(f"{url}/health")


def test_nodes_are_gone_once_it_is_stopped():
    with Emulator() as emulator:
        cloud = Cloud.of(emulator.access)
        run_id = cloud.start(cloud.job(STUBBORN))
        pids = [int(pid) for pid in first_message(cloud, run_id).split()]
    assert not any(map(is_alive, pids))
    assert os.getpid() not in pids


def test_what_was_answered_survives_a_kill_in_the_middle_of_it(folder):
    """Clients write to every kind of record until the process is killed; all that was confirmed to them is there."""
    written: dict[str, list[str]] = {"job": [], "object": [], "bucket": [], "log group": []}
    with standing_alone(folder, "--quiet") as (process, access):
        writers = [
            threading.Thread(target=write_until_the_end, args=(write, written[name], Cloud.of(access)))
            for name, write in WRITES.items()
        ]
        for writer in writers:
            writer.start()
        deadline = time.monotonic() + 20
        while min(map(len, written.values())) < 15 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        for writer in writers:
            writer.join()
    assert min(map(len, written.values())) >= 15
    with Emulator(state=folder, options=OPTIONS) as emulator:
        cloud = Cloud.of(emulator.access)
        for job_id in written["job"]:
            assert cloud.jobs.get_job(job_id).data.lifecycle_state == "ACTIVE"
        for name in written["object"]:
            assert cloud.objects.get_object(*cloud.place, name).data.content == name.encode() * 1000
        buckets = cloud.objects.list_buckets(cloud.access.namespace, cloud.access.compartment_id).data
        assert set(written["bucket"]) <= {bucket.name for bucket in buckets}
        logging = cloud.client(oci.logging.LoggingManagementClient)
        groups = logging.list_log_groups(cloud.access.compartment_id).data
        assert set(written["log group"]) <= {group.display_name for group in groups}


def write_until_the_end(write, done: list[str], cloud: Cloud) -> None:
    with suppress(Exception):
        done.extend(write(cloud, f"n{number}") for number in itertools.count())


def write_job(cloud: Cloud, _: str) -> str:
    return cloud.jobs.create_job(cloud.job_details()).data.id


def write_object(cloud: Cloud, name: str) -> str:
    cloud.objects.put_object(*cloud.place, name, name.encode() * 1000)
    return name


def write_bucket(cloud: Cloud, name: str) -> str:
    details = oci.object_storage.models.CreateBucketDetails(
        name=name, compartment_id=cloud.access.compartment_id
    )
    return cloud.objects.create_bucket(cloud.access.namespace, details).data.name


def write_log_group(cloud: Cloud, name: str) -> str:
    details = oci.logging.models.CreateLogGroupDetails(
        display_name=name, compartment_id=cloud.access.compartment_id
    )
    cloud.client(oci.logging.LoggingManagementClient).create_log_group(details)
    return name


WRITES = {"job": write_job, "object": write_object, "bucket": write_bucket, "log group": write_log_group}
