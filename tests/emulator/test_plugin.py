"""The pytest plugin, as people who have installed the package use it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

HEAVY = {"airflow", "oci", "starlette", "airflow_provider_ocidist.emulator"}
USERS_TESTS = """
import subprocess
import sys

import oci
import pytest


@pytest.fixture(scope="session")
def oci_emulator_options():
    return {"grace_s": 1, "seed": 7}


def test_an_object_is_stored(oci_emulator):
    objects = oci_emulator.client("object_storage")
    place = (oci_emulator.access.namespace, oci_emulator.access.bucket)
    objects.put_object(*place, "o", b"hello")
    assert objects.get_object(*place, "o").data.content == b"hello"
    assert [call.method for call in oci_emulator.calls(path=".*/o/o")] == ["PUT", "GET"]


def test_each_test_begins_anew(oci_emulator):
    assert oci_emulator.calls() == []
    place = (oci_emulator.access.namespace, oci_emulator.access.bucket)
    assert oci_emulator.client("object_storage").list_objects(*place).data.objects == []


def test_faults_are_injected(oci_emulator):
    oci_emulator.fault(path="/n", status=429, code="TooManyRequests", times=1)
    objects = oci_emulator.client("object_storage", retry_strategy=oci.retry.NoneRetryStrategy())
    with pytest.raises(oci.exceptions.ServiceError, match="TooManyRequests"):
        objects.get_namespace()
    objects.get_namespace()
    with pytest.raises(ValueError, match="Unknown: colour"):
        oci_emulator.fault(colour="red")


def test_a_node_has_no_capacity(oci_emulator):
    oci_emulator.nodes(failure="Out of host capacity.")
    oci_emulator.seed(3)


def test_a_client_among_several_is_named(oci_emulator):
    network = oci_emulator.client("core.VirtualNetworkClient")
    assert network.get_subnet(oci_emulator.access.subnet_id).status == 200
    with pytest.raises(ValueError, match="VirtualNetworkClient"):
        oci_emulator.client("core")


def test_a_program_that_knows_nothing_of_it_is_redirected(oci_emulator, tmp_path):
    program = "import oci; print(oci.object_storage.ObjectStorageClient(oci.config.from_file()).get_namespace().data)"
    env = {"HOME": str(tmp_path), **oci_emulator.env()}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == oci_emulator.access.namespace


def test_airflow_gets_a_connection(oci_emulator):
    assert oci_emulator.url in oci_emulator.airflow_connection()
"""


def run_pytest(folder: Path, content: str, *options: str, **env: str) -> str:
    """Run a file of tests in a project that is not ours, and return what pytest says."""
    (folder / "test_mine.py").write_text(content)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout


def test_the_fixture_serves_a_users_tests(tmp_path):
    said = run_pytest(tmp_path, USERS_TESTS)
    assert "7 passed" in said, said


def test_without_its_libraries_the_fixture_says_what_to_install(tmp_path):
    (tmp_path / "conftest.py").write_text("import sys; sys.modules['uvicorn'] = None\n")
    said = run_pytest(tmp_path, "def test_it(oci_emulator): ...")
    assert "pip install 'airflow-provider-ocidist[emulator]'" in said, said


def test_the_plugin_itself_is_light():
    program = f"import sys, airflow_provider_ocidist.testing; print(*({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_session_that_a_signal_ends_leaves_no_keys_and_the_next_removes_those_of_one_that_was_killed(
    tmp_path,
):
    ends = "import os, time\ndef test_it(oci_emulator):\n    os.kill(os.getpid(), {})\n    time.sleep(60)\n"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    left = []
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP):
        run_pytest(tmp_path, ends.format(int(number)), TMPDIR=str(temporary))
        left.append(len(list(temporary.glob("*emulator*"))))
    assert left == [1, 0, 0]
