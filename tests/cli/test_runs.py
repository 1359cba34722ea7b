"""ocidist run, status, logs, watch, cancel, show-config and copy, against the emulator."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.calls import list_runs, pages
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.run import RunKey, RunRecord
from scripts.emulator_process import Access
from tests.http_client import http
from tests.training_jobs import BACKEND, PROGRAMS, a_job


class Terminal:
    """A folder with a job file, and an `ocidist` that knows the emulator."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.env = {**os.environ, **env}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "airflow_provider_ocidist.cli", *arguments]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.folder, env=self.env, text=True, **streams)

    def __call__(self, *arguments: str, code: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, f"{arguments}: {process.returncode}\n{out}\n{err}"
        return out + err

    def write_job(self, **changes) -> None:
        (self.folder / "job.yaml").write_text(parsing.dump(a_job(**changes)))


@pytest.fixture
def ocidist(tmp_path: Path, emulator: Access) -> Terminal:
    terminal = Terminal(tmp_path, emulator.airflow_env())
    terminal.write_job()
    return terminal


def test_a_run_is_followed_to_its_end_and_can_be_looked_at_afterwards(ocidist: Terminal) -> None:
    text = ocidist("run", "job.yaml", "--wait", "--interval", "0.3")
    assert "[node 0] " in text
    assert "[node 1] " in text
    assert "succeeded; newest checkpoint: oci://" in text
    info = yaml.safe_load((ocidist.folder / "info.yaml").read_text())
    assert info["mainJobRunId"].startswith("ocid1.datasciencejobrun.")
    assert len(info["otherJobRunIds"]) == 1
    status = json.loads(ocidist("status", "--json"))
    assert (status["ended"], [node["state"] for node in status["nodes"]]) == (True, ["SUCCEEDED"] * 2)
    assert "nodes: 2 SUCCEEDED" in ocidist("status", info["otherJobRunIds"][0])
    assert "[node 1] " in ocidist("logs")
    assert yaml.safe_load(ocidist("show-config")) == info
    assert "succeeded" in ocidist("watch", "info.yaml")
    planned = ocidist(
        "plan", "job.yaml", "--like", "info.yaml", "--set", 'prices={"*": 3600}', "--nodes", "1"
    )
    cost = next(line for line in planned.splitlines() if line.startswith("cost: "))
    assert re.match(
        r"cost: about 0\.\d\d node-hours \(cost \d+\.\d\d\) if it goes as steps-run-\S+ did, "
        r"which had 2 nodes; not bounded",
        cost,
    )
    # The file is what runs; with another number of steps it is not.
    assert ocidist("diff", "info.yaml", "job.yaml") == "no difference\n"
    ocidist.write_job(seconds=7)
    told = json.loads(ocidist("diff", info["jobId"], "job.yaml", "--json", code=1))
    assert [item["path"].rpartition("OCIDIST_CONFIG.")[2] for item in told] == ["program.args.1"]


def test_a_run_that_somebody_else_started_is_known_by_any_of_its_ids(
    ocidist: Terminal, backend: OciDataScience, ends
) -> None:
    job = a_job(
        seconds=600,
        limits={"stop_grace": 1, "max_runtime": "1h"},
        backend={**BACKEND, "topology": "multi_node"},
    )
    key = RunKey(dag_id=f"dag-{uuid.uuid4().hex[:6]}", run_id="manual", task_id="train")
    plan = backend.plan(job, key)
    ref = ends(backend.submit(plan))
    worker = ref.run_ids[1]
    shown = yaml.safe_load(ocidist("show-config", worker))
    record = RunRecord.from_json(shown["record"])
    assert record == RunRecord.of(ref, job, plan.expects)
    assert (shown["jobId"], shown["mainJobRunId"]) == (ref.job_id, ref.run_ids[0])
    (gang,) = json.loads(ocidist("list", key.dag_id, "--json"))
    assert (gang["name"], gang["nodes"], gang["dag_id"], gang["job_id"]) == (
        key.name,
        2,
        key.dag_id,
        ref.job_id,
    )
    assert gang["state"] in ("PENDING", "RUNNING")
    assert key.name in ocidist("list", "--limit", "1")
    assert "no run of ocidist" in ocidist("list", "no-such-name")
    watching = ocidist.start("watch", ref.main_run_id, "--interval", "0.3")
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith("[node ")
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=60)
    assert (watching.returncode, "the run continues" in said) == (130, True)
    ended = json.loads(ocidist("cancel", worker, "--interval", "0.3", "--json"))
    assert {node["state"] for node in ended["nodes"]} == {"CANCELED"}


