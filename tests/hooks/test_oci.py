"""What becomes of a connection of type `oci`: its fields, in either form, and its secrets."""

from __future__ import annotations

import json
import random
import re
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from airflow.providers.common.compat.sdk import redact
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from airflow_provider_ocidist.backends.connection_fields import unknown_fields
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.hooks import OciHook
from airflow_provider_ocidist.oci_client.credentials import access_of, credentials, oci_fields
from scripts.emulator_process import Access


@pytest.fixture
def hook_of(monkeypatch: pytest.MonkeyPatch):
    """Make a hook of a connection that stands in the environment, as text."""

    def make(connection: str | dict[str, object]) -> OciHook:
        text = (
            connection
            if isinstance(connection, str)
            else json.dumps({"conn_type": "oci", "extra": connection})
        )
        monkeypatch.setenv("AIRFLOW_CONN_TRIED", text)
        return OciHook("tried")

    return make


def test_both_forms_of_a_connection_reach_the_service(emulator: Access, hook_of):
    fields = emulator.connection_fields()
    for form in (
        fields,
        f"oci://?{urlencode(fields)}",
        f"oci://?{urlencode({'__extra__': json.dumps(fields)})}",
    ):
        assert hook_of(form).test_connection() == (
            True,
            f"connected: Object Storage namespace {emulator.namespace}",
        )


def test_numbers_in_a_uri_are_numbers(hook_of):
    assert hook_of("oci://?max_attempts=3&pool_size=4").access.max_attempts == 3
    with pytest.raises(BackendError, match="max_attempts is 'many'; it must be a whole number"):
        _ = hook_of("oci://?max_attempts=many").access


def test_wrong_credentials_are_reported(emulator: Access, hook_of):
    connected, message = hook_of(emulator.connection_fields(profile="NONE")).test_connection()
    assert not connected
    assert "profile NONE" in message


def a_connection(conn_type: str | None, **extra: object) -> str:
    return json.dumps({"conn_type": conn_type, "extra": extra} if conn_type else {"extra": extra})


@pytest.mark.parametrize("seed", range(8))
def test_connections_for_storage_that_lead_back_are_refused_in_words(monkeypatch, seed):
    print("seed", seed)
    dice = random.Random(seed)
    names = [f"c{number}" for number in range(dice.randint(1, 4))]
    back = dice.randrange(len(names))
    for name, storage in zip(names, [*names[1:], names[back]], strict=True):
        text = a_connection(dice.choice(["oci", "kubernetes"]), storage_conn_id=storage)
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", text)
    with pytest.raises(
        BackendError,
        match=f"storage_conn_id of the connection '{names[-1]}' is {names[back]}, which leads back to itself",
    ) as caught:
        _ = OciHook("c0").fields
    assert caught.value.cause is Cause.CONFIG
    with pytest.raises(BackendError, match="leads back to itself"):
        _ = OciHook("c0").access


