"""The `oci` command line against the emulator, through the proxy and with an endpoint."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
import urllib.request
from pathlib import Path

import pytest

from tests.clients.processes import Cli
from tests.documents import blocks

PROGRAM = """
import os, sys, time
print("hello", os.environ["WHOM"], *sys.argv[1:], flush=True)
time.sleep(float(os.environ.get("SECONDS", "0")))
"""
EVERY_SECOND = ("--wait-interval-seconds", "1")


@pytest.fixture
def bucket(cli_with_endpoint: Cli, request: pytest.FixtureRequest) -> str:
    name = f"cli-{request.node.name.replace('_', '-')}"
    made = cli_with_endpoint(
        "os", "bucket", "create", "-c", cli_with_endpoint.access.compartment_id, "--name", name
    )
    assert made["data"]["name"] == name
    return name


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_buckets_and_objects(cli_with_endpoint, bucket, tmp_path):
    cli, here = cli_with_endpoint, ("-bn", bucket)
    content = os.urandom(25 * 2**20)
    (tmp_path / "large").write_bytes(content)
    (tmp_path / "small").write_bytes(b"small")
    put, _, namespace, buckets = cli.together(
        ("os", "object", "put", *here, "--file", tmp_path / "large", "--part-size", "10"),
        ("os", "object", "put", *here, "--file", tmp_path / "small", "--name", "a/small"),
        ("os", "ns", "get"),
        ("os", "bucket", "list", "-c", cli.access.compartment_id),
    )
    assert put["opc-multipart-md5"].endswith("-3")
    assert namespace["data"] == cli.access.namespace
    assert {bucket, cli.access.bucket} <= {one["name"] for one in buckets["data"]}

    _, head, listing, _, copy = cli.together(
        ("os", "object", "get", *here, "--name", "large", "--file", tmp_path / "back"),
        ("os", "object", "head", *here, "--name", "large"),
        ("os", "object", "list", *here, "--delimiter", "/"),
        ("os", "object", "rename", *here, "--source-name", "a/small", "--new-name", "b/small"),
        ("os", "object", "copy", *here, "--source-object-name", "large", "--destination-object-name", "copied",
         "--destination-bucket", cli.access.bucket, "--wait-for-state", "COMPLETED", *EVERY_SECOND),
    )  # fmt: skip
    assert (tmp_path / "back").read_bytes() == content
    assert head["content-length"] == str(len(content))
    assert [one["name"] for one in listing["data"]] == ["large"]
    assert copy["data"]["status"] == "COMPLETED"

    _, copied = cli.together(
        ("os", "object", "delete", *here, "--name", "large", "--force"),
        ("os", "object", "head", "-bn", cli.access.bucket, "--name", "copied"),
    )
    assert copied["content-length"] == str(len(content))
    assert [one["name"] for one in cli("os", "object", "list", *here)["data"]] == ["b/small"]


def test_a_tree_sent_in_bulk_comes_back_the_same_and_a_sync_sends_and_deletes_what_has_changed(
    cli_with_endpoint, bucket, tmp_path
):
    cli, here = cli_with_endpoint, ("-bn", bucket)
    up, down, synced = tmp_path / "up", tmp_path / "down", tmp_path / "synced"
    (up / "deep").mkdir(parents=True)
    files = {"1": b"one", "empty": b"", "deep/odd name #% ü?.txt": os.urandom(70_000)}
    for name, content in files.items():
        (up / name).write_bytes(content)
        # `sync` compares whole seconds: what was written in that of its upload would be sent again.
        os.utime(up / name, (time.time() - 60,) * 2)

    sent = cli("os", "object", "bulk-upload", *here, "--src-dir", up, "--prefix", "tree/")
    assert set(sent["uploaded-objects"]) == {f"tree/{name}" for name in files}
    assert not sent["upload-failures"]

    cli.together(
        ("os", "object", "bulk-download", *here, "--prefix", "tree/", "--download-dir", down),
        ("os", "object", "sync", *here, "--prefix", "tree/", "--dest-dir", synced),
    )
    assert tree(down) == {f"tree/{name}": content for name, content in files.items()}
    assert tree(synced) == files

    (up / "1").write_bytes(b"another one")
    (up / "empty").unlink()
    sent = cli("os", "object", "sync", *here, "--src-dir", up, "--prefix", "tree/", "--delete")
    assert set(sent["uploaded-objects"]) == {"tree/1"}
    assert set(sent["deleted-objects"]) == {"tree/empty"}

    cli("os", "object", "bulk-delete", *here, "--force")
    cli("os", "bucket", "delete", *here, "--force")
    assert bucket not in str(cli("os", "bucket", "list", "-c", cli.access.compartment_id))


def job_of(cli: Cli, folder: Path, **tags: str) -> str:
    """Create a job with its artifact and return its OCID."""
    access = cli.access
    (folder / "program.py").write_text(PROGRAM)
    infrastructure = {
        "jobInfrastructureType": "STANDALONE",
        "shapeName": "VM.Standard.E4.Flex",
        "jobShapeConfigDetails": {"ocpus": 1, "memoryInGBs": 8},
        "subnetId": access.subnet_id,
        "blockStorageSizeInGBs": 50,
    }
    configuration = {
        "jobType": "DEFAULT",
        "environmentVariables": {"WHOM": "world"},
        "commandLineArguments": "'and all'",
    }
    logs = {"enableLogging": True, "logGroupId": access.log_group_id, "logId": access.log_id}
    job = cli(
        *("data-science", "job", "create", "-c", access.compartment_id, "--project-id", access.project_id),
        *("--display-name", "by the command line"),
        *("--configuration-details", json.dumps(configuration)),
        *("--infrastructure-configuration-details", json.dumps(infrastructure)),
        *("--log-configuration-details", json.dumps(logs)),
        *("--freeform-tags", json.dumps(tags)),
    )["data"]["id"]
    cli(
        *("data-science", "job", "create-job-artifact", "--job-id", job),
        *("--job-artifact-file", folder / "program.py"),
        *("--content-disposition", "attachment; filename=program.py"),
    )
    return str(job)


def test_jobs_and_job_runs(cli, tmp_path):
    access = cli.access
    job = job_of(cli, tmp_path)
    start = ("data-science", "job-run", "create", "-c", access.compartment_id, "--project-id", access.project_id,
             "--job-id", job)  # fmt: skip
    override = {"jobType": "DEFAULT", "environmentVariables": {"WHOM": "moon", "SECONDS": "100"}}
    done, long = cli.together(
        (*start, "--display-name", "short", "--wait-for-state", "SUCCEEDED", *EVERY_SECOND),
        (*start, "--configuration-override-details", json.dumps(override), "--display-name", "long",
         "--wait-for-state", "IN_PROGRESS", *EVERY_SECOND),
    )  # fmt: skip
    assert [done["data"]["lifecycle-state"], long["data"]["lifecycle-state"]] == ["SUCCEEDED", "IN_PROGRESS"]

    now = dt.datetime.now(dt.timezone.utc)
    place = f"{access.compartment_id}/{access.log_group_id}/{access.log_id}"
    found, jobs, runs, _ = cli.together(
        ("logging-search", "search-logs", "--time-start", str(now - dt.timedelta(hours=1)),
         "--time-end", str(now + dt.timedelta(minutes=1)),
         "--search-query", f"search \"{place}\" | where source = '*{done['data']['id']}'"),
        ("data-science", "job", "list", "-c", access.compartment_id, "--id", job),
        ("data-science", "job-run", "list", "-c", access.compartment_id, "--job-id", job, "--all"),
        ("data-science", "job-run", "cancel", "--job-run-id", long["data"]["id"]),
    )  # fmt: skip
    [entry] = found["data"]["results"]
    assert entry["data"]["logContent"]["data"]["message"] == "hello world and all"
    assert [one["display-name"] for one in jobs["data"]] == ["by the command line"]
    assert {one["display-name"] for one in runs["data"]} == {"short", "long"}

    canceled, _ = cli.together(
        ("data-science", "job-run", "get", "--job-run-id", long["data"]["id"]),
        ("data-science", "job-run", "delete", "--job-run-id", done["data"]["id"], "--force"),
    )
    assert canceled["data"]["lifecycle-state"] in {"CANCELING", "CANCELED"}
    cli(
        *("data-science", "job", "delete", "--job-id", job, "--delete-related-job-runs", "true", "--force"),
        *("--wait-for-state", "SUCCEEDED", *EVERY_SECOND),
    )
    assert cli("data-science", "job", "get", "--job-id", job)["data"]["lifecycle-state"] == "DELETED"


def test_old_jobs_of_ocidist_are_deleted_as_the_page_says_and_no_others(cli, tmp_path):
    (block,) = (found for found in blocks("bash") if "data-science job delete" in found.text)
    ours, other = job_of(cli, tmp_path, **{"ocidist-task": "1f"}), job_of(cli, tmp_path, task="1f")
    now = dt.datetime.now(dt.timezone.utc)
    # The last has none left to delete.
    for days, left in ((-1, {ours, other}), (1, {other}), (1, {other})):
        script = block.text.replace("ocid1.compartment...", cli.access.compartment_id)
        script = script.replace("2026-09-01", (now + dt.timedelta(days)).strftime("%Y-%m-%d"))
        (tmp_path / "delete.sh").write_text(f"set -eu\n{script}")
        cli.programs.run("/bin/bash", tmp_path / "delete.sh")
        found = cli(
            *("data-science", "job", "list", "-c", cli.access.compartment_id),
            *("--lifecycle-state", "ACTIVE", "--all"),
        )
        assert {ours, other} & {job["id"] for job in found["data"]} == left


def test_what_is_around_them(cli):
    access = cli.access
    compartment = ("-c", access.compartment_id)
    (regions, compartments, domains, groups, subnet, bundle, request) = cli.together(
        ("iam", "region", "list"),
        ("iam", "compartment", "list", "--all"),
        ("iam", "availability-domain", "list"),
        ("logging", "log-group", "list", *compartment),
        ("network", "subnet", "get", "--subnet-id", access.subnet_id),
        ("secrets", "secret-bundle", "get", "--secret-id", access.secret_id),
        ("os", "preauth-request", "create", "-bn", access.bucket, "--name", "anyone",
         "--access-type", "AnyObjectReadWrite", "--time-expires", "2100-01-01T00:00:00Z"),
    )  # fmt: skip
    assert access.region in {one["name"] for one in regions["data"]}
    assert access.compartment_id in {one["id"] for one in compartments["data"]}
    assert domains["data"]
    assert access.log_group_id in {one["id"] for one in groups["data"]}
    assert subnet["data"]["id"] == access.subnet_id
    assert bundle["data"]["secret-id"] == access.secret_id
    url = f"{access.url}{request['data']['access-uri']}shared.txt"
    urllib.request.urlopen(urllib.request.Request(url, b"by anyone", method="PUT"), timeout=10)
    assert urllib.request.urlopen(url, timeout=10).read() == b"by anyone"
