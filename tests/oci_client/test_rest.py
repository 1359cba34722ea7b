"""OCI without its SDK: the same signatures, the same care for large objects and passing faults, one clear line."""

from __future__ import annotations

import base64
import importlib.util
import os
from pathlib import Path
from typing import Any

import oci
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from airflow_provider_ocidist.errors import BackendError, Cause, StorageError
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.oci_client.request import Caller, PrivateKey, Signer, Unconfigured, endpoint_of
from airflow_provider_ocidist.oci_client.rest import ObjectStorageClient, SecretsClient
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.stores.oci import OciStore
from airflow_provider_ocidist.storage.transfer import copy
from scripts.emulator_process import Access
from tests.storage.conftest import access, bucket, emulator, proxy, unruly  # noqa: F401 - fixtures
from tests.storage.unruly_proxy import Fault, UnrulyProxy

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(form: Any, protection: Any = None) -> str:
    protection = protection or serialization.NoEncryption()
    return KEY.private_bytes(serialization.Encoding.PEM, form, protection).decode()


def caller_of(access: OciAccess) -> Caller:
    config = oci.config.from_file(access.config_file, access.profile)
    key_id = "/".join(config[name] for name in ("tenancy", "user", "fingerprint"))
    signer = Signer(lambda: (key_id, Path(config["key_file"]).read_text()))
    return Caller(signer, str(access.endpoint), access.max_attempts)


def store_at(uri: str, access: OciAccess) -> OciStore:
    client = ObjectStorageClient(caller_of(access))
    place = locations.parse(uri)
    return OciStore(client, str(place.namespace), place.bucket, place.path)


@pytest.mark.parametrize(
    "form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL]
)
def test_signatures_are_those_that_others_verify(form: Any) -> None:
    key = PrivateKey(pem(form) + "OCI_API_KEY\n")
    for text in (b"", b"date: today", os.urandom(500)):
        KEY.public_key().verify(key.sign(text), text, padding.PKCS1v15(), hashes.SHA256())


def test_a_key_with_a_pass_phrase_is_refused() -> None:
    protection = serialization.BestAvailableEncryption(b"secret")
    for form in (serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL):
        with pytest.raises(Unconfigured, match="encrypted"):
            PrivateKey(pem(form, protection))


@pytest.mark.parametrize(
    "region, tenancy, host",
    [
        ("us-ashburn-1", "ocid1.tenancy.oc1..a", "us-ashburn-1.oraclecloud.com"),
        ("us-langley-1", "ocid1.tenancy.oc2..a", "us-langley-1.oraclegovcloud.com"),
        ("ap-chiyoda-1", "ocid1.tenancy.oc8..a", "ap-chiyoda-1.oraclecloud8.com"),
        ("eu-frankfurt-2", "ocid1.tenancy.oc19..a", "eu-frankfurt-2.oraclecloud.eu"),
        ("us-ashburn-1", "", "us-ashburn-1.oraclecloud.com"),
    ],
)
def test_every_realm_has_its_domain(region: str, tenancy: str, host: str) -> None:
    environ = {"OCI_RESOURCE_PRINCIPAL_REGION": region, "TENANCY_OCID": tenancy}
    assert endpoint_of("object_storage", environ) == f"https://objectstorage.{host}"


def test_domains_are_those_of_the_sdk() -> None:
    for realm, domain in oci.regions_definitions.REALMS.items():
        environ = {"OCI_RESOURCE_PRINCIPAL_REGION": "a-b-1", "TENANCY_OCID": f"ocid1.tenancy.{realm}..a"}
        assert endpoint_of("object_storage", environ).endswith(f".{domain}")


def test_large_objects_go_in_parts_and_come_back_checked(
    access: OciAccess,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OciStore, "connect", lambda place, access: store_at(place.uri, access))
    content = os.urandom((20 << 20) + 5)
    (tmp_path / "model.bin").write_bytes(content)
    copy(str(tmp_path / "model.bin"), f"{bucket}/model.bin", access=access, part_size=8 << 20)
    head = store_at(bucket, access).client.head_object(
        *store_at(bucket, access).bucket, f"{locations.parse(bucket).path}/model.bin"
    )
    assert head.headers["opc-multipart-md5"].endswith("-3")
    copy(f"{bucket}/model.bin", str(tmp_path / "back.bin"), access=access, part_size=8 << 20)
    assert (tmp_path / "back.bin").read_bytes() == content


def test_passing_faults_are_ridden_out(unruly: OciAccess, proxy: UnrulyProxy, bucket: str) -> None:
    store = store_at(bucket, unruly)
    proxy.faults = [Fault(status=503, times=2), Fault(status=429)]
    store.write("x", b"1" * 100_000)
    proxy.faults = [Fault(method="GET", lose_answer=True)]
    assert store.read("x") == b"1" * 100_000
    proxy.faults = [Fault(method="GET", damage=True)]
    with pytest.raises(StorageError, match="checksum"):
        store.read("x")


def test_a_key_that_was_replaced_is_read_again_also_where_nothing_is_tried_twice(
    access: OciAccess,
) -> None:
    key_file = oci.config.from_file(access.config_file, access.profile)["key_file"]
    new = caller_of(access).signer.key_id, Path(key_file).read_text()
    keys = iter([("a/b/c", pem(serialization.PrivateFormat.PKCS8)), new])
    caller = Caller(Signer(lambda: next(keys)), str(access.endpoint), attempts=1)
    assert ObjectStorageClient(caller).get_namespace().data


def test_refusals_read_as_those_of_the_sdk(emulator: Access, access: OciAccess) -> None:
    store = store_at(f"oci://no-such-bucket@{emulator.namespace}/x", access)
    for use in (store.read, store.exists, store.delete, lambda _: store.list()):
        with pytest.raises(StorageError, match="or these credentials may not see it") as caught:
            use("x")
        assert isinstance(caught.value.__cause__, BackendError)
        assert caught.value.__cause__.status_code == 404


def test_where_the_sdk_is_missing_a_node_speaks_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "oci" else found(name))
    access = OciAccess(auth="resource_principal", endpoint="http://127.0.0.1:9")
    monkeypatch.setenv("OCI_RESOURCE_PRINCIPAL_VERSION", "2.2")
    monkeypatch.setenv("OCI_RESOURCE_PRINCIPAL_RPST", "token")
    monkeypatch.setenv("OCI_RESOURCE_PRINCIPAL_PRIVATE_PEM", pem(serialization.PrivateFormat.PKCS8))
    assert isinstance(clients.client(access, "object_storage"), ObjectStorageClient)
    monkeypatch.setenv("OCI_RESOURCE_PRINCIPAL_VERSION", "1.1")
    with pytest.raises(BackendError, match=r"without the SDK it must be 2\.2") as caught:
        clients.client(access, "object_storage")
    assert caught.value.cause is Cause.CONFIG


def test_a_secret_is_read_without_the_sdk(emulator: Access, access: OciAccess) -> None:
    bundle = SecretsClient(caller_of(access)).get_secret_bundle(emulator.secret_id).data
    assert base64.b64decode(bundle.secret_bundle_content.content).decode() == emulator.secret_value


def test_an_answer_that_breaks_off_is_asked_for_again(
    bucket: str, unruly: OciAccess, proxy: UnrulyProxy
) -> None:
    store = store_at(f"{bucket}/cut", unruly)
    for number in range(3):
        store.write(f"object-{number}", b"content")
    proxy.faults = [Fault(method="GET", cut_after=after) for after in (0, 10)]
    assert len(list(store.list())) == 3
    assert [fault.times for fault in proxy.faults] == [0, 0], "both have happened"
