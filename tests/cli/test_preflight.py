"""ocidist preflight: what would stop a job, found before it is started."""

from __future__ import annotations

import json
import random
import subprocess
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.capabilities import Finding, Mark
from airflow_provider_ocidist.backends.oci_data_science import preflight as module
from airflow_provider_ocidist.backends.oci_data_science.options import Defaults
from airflow_provider_ocidist.backends.oci_data_science.preflight.judgements import (
    image_finding,
    lets_nodes_talk,
    limit_fits,
    shape_finding,
)
from airflow_provider_ocidist.cli import main
from airflow_provider_ocidist.cli.preflight import ref_finding
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.git_source import Repository
from airflow_provider_ocidist.oci_client.credentials import OciAccess, access_of
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access
from tests.http_client import http
from tests.training_jobs import BACKEND, PROGRAMS, a_job

Preflight = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def preflight(
    tmp_path: Path, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> Preflight:
    """Run the command for a job and connection with these changes; return its findings by subject."""

    def run(code: int, connection: dict[str, Any] | None = None, **changes: Any) -> dict[str, dict[str, Any]]:
        extra = {**fields, **(connection or {})}
        monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", json.dumps({"conn_type": "oci", "extra": extra}))
        (tmp_path / "job.yaml").write_text(parsing.dump(a_job(**changes)))
        assert main(["preflight", str(tmp_path / "job.yaml"), "--json"]) == code
        return {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}

    return run


def failed(findings: dict[str, dict[str, Any]]) -> set[str]:
    return {subject for subject, finding in findings.items() if finding["mark"] == "FAIL"}


def test_a_job_that_can_run_passes_and_leaves_nothing_behind(preflight: Preflight, fields) -> None:
    findings = preflight(0, checkpoints={"uri": f"{fields['work_dir']}/kept"})
    passed = {subject for subject, finding in findings.items() if finding["mark"] == "PASS"}
    assert passed >= {
        "sign-in",
        "compartment",
        "project",
        "subnet",
        "shape",
        "work_dir",
        "checkpoints",
        "log",
    }
    assert all(finding["fix"] for finding in findings.values() if finding["mark"] != "PASS")
    assert open_store(fields["work_dir"], access_of(fields)).list() == []


def test_a_checkpoint_to_start_from_that_is_not_there_is_found(preflight: Preflight, fields) -> None:
    findings = preflight(1, checkpoints={"start_from": f"{fields['work_dir']}/nothing"})
    assert failed(findings) == {"checkpoints"}
    assert "there is no checkpoint at" in findings["checkpoints"]["message"]


@pytest.mark.parametrize(
    "text, mark, says",
    [
        ("print('fine')\n", "PASS", "compiles train/main.py"),
        ("import os\nfor x in range(3)\n    pass\n", "WARN", "in line 2: expected ':'"),
        ("if True:\nx = 1\n", "WARN", "in line 2: expected an indented block"),
        ("x = '\0'\n", "WARN", "null bytes"),
        ("# coding: no-such\n", "WARN", "no-such"),
    ],
)
def test_a_script_that_this_python_cannot_compile_is_found(
    preflight: Preflight, tmp_path: Path, text: str, mark: str, says: str
) -> None:
    code = tmp_path / "code"
    (code / "train").mkdir(parents=True)
    (code / "train" / "main.py").write_text(text)
    finding = preflight(0, program={"source": str(code), "script": "train/main.py"})["script"]
    assert finding["mark"] == mark
    assert says in finding["message"]
    assert (finding["fix"] is None) == (mark == "PASS")


def test_what_is_no_python_file_of_this_machine_is_not_compiled(preflight: Preflight, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("for x in 1 2; do echo $x; done\n")
    assert "script" not in preflight(
        0, program={"source": str(tmp_path / "run.sh"), "script": "run.sh"}, launcher={"kind": "command"}
    )
    archive = tmp_path / "code.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("main.py", "no python\n")
    assert "script" not in preflight(0, program={"source": str(archive), "script": "main.py"})


@pytest.mark.parametrize("number", range(4))
def test_a_link_behind_which_files_of_an_output_would_lie_is_named_where_nodes_are_of_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    dice = random.Random(f"preflight.{number}")
    target, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    (elsewhere / "folder").mkdir(parents=True)
    (elsewhere / "file").touch()
    target.mkdir()
    links = [name for name in "abcdef" if dice.random() < 0.5]
    for name in "abcdef":
        leads_to = elsewhere / ("folder" if name in links else dice.choice(["file", "nowhere"]))
        (target / name).symlink_to(leads_to)
    (target / "plain").mkdir()
    job = {
        "name": "linked",
        "program": {"source": str(PROGRAMS), "script": "steps.py"},
        "outputs": [{"path": "one", "uri": str(target)}, {"path": "two", "uri": f"{target}/"}],
        "work_dir": str(tmp_path / "work"),
        "backend": {"kind": "local"},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    assert main(["preflight", str(tmp_path / "job.yaml"), "--json"]) == 0
    found = [each for each in json.loads(capsys.readouterr().out) if each["subject"] == "outputs"]
    assert {each["mark"] for each in found} <= {"WARN"}
    assert [each["message"].partition(" is a link")[0] for each in found] == [
        str(target / name) for name in links
    ]


def test_everything_that_is_wrong_is_found_at_once(preflight: Preflight, emulator: Access) -> None:
    findings = preflight(
        1,
        connection={"work_dir": f"oci://absent@{emulator.namespace}/work", "log_id": "ocid1.log.oc1..absent"},
        image="registry.example/python:3",
        inputs=[{"source": f"oci://{emulator.bucket}@{emulator.namespace}/absent.bin", "target": "data.bin"}],
        outputs=[{"path": "out", "uri": f"oci://absent@{emulator.namespace}/out"}],
        backend={
            "kind": "oci_data_science",
            "shape": "VM.Standard.E4.Felx.Flex",
            "ocpus": 1,
            "memory_gb": 8,
            "subnet_id": "ocid1.subnet.oc1..absent",
            "project_id": "ocid1.datascienceproject.oc1..absent",
        },
    )
    assert failed(findings) == {"work_dir", "log", "image", "input", "output", "shape", "subnet", "project"}
    assert "create the bucket" in findings["work_dir"]["fix"]
    assert "VM.Standard.E4.Flex" in findings["shape"]["fix"]
    assert "virtual-network-family" in findings["subnet"]["fix"]


def test_a_compartment_that_may_not_be_read_is_a_warning_that_names_the_policy_where_jobs_can_be_listed(
    preflight: Preflight, emulator: Access
) -> None:
    refused = {"method": "GET", "path": "/20160918/compartments/[^/]*", "status": 404, "times": 2}
    http.post(f"{emulator.url}/_emulator/faults", json=refused).raise_for_status()
    found = preflight(0)["compartment"]
    assert found["mark"] == "WARN"
    assert found["fix"] == "allow group <yours> to inspect compartments in tenancy"
    absent = {**BACKEND, "compartment_id": "ocid1.compartment.oc1..absent"}
    found = preflight(1, backend=absent)["compartment"]
    assert found["mark"] == "FAIL"
    assert found["fix"].startswith("correct compartment_id, or: ")


def test_without_a_sign_in_nothing_else_is_tried(
    preflight: Preflight, emulator: Access, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "key.pem").write_bytes(pem)
    config = Path(emulator.config_file).read_text()
    lines = [line for line in config.splitlines() if not line.startswith("key_file")]
    (tmp_path / "config").write_text("\n".join([*lines, f"key_file={tmp_path / 'key.pem'}"]))
    (tmp_path / "config").chmod(0o600)
    findings = preflight(1, connection={"config_file": str(tmp_path / "config")})
    assert failed(findings) == set(findings) - {"script"} == {"sign-in"}
    assert "does not accept these credentials" in findings["sign-in"]["message"]


def test_a_branch_that_is_not_there_is_found(tmp_path: Path, preflight: Preflight) -> None:
    folder = tmp_path / "code.git"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    program = {"source": f"git+file://{folder}#absent", "script": "train.py"}
    assert "has no branch or tag absent" in preflight(1, program=program)["git"]["message"]
    program = {"source": f"git+file://{folder}#main", "script": "train.py"}
    assert preflight(0, program=program)["git"]["mark"] == "PASS"


def test_a_check_that_hangs_or_breaks_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()

    def hangs(_: Any) -> Iterator[Finding]:
        never.wait(60)
        yield Finding("hangs", Mark.PASS, "at last")

    def breaks(_: Any) -> Iterator[Finding]:
        yield Finding("breaks", Mark.PASS, str({}["absent"]))

    monkeypatch.setattr(module, "PATIENCE", 1.0)
    monkeypatch.setattr(module, "SIGN_IN", lambda _: [])
    fine = [Finding("fine", Mark.PASS, "here")]
    checks = (("hangs", hangs), ("breaks", breaks), ("fine", lambda _: fine), ("silent", lambda _: []))
    monkeypatch.setattr(module, "CHECKS", checks)
    backend = {**BACKEND, "compartment_id": "ocid1.compartment.oc1..a", "project_id": "ocid1.project.oc1..a"}
    job = a_job(backend=backend, work_dir="oci://bucket@namespace/work")
    found = module.preflight(job, OciAccess(), OciAccess(), Defaults())
    never.set()
    assert [(each.subject, each.mark) for each in found] == [
        ("hangs", Mark.FAIL),
        ("breaks", Mark.FAIL),
        ("fine", Mark.PASS),
    ]
    assert found[0].message == "no answer within 1 s"


@pytest.mark.parametrize(
    "ref, mark",
    [(None, Mark.PASS), ("v1", Mark.PASS), ("abcdef1", Mark.PASS), ("0123456", Mark.WARN), ("v2", Mark.FAIL)],
)
def test_what_git_lists_decides_whether_a_ref_is_there(ref: str | None, mark: Mark) -> None:
    listing = "abcdef1234\tHEAD\nabcdef1234\trefs/heads/main\n99999999\trefs/tags/v1\n"
    assert ref_finding(Repository(url="https://h/r.git", ref=ref), listing).mark is mark


def rule(**values: Any) -> Any:
    return SimpleNamespace(
        **{
            "protocol": "6",
            "source": "10.0.0.0/16",
            "source_type": "CIDR_BLOCK",
            "tcp_options": None,
            **values,
        }
    )


def ports(low: int, high: int) -> Any:
    return SimpleNamespace(destination_port_range=SimpleNamespace(min=low, max=high))


@pytest.mark.parametrize(
    "ingress, lets",
    [
        (rule(), True),
        (rule(protocol="all"), True),
        (rule(protocol="17"), False),
        (rule(source="10.0.1.0/24"), True),
        (rule(source="10.0.1.0/25"), False),
        (rule(tcp_options=ports(22, 22)), False),
        (rule(tcp_options=ports(1, 65535)), True),
        (rule(source_type="NETWORK_SECURITY_GROUP", source="ocid1.x"), False),
    ],
)
def test_a_rule_must_let_every_tcp_port_in_from_the_whole_subnet(ingress: Any, lets: bool) -> None:
    assert lets_nodes_talk(ingress, "10.0.1.0/24") is lets


@pytest.mark.parametrize(
    "image, mark",
    [
        ("iad.ocir.io/namespace/team/train:1", Mark.PASS),
        ("us-ashburn-1.ocir.io/namespace/train@sha256:00", Mark.PASS),
        ("iad.ocir.io/namespace/train", Mark.WARN),
        ("fra.ocir.io/namespace/train:1", Mark.WARN),
        ("registry.example/python:3", Mark.FAIL),
        ("python:3", Mark.FAIL),
    ],
)
def test_an_image_must_lie_where_the_service_pulls_from(image: str, mark: Mark) -> None:
    assert image_finding(image, "us-ashburn-1").mark is mark


def test_a_shape_must_be_offered_in_the_size_that_is_asked_for() -> None:
    shapes = {"VM.Standard.E4.Flex": SimpleNamespace(core_count=64, memory_in_gbs=1024)}
    assert shape_finding("VM.Standard.E4.Flex", 64, 8, shapes).mark is Mark.PASS
    assert "at most 64 OCPUs" in shape_finding("VM.Standard.E4.Flex", 65, 8, shapes).message
    assert "VM.Standard.E4.Flex" in str(shape_finding("VM.Standard.E4", None, None, shapes).fix)


def test_limits_are_known_by_the_family_of_the_shape() -> None:
    assert limit_fits("ds-gpu-a10-count", "VM.GPU.A10.2")
    assert not limit_fits("ds-gpu-a10-count", "VM.GPU.A100.2")
    assert not limit_fits("ds-standard-e3-core-regional-count", "VM.Standard.E4.Flex")
