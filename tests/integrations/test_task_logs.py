"""Task logs in a bucket, sent and read as Airflow does it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import oci
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from airflow_provider_ocidist.integrations import task_logs
from airflow_provider_ocidist.integrations.task_logs import OciTaskLogs, connection_and_folder
from scripts.emulator_process import Access
from tests.emulator.test_principals import pem_of, public_pem

DOCUMENT = Path(__file__).parents[2] / "docs" / "connection.md"
NAME = "dag_id=d/run_id=r/task_id=t/attempt=1.log"


@pytest.fixture
def logs(emulator: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OciTaskLogs:
    for name, value in emulator.airflow_env("logging").items():
        monkeypatch.setenv(name, value)
    folder = f"oci://logging@{emulator.bucket}/task-logs/{uuid.uuid4().hex[:8]}/"
    return OciTaskLogs(folder, conn_id=None, local_folder=tmp_path / "logs")


def write(logs: OciTaskLogs, text: str, name: str = NAME) -> str:
    path = logs.local_folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, newline="")
    return name


def read(logs: OciTaskLogs, name: str = NAME) -> list[str]:
    return [line for stream in logs.stream(name, None)[1] for line in stream]


def test_a_log_is_read_back_when_the_worker_is_gone(logs):
    logs.upload(write(logs, "one\ntwo\n"))
    shutil.rmtree(logs.local_folder)
    assert read(logs) == ["one", "two"]
    assert logs.stream(NAME, None)[0] == [f"{logs.uri}/{NAME}"]
    assert logs.read(NAME, None)[1] == ["one\ntwo"]


@pytest.mark.parametrize(
    "mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"], ids=ascii
)
def test_a_line_ends_where_airflow_ends_it_and_nowhere_else(logs, mark):
    """Airflow writes a JSON object in each line, and these characters as they are."""
    lines = [json.dumps({"event": f"a{mark}b"}, ensure_ascii=False), "", f"{mark}c{mark}"]
    logs.upload(write(logs, "".join(f"{line}\n" for line in lines)))
    assert read(logs) == lines


def test_a_line_of_windows_and_one_that_is_not_ended_are_lines(logs):
    logs.upload(write(logs, "one\r\n\r\ntwo\rthree"))
    assert read(logs) == ["one", "", "two\rthree"]


def test_a_task_that_was_resumed_on_the_same_worker_has_no_line_twice(logs):
    logs.upload(write(logs, "one\n"))
    logs.upload(write(logs, "one\ntwo\n"))
    logs.upload(NAME)
    assert read(logs) == ["one", "two"]


def test_a_task_that_was_resumed_on_another_worker_has_the_lines_of_both(logs):
    logs.upload(write(logs, "one\n"))
    logs.upload(write(logs, "two\n"))
    logs.upload(NAME)
    assert read(logs) == ["one", "two"]


def test_a_task_that_came_back_to_a_worker_has_no_line_twice(logs):
    logs.upload(write(logs, "one\n"))
    logs.upload(write(logs, "two\n"))
    logs.upload(write(logs, "one\nthree\n"))
    logs.upload(write(logs, "two\nfour"))
    logs.upload(write(logs, "one\nthree\nfive\n"))
    logs.upload(NAME)
    assert read(logs) == ["one", "two", "three", "four", "five"]


def test_the_log_of_the_trigger_is_read_too_and_that_of_another_attempt_is_not(logs):
    for name in (NAME, f"{NAME}.trigger.7.log", NAME.replace("=1.", "=10.")):
        logs.upload(write(logs, f"{name}\n", name))
    assert read(logs) == [NAME, f"{NAME}.trigger.7.log"]


def test_the_local_copy_is_deleted_where_airflow_is_set_to(logs):
    logs.delete_local = True
    logs.upload(write(logs, "one\n"))
    assert not (logs.local_folder / NAME).exists()
    assert read(logs) == ["one"]


OTHERS = {
    "of an attempt whose upload failed": NAME,
    "of the trigger, which is still written": f"{NAME.replace('=1.', '=2.')}.trigger.7.log",
    "of a mapped task": "dag_id=d/run_id=r/task_id=t/map_index=1/attempt=2.log",
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_local_log_stays_until_it_is_uploaded_itself(logs, other):
    logs.delete_local = True
    write(logs, "not sent\n", other)
    logs.upload(write(logs, "sent\n", NAME.replace("=1.", "=2.")))
    assert [path.read_text() for path in logs.local_folder.rglob("*.log")] == ["not sent\n"]
    logs.upload(other)
    assert read(logs, other) == ["not sent"]
    assert list(logs.local_folder.rglob("*.log")) == []
    assert (logs.local_folder / "dag_id=d" / "run_id=r").is_dir(), (
        "another task may be about to write below it"
    )
    assert not (logs.local_folder / other).parent.exists()


def test_a_local_log_that_grows_during_its_upload_stays(logs, monkeypatch):
    logs.delete_local = True
    path = logs.local_folder / write(logs, "sent\n")
    store = logs._store

    class Grown:
        def __getattr__(self, name):
            return getattr(store, name)

        def write(self, name, content):
            store.write(name, content)
            with path.open("a") as file:
                file.write("later\n")

    monkeypatch.setattr(logs, "_store", Grown())
    logs.upload(NAME)
    assert path.read_text() == "sent\nlater\n"


RESUMED = """
import sys
with open(sys.argv[1], "a") as file:
    print("open", flush=True)
    sys.stdin.readline()
    file.write("later\\n")
