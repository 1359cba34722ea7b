"""Storage mounts: what a node finds under them, and what is left of it afterwards."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import oci
import pytest
from oci.data_science import models

from airflow_provider_ocidist.emulator.context import Context, Options
from airflow_provider_ocidist.emulator.data_science.storage_mounts import StorageMounts
from airflow_provider_ocidist.emulator.installation import Installation
from airflow_provider_ocidist.emulator.object_storage.catalog import BucketCatalog
from airflow_provider_ocidist.emulator.server import Emulator
from airflow_provider_ocidist.emulator.store import RecordStore
from tests.emulator.conftest import Cloud
from tests.views import need_views

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
    if private:
        need_views()
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


LINKS = """
import os, pathlib, time
root = pathlib.Path(os.environ.get("OCIDIST_MOUNT_ROOT", "/"))
bucket, outside = root / "mnt/in/data", pathlib.Path({outside!r})
(bucket / "dir").symlink_to(outside)
(bucket / "deep").mkdir()
(bucket / "deep/dir").symlink_to(outside)
(bucket / "file.txt").symlink_to(outside / "kept.txt")
(bucket / "ready").write_text("")
deadline = time.time() + 20
while not (bucket / "last").exists() and time.time() < deadline:
    time.sleep(0.1)
print("last" if (bucket / "last").exists() else "never")
"""


def test_a_link_in_a_mounted_bucket_leads_no_object_outside_of_it(cloud: Cloud, tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("as it was")
    (tmp_path / "sub").mkdir()
    run_id = cloud.start(with_mounts(cloud, LINKS.format(outside=str(tmp_path))))
    deadline = time.monotonic() + 30
    while not cloud.objects.list_objects(*cloud.place, prefix="corpus/ready").data.objects:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    names = ("dir/kept.txt", "dir/new.txt", "dir/sub/new.txt", "deep/dir/kept.txt", "file.txt")
    for name in names:
        cloud.objects.put_object(*cloud.place, f"corpus/{name}", b"overwritten")
    time.sleep(2.5)  # some rounds of the mirror, that it has its chance
    for name in names:
        cloud.objects.delete_object(*cloud.place, f"corpus/{name}")
    cloud.objects.put_object(*cloud.place, "corpus/last", b"")
    cloud.wait(run_id)
    assert cloud.messages(run_id)[-1] == "last"
    found = {
        str(path.relative_to(tmp_path)): path.is_dir() or path.read_text() for path in tmp_path.rglob("*")
    }
    assert found == {"kept.txt": "as it was", "sub": True}


SHOW = """
import os, pathlib
root = pathlib.Path(os.environ.get("OCIDIST_MOUNT_ROOT", "/"))
bucket = root / "mnt/in/data"
print(sorted(str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file()))
(bucket / "made.txt").write_text("made")
"""


def test_names_that_no_folder_can_hold_keep_no_other_from_its_mount_and_are_logged(cloud: Cloud) -> None:
    long = "n" * 300
    for name in ("a.txt", "sub", "sub/x", long, "x//y", "p/../q", "z/last.txt"):
        cloud.objects.put_object(*cloud.place, f"corpus/{name}", b"content")
    run = cloud.wait(cloud.start(with_mounts(cloud, SHOW)))
    assert run.lifecycle_state == "SUCCEEDED"
    lines = cloud.messages(run.id)
    assert lines[-1] == "['a.txt', 'sub/x', 'z/last.txt']"
    notes = "\n".join(lines[:-1])
    for name, reason in (
        ("sub", "other objects"),
        (long, "longer than 255"),
        ("x//y", "empty"),
        ("p/../q", "'..'"),
    ):
        assert any(f"corpus/{name} of the bucket" in line and reason in line for line in lines), notes
    assert content(cloud, "corpus/made.txt") == "made"


def test_a_file_that_cannot_be_stored_fails_the_run_and_is_named(cloud: Cloud) -> None:
    write = (
        "import os; root = os.environ.get('OCIDIST_MOUNT_ROOT', '')\n"
        "open((root + '/mnt/in/data/').encode() + bytes([65, 255]), 'w').write('lost')"
    )
    run = cloud.wait(cloud.start(with_mounts(cloud, write)))
    assert run.lifecycle_state == "FAILED"
    assert "corpus/A" in run.lifecycle_details
    assert "not UTF-8" in run.lifecycle_details


def test_a_mount_outside_of_its_place_is_refused(cloud: Cloud) -> None:
    details = cloud.job_details()
    (mount, _) = mounts(cloud)
    mount.destination_path = "/mnt/../etc"
    details.job_storage_mount_configuration_details_list = [mount]
    with pytest.raises(oci.exceptions.ServiceError) as refused:
        cloud.jobs.create_job(details)
    assert refused.value.status == 400
    assert "destinationPath" in refused.value.message


DEEP = """
import os
os.chdir(os.environ.get("OCIDIST_MOUNT_ROOT", "") + "/mnt/in/data")
open("beside.txt", "w").write("kept")
for _ in range(1200):
    os.mkdir("d")
    os.chdir("d")
