"""Users with their keys, resource principals, instance principals: as the SDK's own signers speak for them."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import os
import subprocess
import sys
import time
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

import oci
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from oci.auth.signers import InstancePrincipalsSecurityTokenSigner, get_resource_principals_signer
from oci.exceptions import ServiceError
from oci.identity import models

from airflow_provider_ocidist.emulator.installation import Installation
from airflow_provider_ocidist.emulator.instances import InstanceAuthority, make_authority
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import HTTP, OPTIONS, Cloud

METADATA = {"Authorization": "Bearer Oracle"}
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem_of(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def public_pem(key: rsa.RSAPrivateKey) -> str:
    public = key.public_key()
    return public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()


def speaks(cloud: Cloud, signer) -> Cloud:
    return Cloud(cloud.access, cloud.config, signer)


def refusal(call, *arguments) -> str:
    """Return the message of the 401 that a call gets."""
    with pytest.raises(ServiceError) as caught:
        call(*arguments)
    assert (caught.value.status, caught.value.code) == (401, "NotAuthenticated")
    return caught.value.message


# Users and their API keys


@pytest.fixture
def identity(cloud):
    return cloud.client(oci.identity.IdentityClient)


@pytest.fixture
def ann(cloud, identity) -> str:
    details = models.CreateUserDetails(
        compartment_id=cloud.access.tenancy_id, name="ann", description="A second user"
    )
    return identity.create_user(details).data.id


def upload(identity, user_id: str, key=KEY):
    return identity.upload_api_key(user_id, models.CreateApiKeyDetails(key=public_pem(key))).data


def api_key_signer(cloud: Cloud, user_id: str, fingerprint: str, key=KEY, tenancy_id=None):
    return oci.signer.Signer(
        tenancy_id or cloud.access.tenancy_id, user_id, fingerprint, None, private_key_content=pem_of(key)
    )


def test_another_user_signs_with_a_registered_key(cloud, identity, ann):
    key = upload(identity, ann)
    assert key.key_id == f"{cloud.access.tenancy_id}/{ann}/{key.fingerprint}"
    other = speaks(cloud, api_key_signer(cloud, ann, key.fingerprint))
    assert other.jobs.create_job(other.job_details()).data.created_by == ann
    assert [each.fingerprint for each in identity.list_api_keys(ann).data] == [key.fingerprint]


def test_a_deleted_key_signs_no_more(cloud, identity, ann):
    fingerprint = upload(identity, ann).fingerprint
    other = speaks(cloud, api_key_signer(cloud, ann, fingerprint))
    other.objects.get_namespace()
    identity.delete_api_key(ann, fingerprint)
    assert fingerprint in refusal(other.objects.get_namespace)
    with pytest.raises(ServiceError) as caught:
        identity.delete_api_key(ann, fingerprint)
    assert caught.value.status == 404


def test_a_deleted_user_is_unknown(cloud, identity, ann):
    other = speaks(cloud, api_key_signer(cloud, ann, upload(identity, ann).fingerprint))
    identity.delete_user(ann)
    assert f"no user '{ann}'" in refusal(other.objects.get_namespace)
    assert [user.name for user in identity.list_users(cloud.access.tenancy_id).data] == ["ocidist"]


def test_a_key_is_registered_once_and_three_at_most(identity, ann):
    upload(identity, ann)
    with pytest.raises(ServiceError) as caught:
        upload(identity, ann)
    assert caught.value.status == 409
    for _ in range(2):
        upload(identity, ann, rsa.generate_private_key(public_exponent=65537, key_size=2048))
    with pytest.raises(ServiceError) as caught:
        upload(identity, ann, rsa.generate_private_key(public_exponent=65537, key_size=2048))
    assert (caught.value.status, caught.value.code) == (400, "LimitExceeded")


@pytest.mark.parametrize("text", ["", "no key", public_pem(rsa.generate_private_key(65537, 1024))])
def test_a_key_that_cannot_sign_is_refused(identity, ann, text):
    with pytest.raises(ServiceError) as caught:
        identity.upload_api_key(ann, models.CreateApiKeyDetails(key=text))
    assert caught.value.status == 400


def test_users_are_found_changed_and_unique(cloud, identity, ann):
    tenancy_id = cloud.access.tenancy_id
    assert [user.id for user in identity.list_users(tenancy_id, name="ann").data] == [ann]
    user = identity.update_user(ann, models.UpdateUserDetails(description="new")).data
    assert (user.name, user.description) == ("ann", "new")
    with pytest.raises(ServiceError) as caught:
        identity.create_user(
            models.CreateUserDetails(compartment_id=tenancy_id, name="ann", description="again")
        )
    assert caught.value.status == 409


def test_a_refusal_says_what_is_wrong_with_the_key(cloud, identity, ann):
    fingerprint = upload(identity, ann).fingerprint
    stranger = "ocid1.tenancy.oc1..aaaa"
    unknown = "ocid1.user.oc1..aaaa"
    wrong = [
        (api_key_signer(cloud, ann, fingerprint, tenancy_id=stranger), f"no tenancy '{stranger}'"),
        (api_key_signer(cloud, unknown, fingerprint), f"no user '{unknown}'"),
        (api_key_signer(cloud, cloud.config["user"], fingerprint), fingerprint),
        (
            api_key_signer(cloud, cloud.config["user"], cloud.config["fingerprint"]),
            "another private key than the keyId's",
        ),
    ]
    for signer, said in wrong:
        assert said in refusal(speaks(cloud, signer).objects.get_namespace)


def test_users_and_keys_survive_a_restart(folder):
    with Emulator(state=folder, options=OPTIONS) as emulator:
        cloud = Cloud.of(emulator.access)
        identity = cloud.client(oci.identity.IdentityClient)
        details = models.CreateUserDetails(compartment_id=cloud.access.tenancy_id, name="b", description="b")
        user_id = identity.create_user(details).data.id
        fingerprint = upload(identity, user_id).fingerprint
        certificate = HTTP.get(f"{emulator.url}/opc/v2/identity/intermediate.pem", headers=METADATA).text
    with Emulator(state=folder, options=OPTIONS) as emulator:
        cloud = Cloud.of(emulator.access)
        cloud.objects.get_namespace()
        speaks(cloud, api_key_signer(cloud, user_id, fingerprint)).objects.get_namespace()
        again = HTTP.get(f"{emulator.url}/opc/v2/identity/intermediate.pem", headers=METADATA).text
        assert again == certificate
        for name in ("instance_authority.pem", "instance.pem"):
            assert not (folder / name).exists() or (folder / name).stat().st_mode & 0o077 == 0


# Resource principals

ASKS_ABOUT_ITSELF = """
import os, pathlib
import oci
from oci.auth.signers import get_resource_principals_signer