@pytest.mark.parametrize(
    "target, complaint",
    [
        ("ocid1.datasciencejobrun.oc1.iad.absent", "not found, or these credentials may not see it"),
        ("ocid1.bucket.oc1.iad.a", "is not the OCID of a job or of a job run"),
    ],
)
def test_an_id_of_nothing_that_runs_is_one_line(ocidist: Terminal, target: str, complaint: str) -> None:
    text = ocidist("status", target, code=2)
    assert complaint in text
    assert len(text.splitlines()) == 1


def test_a_watch_goes_on_when_the_service_answers_again(ocidist: Terminal, emulator: Access) -> None:
    # It may end while nobody can see it: the watch goes on either way.
    ocidist.write_job(seconds=12)
    ocidist("run", "job.yaml")
    watching = ocidist.start("watch", "--json", "--interval", "0.3")
    assert watching.stdout is not None
    json.loads(watching.stdout.readline())
    faults = f"{emulator.url}/_emulator/faults"
    http.post(faults, json={"path": "/20190101/.*", "status": 503}).raise_for_status()
    try:
        events = [json.loads(watching.stdout.readline())]
        while "will ask again" not in events[-1].get("text", ""):
            events.append(json.loads(watching.stdout.readline()))
    finally:
        http.delete(faults).raise_for_status()
    rest, _ = watching.communicate(timeout=120)
    events += [json.loads(line) for line in rest.splitlines()]
    assert watching.returncode == 0
    assert (events[-1]["event"], events[-1]["outcome"]) == ("end", "SUCCEEDED")
    assert events[-1]["result"]["checkpoint_uri"].startswith("oci://")
    assert {event["event"] for event in events} >= {"message", "log", "status", "end"}


