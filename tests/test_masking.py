"""Which values are secrets, and that nothing of them is left to be seen."""

from __future__ import annotations

import json

import pytest

from airflow_provider_ocidist.masking import is_secret_name, masked, secrets_in


@pytest.mark.parametrize(
    "name",
    [
        *("DB_PASSWORD", "dbPassword", "PGPASSWORD", "pass_phrase", "HF_TOKEN", "hf-token", "AUTH", "DB_DSN"),
        *("WANDB_API_KEY", "wandbApiKey", "SSH_KEY", "AWS_SECRET_ACCESS_KEY", "env.MY_SECRET"),
        *("private_key_content", "key_content"),
    ],
)
def test_these_names_are_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "max_tokens",
        "tokenizer",
        "author",
        "OCIDIST_KEY",
        "keep",
        "MONKEY",
        "compass",
        "shape",
    ],
)
def test_these_are_not(name):
    assert not is_secret_name(name)


def test_a_secret_is_masked_wherever_it_occurs():
    job = {
        "env": {"DB_PASSWORD": "hunter22", "DB_URL": "postgres://me:hunter22@host/db", "X": "1"},
        "program": {"args": ["--token", "tok-12345", "--api-key=key-12345", "--epochs", "3"]},
        "config": json.dumps({"args": ["--token", "tok-12345", "--verbose"]}),
    }
    shown = json.dumps(masked(job))
    assert not [secret for secret in ("hunter22", "tok-12345", "key-12345") if secret in shown]
    assert masked(job)["env"]["X"] == "1"
    assert masked(job)["program"]["args"] == ["--token", "***", "--api-key=***", "--epochs", "3"]
    assert secrets_in(job) == {"hunter22", "tok-12345", "key-12345"}


def test_the_token_of_a_preauthenticated_request_is_masked_wherever_it_occurs():
    address = "https://objectstorage.eu-frankfurt-1.oraclecloud.com/p/tok-x_12345/n/ns/b/bucket/o/train.zip"
    job = {"program": {"source": address}, "requests": [json.dumps({"source": address})]}
    assert "tok-x_12345" not in json.dumps(masked(job))
    assert "/p/***/n/ns/b/bucket/o/train.zip" in masked(job)["program"]["source"]
    assert masked("https://host/p/a/n") == "https://host/p/a/n"


def test_a_short_secret_is_masked_under_its_name_alone():
    assert masked({"PIN_PASSWORD": "1234", "port": "1234"}) == {"PIN_PASSWORD": "***", "port": "1234"}


def test_a_secret_that_json_writes_differently_is_masked_in_it_too():
    secret = 'a"quoted\\one'
    assert secret not in str(masked({"PASSWORD": secret, "config": json.dumps({"x": f"pre {secret}"})}))
    assert json.loads(masked({"PASSWORD": secret, "c": json.dumps({"x": f"pre {secret}"})})["c"]) == {
        "x": "pre ***"
    }


def test_what_only_names_a_secret_stays():
    job = {"source_secret": "ocid1.vaultsecret.oc1.iad.x", "token": "{{ var.value.token }}", "secret": None}
    assert masked(job) == job


def test_a_signed_address_loses_its_query_and_a_password_in_it():
    assert masked(["https://me:pw@host/x?s=1"]) == ["https://me:***@host/x?***"]
    assert masked("https://ghp_123@host/x.git") == "https://***@host/x.git"
    assert masked("ssh://git@host/x.git") == "ssh://git@host/x.git"


def test_oci_addresses_stay_as_they_are():
    assert masked({"uri": "oci://bucket@namespace/x?y"}) == {"uri": "oci://bucket@namespace/x?y"}