def ask(signer):
    client = oci.data_science.DataScienceClient({}, signer=signer, service_endpoint=os.environ["ENDPOINT"])
    return client.get_job_run(os.environ["JOB_RUN_OCID"]).data.lifecycle_state

by_files = get_resource_principals_signer()
print(ask(by_files), by_files.get_claim("res_tenant") == os.environ["TENANCY_OCID"])
for name in ("OCI_RESOURCE_PRINCIPAL_RPST", "OCI_RESOURCE_PRINCIPAL_PRIVATE_PEM"):
    os.environ[name] = pathlib.Path(os.environ[name]).read_text()
print(ask(get_resource_principals_signer()))
"""


def test_a_node_is_a_resource_principal_by_files_and_by_contents(cloud):
    run = cloud.run(ASKS_ABOUT_ITSELF, environment_variables={"ENDPOINT": cloud.access.url})
    assert cloud.messages(run.id) == ["IN_PROGRESS True", "IN_PROGRESS"]


def session(cloud: Cloud, lifetime_s: float) -> dict[str, str]:
    """Return what the control API issues: a token and the key that it is bound to."""
    url = f"{cloud.access.url}/_emulator/sessions"
    body = json.dumps({"lifetime_s": lifetime_s})
    headers = {"content-type": "application/json"}
    response = oci._vendor.requests.post(url, data=body, auth=cloud.signer, headers=headers)
    return response.json()


def test_a_refreshed_token_file_is_read_after_a_401(cloud, tmp_path, monkeypatch):
    fresh, old = session(cloud, 600), session(cloud, -1)
    token, key = tmp_path / "rpst", tmp_path / "key.pem"
    token.write_text(old["token"])
    key.write_text(old["private_key"])
    monkeypatch.setenv("OCI_RESOURCE_PRINCIPAL_VERSION", "2.2")
    monkeypatch.setenv("OCI_RESOURCE_PRINCIPAL_RPST", str(token))
    monkeypatch.setenv("OCI_RESOURCE_PRINCIPAL_PRIVATE_PEM", str(key))
    monkeypatch.setenv("OCI_RESOURCE_PRINCIPAL_REGION", cloud.access.region)
    objects = speaks(cloud, get_resource_principals_signer()).objects
    assert "the token expired at" in refusal(objects.get_namespace)
    token.write_text(fresh["token"])
    assert objects.get_namespace().data == cloud.access.namespace


# Instance principals


@pytest.fixture
def instance(cloud, monkeypatch):
    """A function that makes the SDK's signer for the emulated instance."""
    monkeypatch.setenv("OCI_METADATA_BASE_URL", f"{cloud.access.url}/opc/v2")
    return lambda **more: InstancePrincipalsSecurityTokenSigner(
        federation_endpoint=f"{cloud.access.url}/v1/x509",
        federation_client_retry_strategy=oci.retry.NoneRetryStrategy(),
        federation_client_circuit_breaker_strategy=oci.circuit_breaker.NoCircuitBreakerStrategy(),
        **more,
    )


