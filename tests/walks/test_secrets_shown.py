"""Secrets at every place of a job, and everything that is shown of it: none of them can be read anywhere.

A program prints all that it was given, and fails with it. TEST_SEED chooses the secrets, and is printed.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import random
import re
import uuid
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from airflow.providers.common.compat.sdk import redact
from airflow.sdk import DAG

from airflow_provider_ocidist.agent.output_masking import MaskingFormatter, OutputMask
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.cli import main, terminal
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.failure import Failure
from airflow_provider_ocidist.gangs.gang_log import GangLog
from airflow_provider_ocidist.gangs.plan_view import readable
from airflow_provider_ocidist.hooks import task_context
from airflow_provider_ocidist.hooks.errors import training_failure
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.masking import masked_messages, without_secrets
from airflow_provider_ocidist.model.run import RunRef, RunStatus
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.operators.training import show_plan
from airflow_provider_ocidist.plugin import view
from airflow_provider_ocidist.plugin.records import TaskId, TaskRecord
from airflow_provider_ocidist.plugin.status_cache import StatusCache
from scripts.emulator_process import Access
from tests.canaries import Canaries, arguments, environment
from tests.http_client import http
from tests.training_jobs import BACKEND, a_job, a_key, wait_until

SEED = int(os.environ.get("TEST_SEED", random.randrange(10**9)))
PRINTS_ALL = """
import json, os, sys, time
everything = {"env": dict(os.environ), "argv": sys.argv}
print(" ".join(sys.argv))
print(json.dumps(everything))
print(everything, file=sys.stderr)
for name, value in os.environ.items():
    print(f"{name}={value}", flush=True)
for letter in os.environ.get("SLOWLY", ""):
    sys.stdout.write(letter), sys.stdout.flush()
    time.sleep(0.001)
print()
raise RuntimeError(f"cannot log in: {everything}")
"""


def drawn(case: object) -> Canaries:
    """Return the secrets of a case, which the suite's seed decides."""
    print(f"TEST_SEED={SEED}")
    return Canaries(random.Random(f"{SEED} {case}"))


@dataclass
class GangWithSecrets:
    """A gang whose program has printed all that it was given."""

    canaries: Canaries
    job: Any
    ref: RunRef
    status: RunStatus
    backend: OciDataScience


@pytest.fixture(params=["job_runs", "multi_node"])
def gang(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    backend: OciDataScience,
    ends: Callable[[RunRef], RunRef],
) -> GangWithSecrets:
    # For each test its own: what one has made known to be secret must not hide it from the next.
    canaries = drawn(request.node.name)
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(PRINTS_ALL)
    job = a_job(
        nodes=2,
        program={"source": str(code), "script": "train.py", "args": arguments(canaries)},
        env={**environment(canaries), "HF_TOKEN": canaries.known_format(), "LEGIBLE": "plain"},
        main_env={"DB_PASS": canaries.secret("main_env")},
        worker_env={"DB_PASS": canaries.secret("worker_env")},
        backend={**BACKEND, "topology": request.param},
    )
    slowly = canaries.secret("printed letter by letter")
    job = parsing.build({**job.to_mapping(), "env": {**job.env, "SLOWLY": f"https://{slowly}@host"}})
    ref = ends(backend.submit(backend.plan(job, a_key())))
    status = wait_until(backend, ref, lambda status: status.ended)
    return GangWithSecrets(canaries, job, ref, status, backend)