open("lost.txt", "w").write("lost")
"""


def test_a_file_that_lies_deeper_than_a_name_is_long_fails_the_run_and_leaves_nothing(
    cloud: Cloud, emulator: Emulator
) -> None:
    run = cloud.wait(cloud.start(with_mounts(cloud, DEEP)))
    assert run.lifecycle_state == "FAILED"
    assert "corpus/d/d/d" in run.lifecycle_details
    assert "is invalid" in run.lifecycle_details
    assert content(cloud, "corpus/beside.txt") == "kept"
    assert not list((emulator.folder / "mounts").glob("*/beside.txt"))


def test_a_node_that_mounts_what_another_is_just_leaving_finds_all_of_it(tmp_path: Path) -> None:
    """The last node to leave removes the folder, which takes a while, as it has many files."""
    context = Context(
        folder=tmp_path,
        url="",
        proxy_url="",
        ca_file=tmp_path,
        ca_bundle=tmp_path,
        installation=Installation.open(tmp_path),
        store=RecordStore(tmp_path / "state.sqlite3"),
        options=Options(),
    )
    storage = StorageMounts(context, BucketCatalog(context))
    mount = {
        "storageType": "OBJECT_STORAGE",
        "namespace": context.ids.namespace,
        "bucket": context.ids.bucket,
        "destinationDirectoryName": "data",
    }
    (folder,) = storage.folders([mount]).values()

    async def node(begins: float, lasts: float) -> int:
        await asyncio.sleep(begins)
        async with storage.in_use([mount]):
            for number in range(200):
                (folder / f"{number}").touch()
            await asyncio.sleep(lasts)
            return len(list(folder.iterdir()))

    async def nodes() -> list[int]:
        return await asyncio.gather(*(node(random.uniform(0, 2), random.uniform(0, 0.1)) for _ in range(40)))

    assert set(asyncio.run(nodes())) == {200}
    assert not list((tmp_path / "mounts").iterdir())


WRITES_LATE = """
import os, pathlib, time
root, go_on = pathlib.Path(os.environ.get("OCIDIST_MOUNT_ROOT", "/")), pathlib.Path({go_on!r})
print("ready")
while not go_on.exists():
    time.sleep(0.05)
(root / "mnt/in/data/late.txt").write_text("lost")
"""


def test_a_bucket_that_is_deleted_under_its_mount_fails_the_run_and_is_named(
    cloud: Cloud, tmp_path: Path
) -> None:
    details = oci.object_storage.models.CreateBucketDetails(
        name="own", compartment_id=cloud.access.compartment_id
    )
    cloud.objects.create_bucket(cloud.access.namespace, details)
    mount = mounts(cloud)[0]
    mount.bucket = "own"
    job_id = with_mounts(cloud, WRITES_LATE.format(go_on=str(tmp_path / "go on")))
    run_id = cloud.start(job_id, job_storage_mount_configuration_override_details_list=[mount])
    deadline = time.monotonic() + 30
    while "ready" not in cloud.messages(run_id):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    cloud.objects.delete_bucket(cloud.access.namespace, "own")
    (tmp_path / "go on").touch()
    run = cloud.wait(run_id)
    assert run.lifecycle_state == "FAILED"
    assert "the bucket own is not in step with its mount: the bucket was deleted" in run.lifecycle_details
