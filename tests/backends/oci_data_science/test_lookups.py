"""What a plan leaves open is asked for when the job is created; a small server stands for OCI's search."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.lookups import completed
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from scripts.emulator_process import Access
from tests.training_jobs import BACKEND, a_job, a_key

RESOURCES = {
    "10.0.0.1": [("PrivateIp", "ocid1.privateip.old", "2025"), ("PrivateIp", "ocid1.privateip.new", "2026")],
    "ocid1.privateip.new": [("Vnic", "ocid1.vnic.v", "2026"), ("MountTarget", "ocid1.mounttarget.m", "2026")],
    "/export": [("Export", "ocid1.export.e", "2026")],
    "/twice": [("Export", "ocid1.export.a", "2026"), ("Export", "ocid1.export.b", "2026")],
}


class Search(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert (self.path, wanted["type"]) == ("/20180409/resources", "FreeText")
        items = [
            {"resourceType": kind, "identifier": ocid, "timeCreated": f"{year}-01-01T00:00:00Z"}
            for kind, ocid, year in RESOURCES.get(wanted["text"], [])
        ]
        answer = json.dumps({"items": items}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def search(backend: OciDataScience) -> Iterator[OciAccess]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Search) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield replace(backend.access, endpoint=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def a_mount(address: str, export: str) -> dict[str, Any]:
    mount = {"mountTargetId": f"<mount target at {address}>", "exportId": f"<export {export}>"}
    return {"compartmentId": "c", "jobStorageMountConfigurationDetailsList": [mount]}


def test_a_file_system_is_found_by_its_address_and_path(search: OciAccess) -> None:
    (mount,) = completed(a_mount("10.0.0.1", "/export"), search)["jobStorageMountConfigurationDetailsList"]
    assert mount == {"mountTargetId": "ocid1.mounttarget.m", "exportId": "ocid1.export.e"}


@pytest.mark.parametrize(
    "address, export, message",
    [
        ("10.9.9.9", "/export", "no resource has the address 10.9.9.9"),
        ("10.0.0.1", "/none", "no resources of type Export are found for /none"),
        ("10.0.0.1", "/twice", "2 resources of type Export are found for /twice"),
    ],
)
def test_what_is_not_found_once_is_reported_with_the_way_out(
    search: OciAccess, address: str, export: str, message: str
) -> None:
    with pytest.raises(BackendError, match=f"{message}; write <mount target's OCID>:<export's OCID>"):
        completed(a_mount(address, export), search)


def test_a_log_alone_is_found_with_its_group(backend: OciDataScience, emulator: Access, ends: Any) -> None:
    connected = OciDataScience.connect(
        emulator.connection_fields(
            work_dir=f"oci://{emulator.bucket}@{emulator.namespace}/work/{uuid.uuid4().hex[:8]}",
            log_group_id="",
            log_id="",
        )
    )
    job = a_job(nodes=1, backend={**BACKEND, "log_id": emulator.log_id})
    ref = ends(connected.submit(connected.plan(job, a_key())))
    assert (ref.log_group_id, ref.log_id) == (emulator.log_group_id, emulator.log_id)


def test_the_file_system_of_the_documents_is_mounted_on_the_emulator(
    backend: OciDataScience, ends: Any
) -> None:
    job = a_job(nodes=1, mounts=[{"source": "10.0.0.1:/export", "path": "home"}])
    ref = ends(backend.submit(backend.plan(job, a_key())))
    client = clients.client(backend.access, "data_science")
    (mount,) = client.get_job(ref.job_id).data.job_storage_mount_configuration_details_list
    assert mount.mount_target_id.startswith("ocid1.mounttarget.")
    assert mount.export_id.startswith("ocid1.export.")
