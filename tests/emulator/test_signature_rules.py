"""The rules of request signatures, one by one and without a server: draft-cavage-http-signatures-08 as OCI uses it."""

from __future__ import annotations

import base64
import hashlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from email.utils import formatdate

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from airflow_provider_ocidist.emulator.auth import signatures, tokens
from airflow_provider_ocidist.emulator.auth.signatures import AuthorizationHeader, Credential, Verifier
from airflow_provider_ocidist.emulator.errors import ApiError, not_authenticated
from airflow_provider_ocidist.emulator.wire import Principal

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
WHO = Principal(id="ocid1.user.1", tenancy_id="ocid1.tenancy.1")
BASE = ("date", "(request-target)", "host")
BODY = ("content-length", "content-type", "x-content-sha256")
TARGET = "/20190101/jobs?limit=2"


def find_api_key(key_id: str) -> Credential:
    if key_id != "tenancy/user/fingerprint":
        raise not_authenticated(f"no key {key_id}")
    return Credential(key=KEY.public_key(), principal=WHO)


def verifier() -> Verifier:
    return Verifier(KEY.public_key(), find_api_key)


@dataclass
class Request:
    """A request as a client signs and sends it; each field may be wrong."""

    names: tuple[str, ...] = BASE
    headers: dict[str, str] = field(default_factory=lambda: {"date": now(), "host": "localhost:80"})
    key: rsa.RSAPrivateKey = KEY
    key_id: str = "tenancy/user/fingerprint"
    algorithm: str = "rsa-sha256"
    scheme: str = "Signature"
    method: str = "GET"
    digest: hashes.HashAlgorithm = field(default_factory=hashes.SHA256)
    leave_out: str = ""

    def signed(self) -> dict[str, str]:
        values = {**self.headers, "(request-target)": f"{self.method.lower()} {TARGET}"}
        text = "\n".join(f"{name.lower()}: {values.get(name.lower(), '')}" for name in self.names)
        value = self.key.sign(text.encode("latin-1"), padding.PKCS1v15(), self.digest)
        fields = {
            "version": "1",
            "headers": " ".join(self.names),
            "keyId": self.key_id,
            "algorithm": self.algorithm,
            "signature": base64.b64encode(value).decode(),
        }
        shown = ",".join(f'{name}="{text}"' for name, text in fields.items() if name != self.leave_out)
        return {**self.headers, "authorization": f"{self.scheme} {shown}"}


def now(skew: float = 0) -> str:
    return formatdate(time.time() + skew, usegmt=True)


def verify(request: Request, *, body_signed: bool = False, **changed: str) -> Principal:
    headers = {**request.signed(), **changed}
    return verifier().verify(request.method, TARGET, headers, body_signed=body_signed)


def refusal(request: Request, *, body_signed: bool = False, **changed: str) -> str:
    """Return what the refusal says in its parentheses."""
    with pytest.raises(ApiError) as caught:
        verify(request, body_signed=body_signed, **changed)
    assert (caught.value.status, caught.value.code) == (401, "NotAuthenticated")
    return caught.value.message.partition("(")[2][:-1]


def test_who_signed_is_known():
    assert verify(Request()) == WHO


@pytest.mark.parametrize("scheme", ["Signature", "signature", "SIGNATURE"])
def test_the_scheme_is_not_case_sensitive(scheme):
    assert verify(Request(scheme=scheme)) == WHO


@pytest.mark.parametrize("scheme", ["Bearer", "Signatures", ""])
def test_another_scheme_is_refused_even_with_a_right_signature(scheme):
    assert refusal(Request(scheme=scheme)) == "there is no rsa-sha256 signature"


@pytest.mark.parametrize("algorithm", ["rsa-sha512", "hmac-sha256", "RSA-SHA256", "none", ""])
def test_another_algorithm_is_refused_even_with_a_right_signature(algorithm):
    assert refusal(Request(algorithm=algorithm)) == "there is no rsa-sha256 signature"


def test_a_signature_that_names_no_algorithm_is_refused():
    assert refusal(Request(leave_out="algorithm")) == "there is no rsa-sha256 signature"


def test_another_hash_than_the_algorithm_says_is_refused():
    assert "another private key" in refusal(Request(digest=hashes.SHA512()))


@pytest.mark.parametrize("name", ["keyId", "headers", "signature"])
def test_an_incomplete_header_is_refused(name):
    assert refusal(Request(leave_out=name)) == "the Authorization header is incomplete"


