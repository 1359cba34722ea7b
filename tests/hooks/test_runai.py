"""What becomes of a connection of type `runai`: in Airflow, on the command line, in the form's test."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from airflow.providers.common.compat.sdk import redact

from airflow_provider_ocidist.backends.connections import named_for
from airflow_provider_ocidist.backends.runai import Runai
from airflow_provider_ocidist.backends.runai.options import Fields
from airflow_provider_ocidist.cli import main
from airflow_provider_ocidist.cli.connection import connection_of
from airflow_provider_ocidist.emulator.runai.server import RunaiAccess, RunaiServer
from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings
from airflow_provider_ocidist.hooks import OciHook
from airflow_provider_ocidist.hooks.runai import RunaiHook
from airflow_provider_ocidist.provider_info import RUNAI_FIELDS
from tests.emulator.runai.clusters import PaperCluster


@pytest.fixture(scope="module")
def access() -> Iterator[RunaiAccess]:
    with RunaiServer(PaperCluster(), RunaiSettings()) as found:
        yield found


def as_json(access: RunaiAccess, **extra: Any) -> str:
    value = {
        "conn_type": "runai",
        "host": access.url,
        "login": access.client_id,
        "password": access.client_secret,
        "extra": {"project": access.project, **extra},
    }
    return json.dumps(value)


def as_uri(access: RunaiAccess, **extra: Any) -> str:
    user = f"{quote(access.client_id, safe='')}:{quote(access.client_secret, safe='')}"
    query = "&".join(
        f"{name}={quote(value, safe='')}" for name, value in {"project": access.project, **extra}.items()
    )
    return f"runai://{user}@{quote(access.url, safe='')}?{query}"


@pytest.mark.parametrize("form", [as_json, as_uri])
def test_either_form_of_a_connection_reaches_the_control_plane_from_airflow_and_the_command_line(
    access: RunaiAccess, monkeypatch: pytest.MonkeyPatch, form: Any
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", form(access, work_dir="s3://bucket/ocidist"))
    hook = RunaiHook("tried")
    assert hook.test_connection() == (True, "connected: projects others, research")
    spoken = connection_of(argparse.Namespace(conn_id="tried", field=[]))
    assert Fields.of(hook.fields) == Fields.of(spoken)
    assert spoken["work_dir"] == "s3://bucket/ocidist"
    # Operators and triggers ask by the one hook for all kinds.
    assert isinstance(OciHook("tried", kind="runai").backend(), Runai)


@pytest.mark.parametrize("conn_id, named", [("runai_default", "runai_default"), ("oci_default", None)])
def test_a_command_names_the_connection_of_a_gang_unless_that_is_the_one_of_all_commands(
    access: RunaiAccess, monkeypatch: pytest.MonkeyPatch, conn_id: str, named: str | None
) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", as_json(access))
    for hook in (RunaiHook(conn_id), OciHook(conn_id)):
        assert named_for(hook.backend("runai")) == named


def test_the_forms_test_names_what_is_wrong(access: RunaiAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", as_json(access).replace(access.client_secret, "wrong-secret"))
    works, message = RunaiHook("tried").test_connection()
    assert (works, "wrong-secret" in message) == (False, False)
    assert "renew its secret in the connection" in message
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", as_json(access, project="reserch"))
    assert RunaiHook("tried").test_connection()[1].startswith("connected, but there is no project reserch")


def test_the_secret_is_masked_in_logs(access: RunaiAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", as_json(access))
    secret = RunaiHook("tried").fields["client_secret"]
    assert secret not in str(redact(f"the secret is {secret}"))


def test_every_field_of_the_form_is_one_that_the_backend_reads() -> None:
    assert set(RUNAI_FIELDS) <= set(Fields.__dataclass_fields__)


def test_the_plan_is_the_request_and_the_command_lines_that_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: train\nnodes: 2\nimage: nvcr.io/acme/train:1\nprogram: {script: /app/train.py}\n"
        "env: {API_TOKEN: hf_abcdefghij}\n"
        "backend: {kind: runai, gpus: 8, secrets: {HF_TOKEN: {name: hugging-face, key: token}}}\n"
    )
    assert main(["plan", str(file)]) == 0
    text = capsys.readouterr().out
    assert "<id of project <project of the connection>>" in text
    assert re.search(
        r"runai submit-dist pytorch --name train-task-\S+ .*--workers=1 -i nvcr.io/acme/train:1", text
    )
    assert re.search(r"runai training pytorch submit train-task-\S+ .*--workers=1", text)
    assert "hf_abcdefghij" not in text
    assert main(["plan", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (request,) = report["requests"]
    assert request["verb"] == "CreateDistributed"
    assert request["body"]["spec"]["numWorkers"] == 1
    assert set(report["equivalents"]) == {"v1", "v2"}