def test_an_instance_principal_is_accepted(cloud, instance):
    signer = instance()
    assert (signer.region, signer.tenancy_id) == (cloud.access.region, cloud.access.tenancy_id)
    itself = speaks(cloud, signer)
    assert itself.objects.get_namespace().data == cloud.access.namespace
    made = itself.jobs.create_job(itself.job_details()).data
    assert made.created_by.startswith("ocid1.instance.")
    signer.refresh_security_token()
    assert itself.jobs.get_job(made.id).data.id == made.id


def test_metadata_is_given_to_who_asks_rightly(cloud):
    url = f"{cloud.access.url}/opc/v2"
    instance = HTTP.get(f"{url}/instance/", headers=METADATA).json()
    assert instance["compartmentId"] == cloud.access.compartment_id
    assert HTTP.get(f"{url}/instance/region", headers=METADATA).text == "iad"
    info = HTTP.get(f"{url}/instance/regionInfo/", headers=METADATA).json()
    assert info["regionIdentifier"] == cloud.access.region
    assert HTTP.get(f"{url}/instance/regionInfo/realmKey", headers=METADATA).text == "oc1"
    assert HTTP.get(f"{url}/instance/nothing", headers=METADATA).status_code == 404
    assert HTTP.get(f"{url}/identity/other.pem", headers=METADATA).status_code == 404
    for headers in ({}, {**METADATA, "x-forwarded-for": "1.2.3.4"}, {**METADATA, "origin": "http://a"}):
        assert HTTP.get(f"{url}/identity/key.pem", headers=headers).status_code == 403


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_metadata_is_not_given_to_other_users_of_the_machine(cloud):
    program = (
        "import http.client, os, sys; 'modules are out of reach later'.encode('idna')\n"
        "os.setuid(65534)\n"
        "connection = http.client.HTTPConnection(sys.argv[1])\n"
        "connection.request('GET', '/opc/v2/identity/key.pem', headers={'Authorization': 'Bearer Oracle'})\n"
        "print(connection.getresponse().status)\n"
    )
    command = [sys.executable, "-c", program, urlsplit(cloud.access.url).netloc]
    assert subprocess.check_output(command, text=True) == "403\n"


def bare(pem: str) -> str:
    return "".join(line for line in pem.splitlines() if not line.startswith("-----"))