def test_a_signature_that_is_no_base64_is_refused():
    text = Request().signed()["authorization"].replace('signature="', 'signature="*?')
    assert refusal(Request(), authorization=text) == "the Authorization header is incomplete"


def test_no_authorization_at_all_is_refused():
    headers = {"date": now(), "host": "localhost:80"}
    with pytest.raises(ApiError, match="there is no rsa-sha256 signature"):
        verifier().verify("GET", TARGET, headers, body_signed=False)


def test_the_header_is_taken_apart_as_it_was_written():
    text = 'Signature version="1",headers="Date (request-target) HOST",keyId="a/b/c",'
    text += 'algorithm="rsa-sha256",signature="YWJj"'
    expected = AuthorizationHeader(key_id="a/b/c", headers=("date", "(request-target)", "host"), value=b"abc")
    assert signatures.parse(text) == expected


@pytest.mark.parametrize("seed", range(20))
def test_all_that_is_required_must_be_signed(seed):
    chosen = random.Random(seed)
    names = [*BASE, *BODY]
    dropped = {chosen.choice(names) for _ in range(chosen.randint(1, 4))}
    headers = {
        "date": now(),
        "host": "x",
        "content-length": "2",
        "content-type": "a",
        "x-content-sha256": "b",
    }
    kept = [name for name in names if name not in dropped]
    chosen.shuffle(kept)
    request = Request(names=tuple(kept), headers=headers, method="POST")
    assert refusal(request, body_signed=True) == f"not signed: {', '.join(sorted(dropped))}"
    if not dropped & set(BASE):
        assert verify(request) == WHO


def test_the_order_of_the_headers_is_the_clients():
    headers = {
        "date": now(),
        "host": "x",
        "content-length": "2",
        "content-type": "a",
        "x-content-sha256": "b",
    }
    for seed in range(5):
        names = [*BASE, *BODY]
        random.Random(seed).shuffle(names)
        request = Request(names=tuple(names), headers=headers, method="PUT")
        assert verify(request, body_signed=True) == WHO


def test_one_date_is_enough_and_x_date_is_the_one_that_counts():
    wrong = {"host": "x", "date": now(-3000), "x-date": now()}
    assert verify(Request(names=("x-date", "(request-target)", "host"), headers=wrong)) == WHO
    assert verify(Request(names=("x-date", "date", "(request-target)", "host"), headers=wrong)) == WHO
    right = {"host": "x", "date": now(), "x-date": now(-3000)}
    request = Request(names=("x-date", "(request-target)", "host"), headers=right)
    assert "behind" in refusal(request)
    assert verify(Request(headers=right)) == WHO


@pytest.mark.parametrize("skew,side", [(-302, "behind"), (302, "ahead of")])
def test_a_clock_more_than_five_minutes_off_is_refused(skew, side):
    said = refusal(Request(headers={"date": now(skew), "host": "x"}))
    seconds = int(said.split()[4])
    assert abs(seconds - 302) <= 2
    assert said == f"the client's clock is {seconds} s {side} the server's, 300 s are allowed"


@pytest.mark.parametrize("skew", [-295, 295])
def test_a_clock_less_than_five_minutes_off_is_right(skew):
    assert verify(Request(headers={"date": now(skew), "host": "x"})) == WHO


@pytest.mark.parametrize("date", ["yesterday", "", "Mon, 01 Jan 99999999 00:00:00 GMT"])
def test_what_is_no_date_is_refused(date):
    assert refusal(Request(headers={"date": date, "host": "x"})) == f"the date header {date!r} is not a date"


def test_a_date_that_was_signed_but_not_sent_is_refused():
    request = Request(names=("x-date", "(request-target)", "host"))
    assert refusal(request) == "the x-date header '' is not a date"


def test_a_header_that_was_signed_but_not_sent_is_named():
    assert refusal(Request(names=(*BASE, "x-other"))) == "signed header 'x-other' was not sent"