def test_on_a_terminal_a_watch_keeps_its_summary_below_the_lines(ocidist: Terminal) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 160, 0, 0))
    command = [
        sys.executable,
        "-m",
        "airflow_provider_ocidist.cli",
        "run",
        "job.yaml",
        "--wait",
        "--interval",
        "0.3",
    ]
    environ = {name: value for name, value in ocidist.env.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    process = subprocess.Popen(
        command, cwd=ocidist.folder, env=environ, stdout=slave, stderr=slave, stdin=slave
    )
    os.close(slave)
    shown = b""
    try:
        # Linux reports the end of the other side as an error.
        with suppress(OSError):
            while piece := os.read(master, 65536):
                shown += piece
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(master)
    text = shown.decode()
    assert re.search(r"steps-run-\w+-g0-a1 \| 0:\d\d \|", text)
    assert "1: RUNNING" in text
    assert "\x1b[?25h" in text, "the cursor is shown again"
    assert "succeeded; newest checkpoint" in text.rpartition("a1 |")[2]


def test_a_second_run_does_not_overwrite_the_note_of_the_first(ocidist: Terminal) -> None:
    (ocidist.folder / "info.yaml").write_text("precious")
    assert "belongs to an earlier run" in ocidist("run", "job.yaml", code=2)
    assert (ocidist.folder / "info.yaml").read_text() == "precious"


def test_cancel_ends_all_nodes(ocidist: Terminal) -> None:
    ocidist.write_job(seconds=60)
    ocidist("run", "job.yaml")
    assert "CANCELED" in ocidist("cancel", "--interval", "0.3")
    watched = ocidist("watch", code=3)
    assert "CANCELED: the run was cancelled\nRemedy: run it again\n" in watched


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda how: how.name)
def test_a_signal_ends_a_run_that_is_waited_for(
    ocidist: Terminal, backend: OciDataScience, how: signal.Signals
) -> None:
    ocidist.write_job(seconds=60)
    process = ocidist.start("run", "job.yaml", "--wait", "--interval", "0.3")
    note = ocidist.folder / "info.yaml"
    while not (note.exists() and "jobId" in note.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode == 128 + how
    record = RunRecord.from_json(yaml.safe_load(note.read_text())["record"])
    runs = list_runs(lambda: backend._client, record.ref.compartment_id, job_id=record.ref.job_id)
    assert len(runs) == 2
    assert {run.lifecycle_state for run in runs} <= {"CANCELING", "CANCELED"}
    assert "nodes: 2 " in ocidist("status")
    assert record.lease, "killed harder, it would leave nodes without an end"
    assert "CANCELED" in ocidist("cancel", "--interval", "0.3")


def test_a_signal_before_the_note_is_complete_ends_what_was_created(
    ocidist: Terminal, backend: OciDataScience, faults: Any
) -> None:
    ocidist.write_job(name=(name := f"cut-{uuid.uuid4().hex[:6]}"), seconds=60)
    # All nodes are there, and the record of them is on its way.
    faults(method="PUT", path="/n/.*attempts.*", latency_s=2.0)
    process = ocidist.start("run", "job.yaml", "--wait", "--interval", "0.3")
    while len(runs_named(backend, name)) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, shown
    assert "jobId" not in (ocidist.folder / "info.yaml").read_text()
    assert {run.lifecycle_state for run in runs_named(backend, name)} <= {"CANCELING", "CANCELED"}, shown
    assert "cancelled" in shown


def test_output_that_nobody_reads_ends_a_run_that_is_waited_for(
    ocidist: Terminal, backend: OciDataScience
) -> None:
    ocidist.write_job(name=(name := f"head-{uuid.uuid4().hex[:6]}"), seconds=60)
    process = ocidist.start("run", "job.yaml", "--wait", "--interval", "0.3")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 2
    assert process.stderr is not None
    assert "cancelled" in process.stderr.read()
    assert {run.lifecycle_state for run in runs_named(backend, name)} <= {"CANCELING", "CANCELED"}


@pytest.mark.parametrize("unread, form", [(("stdout", "stderr"), ()), (("stderr",), ("--json",))], ids=str)
def test_a_run_that_nobody_waits_for_is_whole_and_noted_though_nobody_reads_its_output(
    ocidist: Terminal, backend: OciDataScience, unread: Sequence[str], form: Sequence[str]
) -> None:
    ocidist.write_job(name=(name := f"head-{uuid.uuid4().hex[:6]}"), seconds=60)
    process = ocidist.start("run", "job.yaml", *form)
    assert process.stdout is not None
    for each in unread:
        getattr(process, each).close()
    printed = "" if "stdout" in unread else process.stdout.read()
    assert process.wait(60) == 0
    note = yaml.safe_load((ocidist.folder / "info.yaml").read_text())
    assert {note["mainJobRunId"], *note["otherJobRunIds"]} == {run.id for run in runs_named(backend, name)}
    assert (note["jobId"] in printed) == ("stdout" not in unread)
    backend.cancel(RunRecord.from_json(note["record"]).ref)


def test_a_watch_whose_output_nobody_reads_does_not_claim_a_success_and_the_run_goes_on(
    ocidist: Terminal, backend: OciDataScience
) -> None:
    ocidist.write_job(name=(name := f"head-{uuid.uuid4().hex[:6]}"), seconds=60)
    ocidist("run", "job.yaml")
    process = ocidist.start("watch", "--interval", "0.3")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 141
    assert {run.lifecycle_state for run in runs_named(backend, name)} <= {"ACCEPTED", "IN_PROGRESS"}
    ocidist("cancel")


def test_a_run_without_a_log_group_has_no_logs_and_says_so(ocidist: Terminal, emulator: Access) -> None:
    extra = json.loads(ocidist.env["AIRFLOW_CONN_OCI_DEFAULT"])["extra"]
    extra.pop("log_group_id", None)
    extra.pop("log_id", None)
    ocidist.env["AIRFLOW_CONN_OCI_DEFAULT"] = json.dumps({"conn_type": "oci", "extra": extra})
    ocidist("run", "job.yaml", "--set", "nodes=1")
    assert "output is not kept; for the next run name a log group in" in ocidist("logs", code=2)
    note = yaml.safe_load((ocidist.folder / "info.yaml").read_text())
    assert RunRecord.from_json(note["record"]).lease is None, "nobody waits for it"
    ocidist("cancel")


@pytest.fixture
def slow_answers(emulator: Access) -> Iterator[None]:
    """Give a test the time to end a process while it creates a gang."""
    rule = {"method": "POST", "path": "/20190101/.*", "latency_s": 0.5}
    http.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()
    yield
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()


@pytest.mark.usefixtures("slow_answers")
@pytest.mark.parametrize("signals", [[signal.SIGKILL, signal.SIGINT], [signal.SIGINT]])
def test_a_run_that_is_cut_off_while_it_is_created_goes_on_by_the_same_command(
    ocidist: Terminal, backend: OciDataScience, emulator: Access, signals: list[signal.Signals]
) -> None:
    ocidist.write_job(name=(name := f"cut-{uuid.uuid4().hex[:6]}"), seconds=60)
    for how in signals:
        begun = time.time()
        process = ocidist.start("run", "job.yaml")
        while not has_created(emulator, since=begun):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        time.sleep(random.random())
        process.send_signal(how)
        output = process.communicate(timeout=60)
        assert process.returncode == (130 if how is signal.SIGINT else -how), output
        assert "to complete it" in ocidist("status", code=2)
    ocidist("run", "job.yaml")
    info = yaml.safe_load((ocidist.folder / "info.yaml").read_text())
    jobs = [job for job in jobs_of(backend) if job.display_name.startswith(name)]
    assert info["jobId"] in [job.id for job in jobs]
    # A job whose runs Ctrl-C has ended stays for its log.
    active = [run.id for run in runs_named(backend, name) if not run.time_finished]
    assert sorted(active) == sorted([info["mainJobRunId"], *info["otherJobRunIds"]])
    assert len(jobs) <= 1 + signals.count(signal.SIGINT)
    backend.cancel(RunRecord.from_json(info["record"]).ref)


def has_created(emulator: Access, since: float) -> bool:
    """Whether something was asked to be created since a time; what a killed process had asked is recorded late."""
    asked = {"method": "POST", "path": "/20190101/.*"}
    calls = http.get(f"{emulator.url}/_emulator/calls", params=asked).json()
    return any(call["time"] >= since for call in calls)


def jobs_of(backend: OciDataScience) -> list[Any]:
    place = backend.defaults.compartment_id
    return [job for job in pages(backend._client.list_jobs, place) if job.lifecycle_state == "ACTIVE"]


def runs_named(backend: OciDataScience, name: str) -> list[Any]:
    """Return the job runs of a job that begins so."""
    return [
        run
        for job in jobs_of(backend)
        if job.display_name.startswith(name)
        for run in list_runs(lambda: backend._client, backend.defaults.compartment_id, job_id=job.id)
    ]


def test_where_no_note_can_be_written_nothing_is_created(ocidist: Terminal, backend: OciDataScience) -> None:
    ocidist.write_job(name=(name := f"nowhere-{uuid.uuid4().hex[:6]}"))
    text = ocidist("run", "job.yaml", "--info", "missing/info.yaml", code=2)
    assert text == "ocidist: missing/info.yaml: No such file or directory; name another file with --info\n"
    assert not any(job.display_name.startswith(name) for job in jobs_of(backend))


def test_two_runs_at_the_same_moment_do_not_share_a_note(ocidist: Terminal) -> None:
    ocidist.write_job(seconds=60)
    pair = [ocidist.start("run", "job.yaml") for _ in range(2)]
    told = [process.communicate(timeout=120)[1] for process in pair]
    assert "CANCELED" in ocidist("cancel", "--interval", "0.3")
    info = yaml.safe_load((ocidist.folder / "info.yaml").read_text())
    # Either one was refused, or both saw the same note and completed the same gang.
    names = {line.split(":")[0] for text in told for line in text.splitlines() if "saved in" in line}
    assert names == {RunRecord.from_json(info["record"]).ref.key.name}, told


def test_a_failed_training_is_exit_code_3_with_its_cause(ocidist: Terminal) -> None:
    program = {"source": str(PROGRAMS), "script": "steps.py", "args": ["--fail-rank", "1"]}
    ocidist.write_job(program=program)
    assert "USER: " in ocidist("run", "job.yaml", "--wait", "--interval", "0.3", code=3)


def test_copy_brings_a_tree_to_a_bucket_and_back(ocidist: Terminal, emulator: Access) -> None:
    (ocidist.folder / "tree").mkdir()
    (ocidist.folder / "tree" / "a b.txt").write_text("hello")
    bucket = f"oci://{emulator.bucket}@{emulator.namespace}/cli-copy/"
    report = json.loads(ocidist("copy", "tree/", bucket, "--json").partition("copy:")[0])
    assert (report["files"], report["bytes"]) == (1, 5)
    ocidist("copy", bucket, "back/")
    assert (ocidist.folder / "back" / "a b.txt").read_text() == "hello"


@pytest.mark.parametrize(
    "connection, complaint",
    [
        ("{", "AIRFLOW_CONN_OCI_DEFAULT does not contain a connection: it is not JSON"),
        ('{"extra": {"auth": "nonsense"}}', "auth is 'nonsense'"),
    ],
)
def test_a_wrong_connection_is_one_line_and_exit_code_2(ocidist: Terminal, connection, complaint) -> None:
    ocidist.env["AIRFLOW_CONN_OCI_DEFAULT"] = connection
    text = ocidist("copy", "oci://bucket@namespace/a", "b", code=2)
    assert complaint in text
    assert len(text.splitlines()) == 1


def test_without_a_note_it_says_which_file_is_missing(ocidist: Terminal) -> None:
    assert ocidist("status", code=2).startswith("ocidist: info.yaml: No such file")


def test_copy_can_leave_alone_what_is_there_already(ocidist: Terminal, emulator: Access) -> None:
    (ocidist.folder / "file.txt").write_text("hello")
    target = f"oci://{emulator.bucket}@{emulator.namespace}/cli-changed/"
    ocidist("copy", "file.txt", target)
    assert "1 file unchanged at the target" in ocidist("copy", "file.txt", target, "--mode", "changed")