@pytest.fixture
def exchange(cloud):
    """A function that asks for a token as the SDK does, with one thing wrong if asked."""

    def post(
        *, key=None, certificate=None, tenancy_id=None, fingerprint=None, skew=0.0, tamper=False, drop=()
    ):
        url = f"{cloud.access.url}/opc/v2/identity"
        files = {name: HTTP.get(f"{url}/{name}.pem", headers=METADATA).text for name in ("cert", "key")}
        certificate = certificate or x509.load_pem_x509_certificate(files["cert"].encode())
        key = key or serialization.load_pem_private_key(files["key"].encode(), password=None)
        pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        body = json.dumps({"certificate": bare(pem), "publicKey": bare(public_pem(KEY))}).encode()
        headers = {
            "date": formatdate(time.time() + skew, usegmt=True),
            "content-length": str(len(body)),
            "content-type": "application/json",
            "x-content-sha256": base64.b64encode(hashlib.sha256(body).digest()).decode(),
        }
        names = [name for name in ("(request-target)", *headers) if name not in drop]
        values = {**headers, "(request-target)": "post /v1/x509"}
        text = "\n".join(f"{name}: {values[name]}" for name in names)
        signature = base64.b64encode(key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())).decode()
        fingerprint = fingerprint or certificate.fingerprint(hashes.SHA1()).hex(":").upper()
        key_id = f"{tenancy_id or cloud.access.tenancy_id}/fed-x509/{fingerprint}"
        fields = f'headers="{" ".join(names)}",keyId="{key_id}",algorithm="rsa-sha256"'
        headers["authorization"] = f'Signature version="1",{fields},signature="{signature}"'
        sent = body.replace(b'"certificate"', b'"certificate" ') if tamper else body
        headers["content-length"] = str(len(sent)) if tamper else headers["content-length"]
        return HTTP.post(f"{cloud.access.url}/v1/x509", content=sent, headers=headers)

    return post


def test_a_certificate_is_exchanged_for_a_token_of_twenty_minutes(exchange):
    response = exchange()
    assert response.status_code == 200
    claims = response.json()["token"].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    assert claims["exp"] - claims["iat"] == 1200
    assert claims["opc-instance"] == claims["sub"]


@pytest.mark.parametrize(
    "wrong,said",
    [
        ({"key": KEY}, "another private key"),
        ({"skew": -400}, "s behind the server's"),
        ({"tenancy_id": "ocid1.tenancy.oc1..other"}, "is not <tenancy>/fed-x509/<fingerprint>"),
        ({"fingerprint": "00:11"}, "another certificate than the one sent"),
        ({"tamper": True}, "the signature does not fit"),
        ({"drop": ("date",)}, "not signed: date"),
        ({"drop": ("x-content-sha256",)}, "not signed: x-content-sha256"),
    ],
)
def test_a_token_is_not_given_for_a_wrong_request(exchange, wrong, said):
    response = exchange(**wrong)
    assert (response.status_code, response.json()["code"]) == (401, "NotAuthenticated")
    assert said in response.json()["message"]


@pytest.fixture
def installation(emulator) -> Installation:
    return Installation.open(emulator.folder)


def test_a_certificate_of_another_authority_is_refused(exchange, installation):
    authority = InstanceAuthority(certificate=make_authority(KEY), key=KEY)
    certificate = authority.issue(installation.instance, KEY.public_key())
    response = exchange(certificate=certificate, key=KEY)
    assert response.status_code == 401
    assert "not issued by this emulator" in response.json()["message"]


def test_an_expired_certificate_is_refused(exchange, installation):
    certificate = installation.instances.issue(installation.instance, KEY.public_key(), hours=-0.01)
    assert certificate.not_valid_after_utc < dt.datetime.now(dt.timezone.utc)
    response = exchange(certificate=certificate, key=KEY)
    assert response.status_code == 401
    assert "expired" in response.json()["message"]


def test_nonsense_is_no_certificate(cloud):
    for body in ({}, {"certificate": "AAAA", "publicKey": "AAAA"}, {"certificate": "%"}):
        assert HTTP.post(f"{cloud.access.url}/v1/x509", json=body).status_code == 400


def test_a_request_cannot_be_replayed_elsewhere(cloud):
    """What was signed for one path, query or method fits no other."""
    url = f"{cloud.access.url}/20190101/jobs"
    request = oci._vendor.requests.Request("GET", url, params={"compartmentId": "a"}, auth=cloud.signer)
    headers = {**request.prepare().headers}
    target = f"{url}?compartmentId=a"
    assert HTTP.get(target, headers=headers).status_code != 401
    for method, other in [
        ("GET", f"{cloud.access.url}/20190101/projects?compartmentId=a"),
        ("GET", f"{target}&limit=1"),
        ("DELETE", target),
        ("GET", f"{cloud.access.url}/n"),
    ]:
        response = HTTP.request(method, other, headers=headers)
        assert response.status_code in (401, 405), other


def test_the_key_of_the_instance_is_private(emulator):
    HTTP.get(f"{emulator.url}/opc/v2/identity/key.pem", headers=METADATA).raise_for_status()
    for name in ("instance.pem", "instance_authority.pem"):
        assert (Path(emulator.folder) / name).stat().st_mode & 0o077 == 0
