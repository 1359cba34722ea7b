"""Who may speak to the emulator: signatures by API keys and tokens."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import oci
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import HTTP, Cloud

BODY_HEADERS = ["content-length", "content-type", "x-content-sha256"]


def signed(cloud: Cloud, method: str, url: str, body: bytes | None = None, *, key=None, skew=0.0, drop=()):
    """Return headers signed as the SDK signs, with one thing wrong if asked."""
    key = key or serialization.load_pem_private_key(
        Path(cloud.config["key_file"]).read_bytes(), password=None
    )
    parts = urlsplit(url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    headers = {"date": formatdate(time.time() + skew, usegmt=True), "host": parts.netloc}
    names = ["date", "(request-target)", "host"]
    if body is not None:
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        headers |= {"content-length": str(len(body)), "content-type": "application/json"}
        headers |= {"x-content-sha256": digest}
        names += BODY_HEADERS
    names = [name for name in names if name not in drop]
    values = {**headers, "(request-target)": f"{method.lower()} {target}"}
    text = "\n".join(f"{name}: {values[name]}" for name in names)
    signature = base64.b64encode(key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())).decode()
    key_id = "/".join(cloud.config[name] for name in ("tenancy", "user", "fingerprint"))
    fields = f'headers="{" ".join(names)}",keyId="{key_id}",algorithm="rsa-sha256",signature="{signature}"'
    return {**headers, "authorization": f'Signature {fields},version="1"'}


def is_refused(response: httpx.Response, said: str = "") -> bool:
    """Whether it is the service's 401, with a message that has these words."""
    body = response.json()
    return response.status_code == 401 and body["code"] == "NotAuthenticated" and said in body["message"]


@pytest.fixture
def url(cloud: Cloud) -> str:
    return f"{cloud.access.url}/20190101/jobs?compartmentId={cloud.access.compartment_id}"


def test_a_right_signature_is_accepted(cloud, url):
    assert HTTP.get(url, headers=signed(cloud, "GET", url)).status_code == 200


def test_no_signature_is_refused(url):
    response = HTTP.get(url)
    assert is_refused(response)
    assert response.headers["opc-request-id"]


def test_a_wrong_key_is_refused(cloud, url):
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    assert is_refused(HTTP.get(url, headers=signed(cloud, "GET", url, key=other)), "another private key")


@pytest.mark.parametrize("skew,status", [(-301, 401), (-290, 200), (290, 200), (302, 401)])
def test_five_minutes_of_skew_are_allowed(cloud, url, skew, status):
    response = HTTP.get(url, headers=signed(cloud, "GET", url, skew=skew))
    assert response.status_code == status
    side = "behind" if skew < 0 else "ahead of"
    assert status == 200 or is_refused(response, f"s {side} the server's, 300 s are allowed")


def test_another_query_than_signed_is_refused(cloud, url):
    assert is_refused(HTTP.get(url + "&limit=1", headers=signed(cloud, "GET", url)))


@pytest.mark.parametrize("name", ["date", "host", "(request-target)"])
def test_each_required_header_must_be_signed(cloud, url, name):
    assert is_refused(HTTP.get(url, headers=signed(cloud, "GET", url, drop=(name,))), f"not signed: {name}")


def test_a_tampered_body_is_refused(cloud):
    url = f"{cloud.access.url}/20190101/jobs"
    headers = signed(cloud, "POST", url, b'{"a": 1}')
    response = HTTP.post(url, content=b'{"a": 2}', headers=headers)
    assert is_refused(response, "the body does not have the signed x-content-sha256")


def test_a_body_must_be_signed(cloud):
    url = f"{cloud.access.url}/20190101/jobs"
    headers = signed(cloud, "POST", url, b"{}", drop=("x-content-sha256",))
    assert is_refused(HTTP.post(url, content=b"{}", headers=headers))


def test_a_streamed_body_is_checked_when_its_hash_is_signed(cloud):
    access = cloud.access
    url = f"{access.url}/n/{access.namespace}/b/{access.bucket}/o/thing"
    headers = signed(cloud, "PUT", url, b"one")
    assert is_refused(HTTP.put(url, content=b"two", headers=headers))
    assert cloud.objects.list_objects(*cloud.place).data.objects == []
    assert HTTP.put(url, content=b"one", headers=signed(cloud, "PUT", url, b"one")).status_code == 200


def session_token(cloud: Cloud, lifetime_s: float) -> dict[str, str]:
    url = f"{cloud.access.url}/_emulator/sessions"
    body = json.dumps({"lifetime_s": lifetime_s}).encode()
    return HTTP.post(url, content=body, headers=signed(cloud, "POST", url, body)).raise_for_status().json()


def test_tokens_are_not_given_to_strangers(cloud):
    assert is_refused(HTTP.post(f"{cloud.access.url}/_emulator/sessions", json={}))


def test_a_page_in_a_browser_cannot_control(cloud):
    headers = {"origin": "https://example.com"}
    assert HTTP.post(f"{cloud.access.url}/_emulator/reset", headers=headers).status_code == 403


def token_cloud(cloud: Cloud, lifetime_s: float) -> Cloud:
    session = session_token(cloud, lifetime_s)
    key = oci.signer.load_private_key(session["private_key"], None)
    signer = oci.auth.signers.SecurityTokenSigner(session["token"], key)
    return Cloud(cloud.access, {"region": cloud.access.region}, signer)


def test_a_session_token_is_accepted(cloud):
    objects = token_cloud(cloud, 60).objects
    assert objects.get_namespace().data == cloud.access.namespace


def test_an_expired_token_is_refused(cloud):
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        token_cloud(cloud, -1).objects.get_namespace()
    assert (caught.value.status, caught.value.code) == (401, "NotAuthenticated")
    assert "the token expired at" in caught.value.message


def test_a_token_of_another_issuer_is_refused(cloud):
    with Emulator() as other:
        stranger = token_cloud(Cloud.of(other.access), 60)
        with pytest.raises(oci.exceptions.ServiceError) as caught:
            Cloud(cloud.access, stranger.config, stranger.signer).objects.get_namespace()
    assert caught.value.status == 401


def test_a_token_needs_its_own_key(cloud):
    session = session_token(cloud, 60)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    signer = oci.auth.signers.SecurityTokenSigner(session["token"], key)
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        Cloud(cloud.access, {"region": cloud.access.region}, signer).objects.get_namespace()
    assert caught.value.status == 401


def test_verification_can_be_turned_off():
    with Emulator(options=Options(verify_signatures=False)) as open_emulator:
        assert HTTP.get(f"{open_emulator.url}/n").json() == open_emulator.ids.namespace


def test_keys_are_private_to_the_user(emulator):
    for name in ("api_key.pem", "issuer.pem", "session.pem", "config", "installation.json"):
        assert (emulator.folder / name).stat().st_mode & 0o077 == 0