def printed(*command: str) -> str:
    """Return what a command prints."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        main(list(command))
    return out.getvalue() + err.getvalue()


def test_nothing_that_a_node_was_given_as_a_secret_leaves_it(gang: GangWithSecrets) -> None:
    lines = [line.text for line in gang.backend.logs(gang.ref, (0.0,) * gang.ref.nodes)]
    assert "LEGIBLE=plain" in "\n".join(lines)
    assert "cannot log in" in "\n".join(lines)
    reports = [repr(node.report) for node in gang.status.nodes]
    assert gang.canaries.leaked(*lines, *reports) == []


def test_no_output_shows_a_secret(
    gang: GangWithSecrets, emulator: Access, conn_id: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = gang.backend.open(gang.ref.job_id)
    failed = Failure.of(Cause.USER, gang.status.nodes[0].report.message or "", record, gang.status)
    page = asyncio.run(StatusCache().at(conn_id, gang.ref))
    key = gang.ref.key
    row = TaskRecord(
        id=TaskId(dag_id=key.dag_id, run_id=key.run_id, task_id=key.task_id, map_index=-1),
        state="failed",
        operator="DistributedTrainingOperator",
        try_number=1,
        conn_id=conn_id,
        ref=gang.ref,
    )
    for name, value in emulator.airflow_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(terminal, "_hidden", set())
    file = tmp_path / "job.yaml"
    file.write_text(parsing.dump(gang.job))
    other = tmp_path / "other.yaml"
    changed = {**gang.job.env, **environment(gang.canaries)}
    other.write_text(parsing.dump(replace(gang.job, env=changed)))
    texts = [
        json.dumps(task_context.without_secrets(failed.to_json())),
        failed.sentence,
        str(training_failure(Cause.USER, failed.sentence)),
        json.dumps(masked_messages(view.task_view(row, page, 1.0), page.secrets)),
        *(printed(command, gang.ref.job_id) for command in ("logs", "status", "show-config", "watch")),
        *(printed(command, gang.ref.job_id, "--json") for command in ("logs", "status")),
        printed("plan", str(file)),
        printed("plan", str(file), "--json"),
        printed("diff", gang.ref.job_id, str(other)),
        printed("diff", str(file), str(other), "--json"),
        *(
            http.get(f"{emulator.url}/_emulator/ui/jobs/{gang.ref.job_id}{rest}").text
            for rest in ("", "/logs")
        ),
        http.get(f"{emulator.url}/_emulator/ui/calls").text,
    ]
    assert any("cannot log in" in text for text in texts)
    assert gang.canaries.leaked(*texts) == []


def test_a_task_shows_no_secret_before_it_runs(conn_id: str) -> None:
    for number in range(8):
        canaries = drawn(number)
        job = {
            "name": "gpt",
            "nodes": 2,
            "program": {
                "source": "https://git.example.com/x.git",
                "script": "x.py",
                "args": arguments(canaries),
            },
            "env": environment(canaries),
            "main_env": environment(canaries, 2),
            "inputs": [
                {"source": f"https://h.example.com/p/{canaries.secret('PAR')}/n/ns/b/b/o/x", "target": "x"}
            ],
            "backend": {"kind": "oci_data_science", "shape": "VM.GPU.A10.1"},
        }
        with DAG(f"dag_{uuid.uuid4().hex}", schedule=None):
            task = DistributedTrainingOperator(
                task_id="train",
                job=job,
                conn_id=conn_id,
                env={"DB_PASS": canaries.secret("env of the operator")},
                overrides={"env.WANDB_KEY": canaries.secret("overrides")},
            )
        ti = SimpleNamespace(dag_id="dag", run_id="r", task_id="train", map_index=-1, max_tries=0)
        plan = show_plan({"ti": ti, "task": task}, None)
        assert "CreateJob" in plan
        fields = [json.dumps(redact(value)) for value in (task.job, task.env, task.overrides)]
        assert canaries.leaked(plan, *fields) == []
        task.job["env"]["WRONG"] = {"nested": canaries.secret("nested where none may be")}
        task.job["nodes"] = f"https://me:{canaries.secret('in a wrong value')}@x"
        assert canaries.leaked(show_plan({"ti": ti, "task": task}, None)) == []


def test_what_is_wrong_with_a_file_is_said_without_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_hidden", set())
    for seed in range(10):
        canaries = Canaries(random.Random(seed))
        file = tmp_path / "wrong.yaml"
        wrong = {
            "name": "gpt",
            "nodes": f"https://me:{canaries.secret('number')}@x",
            "program": {"script": "x.py", "args": [{"password": canaries.secret("args")}]},
            "env": {"DB_PASS": [canaries.secret("list")]},
            "launcher": {"kind": f"--token={canaries.secret('kind')}"},
            "backend": {"kind": "oci_data_science", "shape": "VM.GPU.A10.1"},
        }
        file.write_text(json.dumps(wrong))
        value = canaries.secret("--set")
        for command in ("check", "plan", "run", "preflight"):
            text = printed(command, str(file), "--set", f"env.API_KEY.x={value}")
            assert canaries.leaked(text) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_secret_cut_anywhere_does_not_pass(seed: int) -> None:
    rng = random.Random(seed)
    secrets = {"abcab-abcabd", "abcabd", 'quo"ted-secret', "x" * 30}
    said = "".join(
        rng.choice([*secrets, "abc", "ab", "plain\n", "\r", "x" * 7, json.dumps('quo"ted-secret')])
        for _ in range(60)
    )
    mask, passed, data = OutputMask(secrets), b"", said.encode()
    while data:
        length = rng.randint(1, 9)
        passed += mask(data[:length])
        data = data[length:]
    passed += mask.rest()
    assert not [secret for secret in secrets if secret in passed.decode()]
    assert passed.decode().count("plain\n") == said.count("plain\n")


@pytest.mark.parametrize("form", [lambda text: quote(text, safe=""), quote, quote_plus, json.dumps])
@pytest.mark.parametrize("is_lower", [False, True])
def test_a_secret_does_not_pass_in_the_form_in_which_an_address_has_it(
    form: Callable[[str], str], is_lower: bool
) -> None:
    secret = 'p@ss/w rd"%41:xyz'
    written = form(secret)
    if is_lower:
        written = re.sub("%..", lambda found: found[0].lower(), written)
    said = f"GET https://db.example/login?user=me&p={written}&more=1\n"
    mask = OutputMask({secret})
    passed = mask(said[:45].encode()) + mask(said[45:].encode()) + mask.rest()
    assert passed.decode() == said.replace(written.strip('"'), "***")
    assert written.strip('"') not in without_secrets(said, {secret})


def test_a_secret_that_is_no_text_is_masked_too() -> None:
    """A variable may hold any bytes."""
    secret = b"caf\xe9-secret".decode(errors="surrogateescape")
    assert OutputMask({secret})(b"it is caf\xe9-secret\n") == b"it is ***\n"
    assert without_secrets(f"it is {secret}", {secret}) == "it is ***"


def test_what_is_no_beginning_of_a_secret_passes_at_once() -> None:
    mask = OutputMask({"hunter22"})
    assert mask(b"a bar 10%") == b"a bar 10%"
    assert mask(b"\rh") == b"\r"
    assert mask(b"ello") == b"hello"
    assert OutputMask(())(b"anything") == b"anything"


def test_what_the_agent_logs_is_without_secrets_its_traceback_too() -> None:
    try:
        raise RuntimeError("postgres://me:other-secret@db, hunter22")
    except RuntimeError as error:
        raised = (type(error), error, error.__traceback__)
    record = logging.LogRecord("ocidist", logging.ERROR, "", 0, "with %s", ("hunter22",), raised)
    text = MaskingFormatter(logging.Formatter("ocidist: %(message)s"), {"hunter22"}).format(record)
    assert text.startswith("ocidist: with ***\nTraceback")
    assert "hunter22" not in text
    assert "other-secret" not in text


def test_lines_in_a_tasks_log_show_no_secret_that_shows_itself() -> None:
    said: list[str] = []
    logger = SimpleNamespace(info=lambda text, *args: said.append(text % args), warning=lambda *_: None)
    GangLog(logger, ()).write_line(SimpleNamespace(rank=3, text="login with --hf-token hunter22, step 3"))
    assert said == ["[node 3] login with --hf-token ***, step 3"]


def test_a_plan_shows_no_secret() -> None:
    for seed in range(10):
        canaries = Canaries(random.Random(seed))
        backend = OciDataScience.connect(
            {
                "compartment_id": "c",
                "project_id": "p",
                "subnet_id": "s",
                "region": "us-ashburn-1",
                "work_dir": "oci://b@n/w",
            }
        )
        job = a_job(env=environment(canaries), main_env=environment(canaries))
        assert canaries.leaked(readable(backend.plan(job, a_key()), 10**6)) == []