@pytest.mark.parametrize(
    "wrong",
    [{"host": "elsewhere"}, {"date": "five seconds later"}, {"method": "PUT"}, {"key": OTHER}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_differs_from_what_was_signed_is_refused(wrong):
    request = Request()
    headers = request.signed()
    if "key" in wrong:
        headers = Request(key=wrong["key"]).signed()
    method = wrong.pop("method", "GET")
    # When it runs, not when it is collected: the suite takes longer than clocks may differ.
    sent = {**wrong, "date": now(5)} if "date" in wrong else wrong
    headers |= {name: value for name, value in sent.items() if name != "key"}
    with pytest.raises(ApiError, match="another private key than the keyId's signed it") as caught:
        verifier().verify(method, TARGET, headers, body_signed=False)
    assert caught.value.status == 401
    assert f"the server saw '{method.lower()} {TARGET}'" in caught.value.message


def test_headers_beyond_ascii_are_signed_as_latin_1():
    headers = {"date": now(), "host": "x", "opc-meta-name": "Käse"}
    assert verify(Request(names=(*BASE, "opc-meta-name"), headers=headers)) == WHO


def test_a_client_cannot_send_a_header_in_place_of_the_request_target():
    headers = {"date": now(), "host": "x", "(request-target)": "get /elsewhere"}
    request = Request(headers={"date": headers["date"], "host": "x"})
    signed = {**request.signed(), "(request-target)": "get /elsewhere"}
    assert verifier().verify("GET", TARGET, signed, body_signed=False) == WHO


def test_the_text_that_is_signed_has_a_line_for_each_name():
    text = signatures.signing_string(("b", "(request-target)", "a"), "get /x", {"a": "1", "b": "2", "c": "3"})
    assert text == "b: 2\n(request-target): get /x\na: 1"


def test_an_unknown_key_is_refused_as_its_finder_says():
    assert refusal(Request(key_id="tenancy/user/other")) == "no key tenancy/user/other"


# Tokens


def token(
    lifetime_s: float = 60, *, issuer: rsa.RSAPrivateKey = KEY, session: rsa.RSAPrivateKey = OTHER
) -> str:
    claims = {"sub": "ocid1.instance.1", "tenant": "ocid1.tenancy.2"}
    return "ST$" + tokens.issue(issuer, session.public_key(), claims, lifetime_s=lifetime_s)


def test_a_token_says_for_whom_its_key_signs():
    found = verify(Request(key_id=token(), key=OTHER))
    assert found == Principal(id="ocid1.instance.1", tenancy_id="ocid1.tenancy.2")


def test_an_expired_token_is_refused_with_its_end():
    before = int(time.time())
    said = refusal(Request(key_id=token(-100_000), key=OTHER))
    ends = [formatdate(before - 100_000 + late, usegmt=True) for late in range(60)]
    assert said in [f"the token expired at {end}" for end in ends]


def test_a_token_is_of_no_use_with_another_key():
    assert "another private key" in refusal(Request(key_id=token(), key=KEY))


def test_a_token_of_another_issuer_is_refused():
    assert refusal(Request(key_id=token(issuer=OTHER), key=OTHER)) == "the token was not issued here"


def test_a_token_is_read_once_and_the_memory_for_tokens_has_an_end(monkeypatch):
    reads: list[str] = []
    read = tokens.read

    def counted(issuer: rsa.RSAPublicKey, text: str) -> dict[str, object]:
        reads.append(text)
        return read(issuer, text)

    monkeypatch.setattr(signatures, "MAX_CACHED_TOKENS", 3)
    monkeypatch.setattr(signatures.tokens, "read", counted)
    checker = verifier()
    all_tokens = [token() for _ in range(4)]

    def use(one: str) -> None:
        checker.verify("GET", TARGET, Request(key_id=one, key=OTHER).signed(), body_signed=False)

    for one in all_tokens[:3] * 2:
        use(one)
    assert len(reads) == 3
    use(all_tokens[3])
    assert len(reads) == 4
    use(all_tokens[0])  # all were forgotten to make room
    use(all_tokens[3])
    assert len(reads) == 5


# Bodies


def hash_of(body: bytes) -> str:
    return base64.b64encode(hashlib.sha256(body).digest()).decode()


async def in_chunks(body: bytes, size: int = 3) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def test_a_body_must_have_the_hash_that_was_signed():
    signatures.check_body(b"body", hash_of(b"body"))
    for expected in (hash_of(b"other"), "", hash_of(b"body").lower()):
        with pytest.raises(ApiError, match="the body does not have the signed x-content-sha256"):
            signatures.check_body(b"body", expected)


async def test_a_streamed_body_passes_whole_and_is_refused_at_its_end():
    body = bytes(range(100))
    assert b"".join([chunk async for chunk in signatures.checked(in_chunks(body), hash_of(body))]) == body
    refused = signatures.checked(in_chunks(body, 50), hash_of(body[:-1]))
    assert [await anext(refused), await anext(refused)] == [body[:50], body[50:]]
    with pytest.raises(ApiError, match="the body does not have the signed x-content-sha256"):
        await anext(refused)
