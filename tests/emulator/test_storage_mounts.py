"""Storage mounts: what a node finds under them, and what is left of it afterwards."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from oci.data_science import models

from airflow_provider_ocidist.emulator.nodes import processes
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import Cloud

PROGRAM = """
import os, pathlib, time
root = pathlib.Path(os.environ.get("OCIDIST_MOUNT_ROOT", "/"))
bucket, shared = root / "mnt/in/data", root / "mnt/home"
print(sorted(str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file()))
print((bucket / "a/x.txt").read_text(), [path.name for path in shared.iterdir()])
(bucket / "a/x.txt").write_text("changed")
(bucket / "gone.txt").unlink()
(bucket / "new.txt").write_text("made")
(shared / "left.txt").write_text("for others")
deadline = time.time() + 15
while not (bucket / "later.txt").exists() and time.time() < deadline:
    time.sleep(0.1)
print((bucket / "later.txt").read_text())
"""


def mounts(cloud: Cloud) -> list[models.StorageMountConfigurationDetails]:
    namespace, bucket = cloud.place
    return [
        models.ObjectStorageMountConfigurationDetails(
            namespace=namespace,
            bucket=bucket,
            prefix="corpus",
            destination_directory_name="data",
            destination_path="/mnt/in",
        ),
        models.FileStorageMountConfigurationDetails(
            mount_target_id="ocid1.mounttarget.oc1.iad.aaaa",
            export_id="ocid1.export.oc1.iad.aaaa",
            destination_directory_name="home",
        ),
    ]


def with_mounts(cloud: Cloud, program: str) -> str:
    details = cloud.job_details()
    details.job_storage_mount_configuration_details_list = mounts(cloud)
    job = cloud.jobs.create_job(details).data
    assert job.job_storage_mount_configuration_details_list == mounts(cloud)
    cloud.jobs.create_job_artifact(job.id, program.encode(), content_disposition="attachment; filename=a.py")
    return str(job.id)


def content(cloud: Cloud, name: str) -> str:
    return str(cloud.objects.get_object(*cloud.place, name).data.content.decode())


@pytest.mark.parametrize("private", [True, False])
def test_a_bucket_and_a_file_system_are_where_the_program_looks(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, private: bool
) -> None:
    if private and not processes.can_mount():
        pytest.skip("this machine gives processes no view of the file system of their own")
    monkeypatch.setattr("airflow_provider_ocidist.emulator.data_science.job_runs.can_mount", lambda: private)
    for name in ("corpus/a/x.txt", "corpus/gone.txt", "other.txt"):
        cloud.objects.put_object(*cloud.place, name, b"as it was")
    job_id = with_mounts(cloud, PROGRAM)
    run_id = cloud.start(job_id)
    deadline = time.monotonic() + 20
    while "new.txt" not in str(
        [each.name for each in cloud.objects.list_objects(*cloud.place, prefix="corpus/").data.objects]
    ):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    cloud.objects.put_object(*cloud.place, "corpus/later.txt", b"from outside")
    run = cloud.wait(run_id)
    assert run.lifecycle_state == "SUCCEEDED"
    told = [line for line in cloud.messages(run_id) if not line.startswith("ocidist emulator: ")]
    assert told == ["['a/x.txt', 'gone.txt']", "as it was []", "from outside"]
    names = [each.name for each in cloud.objects.list_objects(*cloud.place).data.objects]
    assert names == ["corpus/a/x.txt", "corpus/later.txt", "corpus/new.txt", "other.txt"]
    assert (content(cloud, "corpus/a/x.txt"), content(cloud, "corpus/new.txt")) == ("changed", "made")
    assert not Path("/mnt/home").exists()
    assert not os.path.lexists("/mnt/in")


def test_an_export_is_the_same_for_all_who_mount_it(cloud: Cloud) -> None:
    write = "import os; root = os.environ.get('OCIDIST_MOUNT_ROOT', ''); open(root + '/mnt/home/a', 'w').write('A')"
    read = (
        "import os; root = os.environ.get('OCIDIST_MOUNT_ROOT', ''); print(open(root + '/mnt/home/a').read())"
    )
    cloud.wait(cloud.start(with_mounts(cloud, write)))
    run = cloud.wait(cloud.start(with_mounts(cloud, read)))
    assert cloud.messages(run.id)[-1] == "A"
    override = mounts(cloud)[:1]
    other = with_mounts(cloud, "import os; print(os.path.exists('/mnt/home'))")
    run = cloud.wait(cloud.start(other, job_storage_mount_configuration_override_details_list=override))
    assert run.job_storage_mount_configuration_details_list == override
    assert cloud.messages(run.id)[-1] == "False"


def test_a_bucket_that_is_not_there_fails_the_run_and_is_named(cloud: Cloud, emulator: Emulator) -> None:
    job_id = with_mounts(cloud, "pass")
    mount = mounts(cloud)[0]
    mount.bucket = "absent"
    run = cloud.wait(cloud.start(job_id, job_storage_mount_configuration_override_details_list=[mount]))
    assert run.lifecycle_state == "FAILED"
    assert "the bucket absent" in run.lifecycle_details
    assert "/mnt/in/data" in run.lifecycle_details
