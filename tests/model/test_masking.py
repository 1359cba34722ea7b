"""Which values are secrets, and that nothing of them is left to be seen."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time

import pytest

from airflow_provider_ocidist.model.masking import (
    is_secret_name,
    masked,
    masked_text,
    secrets_in,
    without_secrets,
)
from tests.canaries import Canaries, arguments, environment, every_text


@pytest.mark.parametrize(
    "name",
    [
        *("DB_PASSWORD", "dbPassword", "PGPASSWORD", "pass_phrase", "HF_TOKEN", "hf-token", "AUTH", "DB_DSN"),
        *("WANDB_API_KEY", "wandbApiKey", "SSH_KEY", "AWS_SECRET_ACCESS_KEY", "env.MY_SECRET"),
        *("private_key_content", "key_content", "DB_PASS", "db.pass", "WANDB_KEY", "wandb.key", "COMET_KEY"),
        *(
            "GITHUB_PAT",
            "MYSQL_PWD",
            "user_passwd",
            "AZURE_STORAGE_CONNECTION_STRING",
            "SAS_TOKEN",
            "token_github",
        ),
        *(
            "X-API-Key",
            "Authorization",
            "SESSION_COOKIE",
            "sshPassphrase",
            "GOOGLE_CREDENTIALS",
            "TOKEN2",
            "X-Amz-Signature",
        ),
        *("HF_TOKEN_READ", "APIKEY", "hf_auth", "SLACK_WEBHOOK_URL", "keyfile_dict", "encryption-key"),
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
        *(
            "key_frames",
            "keyboard",
            "sort_key",
            "primary_key",
            "cache_key",
            "image_key",
            "text_key",
            "key_dim",
        ),
        *(
            "num_key_value_heads",
            "pad_token",
            "eos_token",
            "pad_token_id",
            "tokens_per_second",
            "token_ids",
            "public_key",
        ),
        *(
            "PASSWORD_FILE",
            "TOKEN_URL",
            "SECRET_NAME",
            "forward_pass",
            "pass_rate",
            "bypass",
            "path",
            "pattern",
        ),
        *(
            "signal",
            "design",
            "authority",
            "author",
            "passenger",
            "keys",
            "KEYS",
            "step_key",
            "num_tokens",
            "next_token",
        ),
        *("source_uri", "credentials_path", "secret_type", "password_policy", "monkey", "hotkey", "turkey"),
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


SECRETS_BY_FORM = [
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz0123456789ABCDEFGHIJ",
    "hf_abcdEFGHijklMNOPqrstUVWXyz12345678",
    "sk-proj-abc123DEF456ghi789JKL012mno345",
    "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789",
    "xoxb-123456789012-1234567890123-AbCdEfGhIjKlMnOpQrStUvWx",
    "glpat-abcdefghij1234567890",
    "AIzaSyA1234567890abcdefghijklmnopqrstuvw",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "wandb_v1_abcdefghijklmnopqrst1234567890",
    "npm_abcdefghijklmnopqrstuvwxyz0123456789",
    "dapi0123456789abcdef0123456789abcdef",
    "hvs.CAESIJabcdefghijklmnop0123456789",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA1234\nabcd\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\\nMIIEvQIBADANBgkqhkiG\\n-----END PRIVATE KEY-----\\n",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----",
]
"""Tokens of known formats; made up, but of the right form."""


@pytest.mark.parametrize("secret", SECRETS_BY_FORM)
@pytest.mark.parametrize("text", ["{}", "using {} now", "x={}", "['{}']", "(https://e.com/?a={})"])
def test_a_token_of_a_known_format_is_masked_under_any_name_and_in_any_text(secret: str, text: str):
    for show in (masked, masked_text):
        shown = show(text.format(secret))
        for part in secret.replace("\\n", "\n").split("\n"):
            assert not part or part.startswith("-----") or part not in shown


@pytest.mark.parametrize(
    "text, secret",
    [
        ("export DB_PASS=hunter22; python train.py", "hunter22"),
        ("DB_PASS='two words' python train.py", "two words"),
        ("python train.py --wandb.api_key=abcdef --epochs 3", "abcdef"),
        ("python train.py --wandb-key abcdef --epochs 3", "abcdef"),
        ("python train.py trainer.token=abc-def", "abc-def"),
        ('curl -H "Authorization: Bearer abcdef12345" https://x', "abcdef12345"),
        ("curl -u me:hunter22 https://x", "hunter22"),
        ("curl --user me:hunter22 https://x", "hunter22"),
        ("git clone https://me:p4ssw0rd@git.example.com/x.git", "p4ssw0rd"),
        ("git clone https://tok3n@git.example.com/x.git", "tok3n"),
        ("git clone https://tok3n:x-oauth-basic@github.com/x.git", "tok3n"),
        ("pip install --index-url https://__token__:pypi123@pkgs/simple x", "pypi123"),
        ("postgresql://me:p@ss@host:5432/db and more", "p@ss"),
        ("redis://:hunter22@cache:6379/0", "hunter22"),
        ("wandb login 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef01234567"),
        (
            "wandb: API key: 0123456789abcdef0123456789abcdef01234567",
            "0123456789abcdef0123456789abcdef01234567",
        ),
        ("machine api.wandb.ai login user password hunter22", "hunter22"),
        ("https://host/p/tok-x_12345/n/ns/b/bucket/o/train.zip", "tok-x_12345"),
        ("see /p/tok-x_12345/n/ns/b/bucket/o/train.zip", "tok-x_12345"),
        ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=abc123==;EndpointSuffix=x", "abc123=="),
        ("{'user': 'me', 'password': 'hunter22'}", "hunter22"),
        ('cfg {"user": "me", "api_key": "hunter22"}', "hunter22"),
        ('cfg {\\"user\\": \\"me\\", \\"api_key\\": \\"hunter22\\"}', "hunter22"),
        ("see https://x.s3.amazonaws.com/a?X-Amz-Signature=abcdef123456&X-Amz-Expires=9", "abcdef123456"),
        ("https://hooks.slack.com/services/T0001/B0002/abcdefXYZ012345", "abcdefXYZ012345"),
        ("posted to hooks.slack.com/services/T0001/B0002/abcdefXYZ012345", "abcdefXYZ012345"),
        ("ConnectionError: postgres://me:hunter22@db refused", "hunter22"),
        ("docker login -u me -p hunter22 iad.ocir.io", "hunter22"),
        ("podman login iad.ocir.io -u me -p=hunter22 && podman pull x", "hunter22"),
        ("helm registry login -p 'hunter22' x", "hunter22"),
        ("sshpass -p hunter22 ssh me@host", "hunter22"),
        ("sshpass -phunter22 ssh -p 2222 me@host", "hunter22"),
        ("mysql -h db -u me -phunter22 -e 'select 1'", "hunter22"),
        ("mysqldump -phunter22 db > x", "hunter22"),
        ("redis-cli -h cache -a hunter22 ping", "hunter22"),
    ],
)
def test_a_secret_inside_a_text_is_masked_and_the_rest_stays(text: str, secret: str):
    for show in (masked, masked_text):
        shown = show(text)
        assert secret not in shown
        # Nothing but the secret goes.
        before, _, after = text.partition(secret)
        assert shown.startswith(before)
        assert shown.endswith(after)


@pytest.mark.parametrize(
    "command",
    [
        ["sshpass", "-p", "hunter22", "ssh", "-p", "2222", "me@host"],
        ["sshpass", "-phunter22", "scp", "a", "b"],
        ["docker", "login", "-u", "me", "-p", "hunter22", "iad.ocir.io"],
        ["mysql", "-h", "db", "-phunter22", "-e", "select 1"],
        ["redis-cli", "-a", "hunter22", "ping"],
    ],
)
def test_a_password_among_the_arguments_of_a_program_is_masked_alone(command: list[str]):
    shown = masked({"args": command})["args"]
    assert "hunter22" not in str(shown)
    assert [each for each, was in zip(shown, command, strict=True) if each != was] == [
        next(each for each in command if "hunter22" in each).replace("hunter22", "***")
    ]
    assert "hunter22" in secrets_in({"args": command})


ORDINARY = [
    "python train.py --tokenizer gpt2 --max_tokens=100 --key_frames 3 --sort_key name",
    "--tokenizer=gpt2",
    "max_tokens=100",
    "tokenizer.pad_token=<pad> model.eos_token='</s>'",
    "pad_token=[PAD] num_key_value_heads=8 pass_rate=0.93",
    "step 10: loss 2.31, tokens: 1024, tokens/s=12345.6, token_id=50256",
    "epoch 3 | train_loss=0.25 | forward_pass=0.12s | pass 3",
    "oci://bucket@namespace/work/key/train-00001.parquet",
    "ocid1.datasciencejob.oc1.iad.amaaaaaa1234567890abcdefghijklmnopqrstuvwxyz",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  train.bin",
    "commit 238f5193aa1c0ffee0123456789abcdef0123456 on main",
    "https://github.com/org/repo.git#238f5193aa1c0ffee0123456789abcdef0123456",
    "git+https://github.com/org/repo@v1.2",
    "git@github.com:org/repo.git",
    "ssh://git@host/x.git",
    "s3://bucket/runs/2026/checkpoint-300/model.safetensors",
    "/data/keys/train/passwords-of-nobody.txt",
    "550e8400-e29b-41d4-a716-446655440000",
    "KeyError: 'token'",
    "KeyError: 'password'",
    "ValueError: invalid token: expected one argument",
    "TypeError: unexpected keyword argument 'api_key'",
    "error: argument --token: expected one argument",
    "token = os.environ['HF_TOKEN']",
    "HF_TOKEN=${HF_TOKEN} TOKEN=$TOKEN password={{ var.value.password }}",
    'password="{{ conn.db.password }}"',
    "GOOGLE_APPLICATION_CREDENTIALS=/run/secrets/google.json",
    "PASSWORD_FILE=/run/secrets/db",
    "auth=resource_principal",
    "--auth api_key",
    "key=value",
    "{'key': 'loss', 'value': 0.3}",
    "primary_key: id, sort_key: created_at",
    "author=someone, authority=me, monkey=banana, keyboard=qwerty",
    "GET http://127.0.0.1:8080/x@y?page=2&per_page=100",
    "nodes: 2 RUNNING (TRAINING); step 40/300, loss 2.31; checkpoint at step 30",
    "secret ocid1.vaultsecret.oc1.iad.abcdef could not be read",
    "100%|██████████| 100/100 [00:01<00:00, 99.9it/s, loss=0.1]",
    "task-with-a-long-name-and-a-number-1234567890",
    "sk-learn is not a token, nor is disk-usage-of-all-nodes-12345678901",
    "train-2026-11-22T13:58:09Z-a1",
    "password is wrong, or the token has expired",
    "the --password is required",
    "signature mismatch: sig verification failed",
    "attention_key torch.Size([2, 16, 64])",
    "    api_key=api_key, token=self.token, password=args.password,",
    "PYTHONPATH=/opt/lib PATH=/usr/bin:/bin PATIENCE=3 pat=5",
    "NCCL_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=8 OCIDIST_KEY=dag/run/task",
    "iad.ocir.io/space/train@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "tokens per second 12034, secrets of training",
    "Authorization failed or requested resource not found",
    "the pass: 3 of 4",
    "credentials: resource principal",
    "ssh -p 2222 me@host; docker run -p 8080:80 x; mkdir -p /data/x",
    "docker login iad.ocir.io && mkdir -p /data/x",
    "mysql -h db -p -e 'select 1'; mysql --port 3306 -P 3307",
    "docker login -u me --password-stdin",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_what_is_no_secret_can_be_read(text: str):
    assert masked_text(text) == text
    if "=self." not in text and "os.environ" not in text:  # code is read as code in logs alone
        assert masked(text) == text
        assert secrets_in({"x": [text]}) == set()


def test_ordinary_settings_stay_as_they_are():
    job = {
        "name": "gpt",
        "env": {
            "TOKENIZERS_PARALLELISM": "false",
            "WANDB_MODE": "offline",
            "SSH_AUTH_SOCK": "/tmp/ssh-x/agent.1",
            "HF_HOME": "/cache/hf",
            "OCI_AUTH": "resource_principal",
            "SORT_KEY": "name",
            "PASS": "3",
        },
        "program": {
            "args": ["--tokenizer", "gpt2", "--key", "loss", "--max_tokens", "100", "-u", "train.py"]
        },
        "key": {"dag_id": "d", "run_id": "r", "attempt": 3},
        "limits": {"pass": True, "token": None},
    }
    assert masked(job) == job
    assert secrets_in(job) == set()


def test_a_variable_written_as_name_and_value_is_masked_by_its_name():
    variables = [{"name": "WANDB_KEY", "value": "hunter22"}, {"name": "SEED", "value": "hunting"}]
    assert masked(variables) == [{"name": "WANDB_KEY", "value": "***"}, {"name": "SEED", "value": "hunting"}]
    assert secrets_in(variables) == {"hunter22"}


def test_each_line_of_a_key_is_masked_where_a_log_has_it_line_by_line():
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSjAgEAAoIBAQC7"
    key = f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----"
    secrets = secrets_in({"env": {"SIGNING": key}})
    assert [without_secrets(line, secrets) for line in key.split("\n")][1:3] == ["***", "***"]


def test_a_secret_is_masked_as_a_url_writes_it_too():
    assert (
        without_secrets("https://me:p%40ss%2Fword@host p@ss/word", {"p@ss/word"}) == "https://me:***@host ***"
    )
    assert "p@ss/word" in secrets_in({"URL": "https://me:p%40ss%2Fword@host"})


def test_every_occurrence_of_a_secret_is_masked_also_in_lists_and_tuples():
    value = {"a": ["hunter22", "x hunter22 y hunter22"], "b": ("hunter22", {"c": "hunter22"})}
    assert "hunter22" not in repr(without_secrets(value, {"hunter22"}))
    assert without_secrets(value, set()) == value


@pytest.mark.parametrize("seed", [*range(25), None])
def test_no_secret_of_a_job_is_shown_wherever_it_stands(seed: int | None):
    # What it draws is the suite's to decide (TEST_SEED), as for any other test.
    seed = random.randrange(10**9) if seed is None else seed
    print(f"seed {seed}")
    canaries = Canaries(random.Random(seed))
    job = {
        "env": environment(canaries),
        "main_env": environment(canaries),
        "program": {
            "source": f"https://me:{canaries.secret('source')}@git.example.com/x.git#main",
            "args": arguments(canaries),
        },
        "inputs": [{"source": f"https://data.example.com/x.tar?sig={canaries.secret('query')}", "path": "x"}],
        "dependencies": {
            "pip_args": ["--index-url", f"https://u:{canaries.secret('pip index')}@pkgs.example.com/simple"]
        },
        "nested": [{"deep": ({"password": canaries.secret("nested")},)}],
    }
    job["requests"] = [{"body": json.dumps({"config": json.dumps(job)})}]
    assert canaries.leaked(*every_text(masked(job))) == []
    secrets = secrets_in(job)
    printed = [" ".join(job["program"]["args"]), json.dumps(job["env"]), repr(job), *job["env"].values()]
    assert canaries.leaked(*[without_secrets(line, secrets) for line in printed]) == []


def test_lines_are_masked_faster_than_nodes_write_them():
    lines = [
        *ORDINARY,
        "DB_PASS=hunter22",
        "x" * 2000,
        "a" * 200_000,
        "token" * 20_000,
        "=" * 50_000,
        "://" * 20_000,
    ]
    for line in lines:
        began = time.process_time()
        masked_text(line)
        # Seconds of this process alone: an expression that explodes takes minutes for these.
        assert time.process_time() - began < 2


def test_a_process_that_masks_nothing_compiles_no_pattern():
    """As one that parses DAG files: the patterns take longer than all else of the import."""
    program = (
        "import json, re, urllib.parse\n"
        "real, made = re.compile, []\n"
        "re.compile = lambda pattern, flags=0: made.append(pattern) or real(pattern, flags)\n"
        "from airflow_provider_ocidist.model import masking\n"
        "print(len(made))\n"
        "assert 'hunter22' not in masking.masked_text('DB_PASS=hunter22')\n"
        "print(len(made) > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]