def test_two_connections_may_have_the_same_one_for_storage(monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_STORE", a_connection("oci", region="eu-frankfurt-1"))
    monkeypatch.setenv(
        "AIRFLOW_CONN_BESIDE", a_connection("oci", storage_conn_id="store", endpoint="http://x")
    )
    monkeypatch.setenv("AIRFLOW_CONN_MAIN", a_connection("oci", storage_conn_id="beside"))
    assert OciHook("main").fields["region"] == "eu-frankfurt-1"


@pytest.mark.parametrize("kind", [None, "oci_data_science", "local", "pytorchjob", "runai"])
@pytest.mark.parametrize("conn_type", ["http", "aws", "google_cloud_platform", "postgres"])
def test_a_connection_to_another_service_is_refused_also_for_storage(monkeypatch, conn_type, kind):
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", a_connection(conn_type, region="eu-frankfurt-1"))
    monkeypatch.setenv("AIRFLOW_CONN_MAIN", a_connection("oci", storage_conn_id="other"))
    for conn_id in ("other", "main"):
        with pytest.raises(
            BackendError,
            match=f"connection 'other' is of type '{conn_type}', of which nothing is read: name one of",
        ) as caught:
            _ = OciHook(conn_id, kind=kind).fields
        assert caught.value.cause is Cause.CONFIG


@pytest.mark.parametrize("conn_type", ["oci", "kubernetes", "runai", "generic", None])
def test_a_connection_of_a_home_or_without_a_type_is_taken(monkeypatch, conn_type):
    extra = {"url": "https://runai.example", "region": "eu-frankfurt-1"}
    monkeypatch.setenv("AIRFLOW_CONN_MAIN", a_connection(conn_type, **extra))
    assert OciHook("main").fields["region"] == "eu-frankfurt-1"


def test_a_misspelt_field_is_reported(emulator: Access, hook_of):
    connected, message = hook_of(emulator.connection_fields(compartmentid="x")).test_connection()
    assert not connected
    assert "compartmentid (did you mean compartment_id?)" in message


def test_a_field_of_another_services_connection_is_reported():
    assert unknown_fields({"project": "p", "namespace": "n"}, "oci") == ["project (did you mean project_id?)"]


def test_no_field_of_the_form_is_unknown():
    from airflow_provider_ocidist.backends.oci_data_science.options import Defaults
    from airflow_provider_ocidist.provider_info import CONNECTION_FIELDS

    assert unknown_fields(dict.fromkeys(CONNECTION_FIELDS), "oci") == []
    assert set(Defaults.__dataclass_fields__) <= set(CONNECTION_FIELDS)


@pytest.mark.parametrize(
    "name, ours", [("key_content", "private_key_content"), ("pass_phrase", "passphrase")]
)
def test_a_secret_that_airflow_would_show_is_refused_with_its_other_name(hook_of, name, ours):
    with pytest.raises(
        BackendError, match=f"named {name} as it is; name it {ours}, or add {name} to the setting"
    ):
        _ = hook_of({name: "canary-123"}).fields


def test_a_secret_that_airflow_is_set_to_hide_may_have_the_name_of_oci(hook_of, monkeypatch):
    from airflow.sdk._shared.secrets_masker import _secrets_masker

    masker = _secrets_masker()
    monkeypatch.setattr(
        masker, "sensitive_variables_fields", [*masker.sensitive_variables_fields, "key_content"]
    )
    assert hook_of({"key_content": "canary-123"}).access.key_content == "canary-123"


def test_secrets_are_kept_from_logs_line_by_line(hook_of):
    line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
    key = f"-----BEGIN PRIVATE KEY-----\n{line}\n-----END PRIVATE KEY-----"
    assert (
        hook_of({"private_key_content": key, "passphrase": "canary-pass"}).access.pass_phrase == "canary-pass"
    )
    assert redact(f"read {line} with canary-pass") == "read *** with ***"


def test_a_key_in_a_file_needs_no_config_file(emulator: Access):
    import configparser

    profile = configparser.ConfigParser()
    profile.read(emulator.config_file)
    given = profile[emulator.profile] if emulator.profile != "DEFAULT" else profile.defaults()
    names = ("tenancy", "user", "fingerprint", "key_file")
    access = access_of(
        oci_fields({"auth": "api_key", "region": "us-ashburn-1", **{name: given[name] for name in names}})
    )
    _, signer = credentials(access)
    assert signer.api_key.startswith(given["tenancy"])


def test_a_key_file_that_was_replaced_signs_from_the_next_client_on(tmp_path: Path):
    key_file = tmp_path / "key.pem"
    access = access_of(
        {
            "auth": "api_key",
            "region": "us-ashburn-1",
            "tenancy": "ocid1.tenancy.oc1..a",
            "user": "ocid1.user.oc1..a",
            "fingerprint": ":".join(["ab"] * 16),
            "key_file": str(key_file),
        }
    )
    numbers = []
    for _ in range(2):
        key = rsa.generate_private_key(65537, 2048)
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        _, signer = credentials(access)
        _, again = credentials(access)
        assert again is signer
        numbers.append((signer.private_key.public_key().public_numbers(), key.public_key().public_numbers()))
    assert [used for used, _ in numbers] == [written for _, written in numbers]
    key_file.write_text("\n")
    with pytest.raises(BackendError, match=f"{re.escape(str(key_file))} is empty"):
        credentials(access)


def test_a_session_token_needs_no_config_file(emulator: Access, tmp_path: Path):
    import configparser

    profile = configparser.ConfigParser()
    profile.read(emulator.config_file)
    (tmp_path / "token").write_text("a.b.c\n")
    key_file = dict(
        profile.defaults(), **(profile[emulator.profile] if emulator.profile != "DEFAULT" else {})
    )["key_file"]
    access = access_of(
        {
            "auth": "session_token",
            "security_token_file": str(tmp_path / "token"),
            "key_file": key_file,
            "region": "r",
        }
    )
    _, signer = credentials(access)
    assert signer.api_key == "ST$a.b.c"


def test_both_forms_in_the_documentation_are_the_same_connection(hook_of):
    text = (Path(__file__).parents[2] / "docs" / "connection.md").read_text()
    json_form, uri_form = re.findall(r"AIRFLOW_CONN_OCI_DEFAULT='(.*?)'\n", text, re.DOTALL)
    assert hook_of(json_form).fields == hook_of(uri_form).fields
    assert unknown_fields(hook_of(uri_form).fields, "oci") == []
    assert hook_of(uri_form).fields["work_dir"] == "oci://bucket@namespace/ocidist"


def test_a_connection_that_airflow_does_not_return_holds_up_the_reading_of_no_other(
    hook_of, monkeypatch: pytest.MonkeyPatch
):
    near, far = hook_of({"region": "eu-frankfurt-1"}), OciHook("far")
    read, asked, answers = OciHook.get_connection, threading.Event(), threading.Event()

    def get_connection(conn_id: str) -> Any:
        if conn_id == "far":
            asked.set()
            assert answers.wait(60)
            conn_id = "tried"
        return read(conn_id)

    monkeypatch.setattr(OciHook, "get_connection", staticmethod(get_connection))
    waiting = threading.Thread(target=lambda: far.fields)
    waiting.start()
    try:
        assert asked.wait(30)
        reading = threading.Thread(target=lambda: near.access)
        reading.start()
        reading.join(20)
        assert not reading.is_alive()
    finally:
        answers.set()
        waiting.join(60)
    assert near.access == far.access