"""


def test_a_local_log_stays_while_the_process_of_the_resumed_task_has_it_open(logs):
    """It has written nothing yet: by its size alone, all of it is uploaded."""
    logs.delete_local = True
    path = logs.local_folder / write(logs, "one\n")
    command = [sys.executable, "-c", RESUMED, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as resumed:
        assert resumed.stdout.readline() == "open\n"
        with path.open("a"):
            # As Airflow has it: the process that uploads it may have it open itself.
            logs.upload(NAME)
        resumed.communicate("\n")
    assert path.read_text() == "one\nlater\n"
    logs.upload(NAME)
    assert not path.exists()
    assert read(logs) == ["one", "later"]


def test_a_local_log_that_is_opened_while_it_is_deleted_stays(logs, monkeypatch):
    logs.delete_local = True
    path = logs.local_folder / write(logs, "one\n")
    answers = iter([False, True])
    monkeypatch.setattr(task_logs, "is_open_elsewhere", lambda _: next(answers))
    logs.upload(NAME)
    assert [file.read_text() for file in path.parent.iterdir()] == ["one\n"]
    assert path.exists()


def test_a_process_that_lives_on_reads_and_uploads_with_the_key_that_has_replaced_its_first(
    logs, emulator, tmp_path, monkeypatch
):
    def connect_with(**fields: str) -> None:
        for name, value in emulator.airflow_env("logging", **fields).items():
            monkeypatch.setenv(name, value)

    own = oci.config.from_file(emulator.config_file, emulator.profile)
    identity = oci.identity.IdentityClient(own, service_endpoint=emulator.url)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (tmp_path / "key.pem").write_text(pem_of(key))
    for act in (lambda: logs.upload(write(logs, "one\ntwo\n")), lambda: read(logs)):
        first = identity.upload_api_key(
            own["user"], oci.identity.models.CreateApiKeyDetails(key=public_pem(key))
        )
        old = {**own, "key_file": str(tmp_path / "key.pem"), "fingerprint": first.data.fingerprint}
        lines = [f"{name}={old[name]}" for name in ("user", "tenancy", "region", "key_file", "fingerprint")]
        (tmp_path / "config").write_text("\n".join(["[DEFAULT]", *lines]))
        connect_with(config_file=str(tmp_path / "config"), profile="DEFAULT")
        logs.upload(write(logs, "one\n"))
        identity.delete_api_key(own["user"], first.data.fingerprint)
        connect_with()
        act()
    assert read(logs) == ["one", "two"]


def test_an_unreadable_place_is_reported_where_the_log_would_be(logs):
    broken = OciTaskLogs("oci://logging@no-such-bucket/x", conn_id=None, local_folder=logs.local_folder)
    sources, lines = broken.stream(NAME, None)
    assert lines == []
    assert "no-such-bucket" in sources[0]


@pytest.mark.parametrize(
    "folder, conn_id, expected",
    [
        ("oci://prod@bucket/logs/", None, ("prod", "oci://bucket/logs")),
        ("oci://prod@bucket/logs", "prod", ("prod", "oci://bucket/logs")),
        ("oci://bucket@space/logs", "prod", ("prod", "oci://bucket@space/logs")),
        ("oci://bucket/logs", "", ("oci_default", "oci://bucket/logs")),
    ],
)
def test_the_place_names_the_connection(folder, conn_id, expected):
    assert connection_and_folder(folder, conn_id) == expected


def test_another_kind_of_place_is_refused():
    with pytest.raises(ValueError, match="write oci://connection@bucket/logs"):
        connection_and_folder("oci:///logs", None)


def test_airflow_starts_with_the_documented_settings_and_finds_who_keeps_its_logs(tmp_path):
    settings = dict(re.findall(r"^export (AIRFLOW__LOGGING__\w+)=(\S+)$", DOCUMENT.read_text(), re.MULTILINE))
    program = (
        "from airflow.sdk.log import load_remote_conn_id, load_remote_log_handler; "
        "print(type(load_remote_log_handler()).__name__, load_remote_log_handler().uri, load_remote_conn_id())"
    )
    env = {**os.environ, **settings, "AIRFLOW_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["OciTaskLogs oci://bucket/logs oci_default"], done.stderr
