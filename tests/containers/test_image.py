"""The image of a node, and a gang of three from the compose file, in real containers."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import time
from pathlib import Path
from types import ModuleType

import pytest

from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.job import LauncherOptions, Limits, Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from scripts import image as image_of
from tests.agent.gangs import REPOSITORY, until
from tests.containers.podman import Podman

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SAVES_WHEN_ASKED = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def node(podman: Podman, image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A container that trains until it is asked to stop."""
    code = tmp_path_factory.mktemp("code")
    code.chmod(0o755)
    (code / "program.py").write_text(SAVES_WHEN_ASKED)
    config = AgentConfig(
        run_name="container",
        nodes=1,
        run_dir="/work/run",
        program=Program(script="program.py"),
        launcher=LauncherOptions(kind="python"),
        limits=Limits(stop_grace=10.0),
    )
    environ = [f"--env={name}={value}" for name, value in config.to_env().items()]
    name = podman.start(image, *environ, f"--volume={code}:/code:ro")
    until(lambda: "ready" in podman("logs", name))
    return name


def test_the_agent_is_process_1_and_not_root(podman: Podman, node: str) -> None:
    assert podman("exec", node, "id", "--user", "--name") == "datascience"
    command = podman("exec", node, "cat", "/proc/1/cmdline").split("\0")
    assert command[:4] == ["python", "-P", "-m", "airflow_provider_ocidist.agent"]


def test_orphans_that_come_to_process_1_are_buried(podman: Podman, node: str) -> None:
    podman("exec", node, "sh", "-c", "sleep 0.1 & exit 0")
    time.sleep(0.5)
    states = "cat /proc/[0-9]*/stat | cut -d' ' -f3 | sort | uniq"
    until(lambda: "Z" not in podman("exec", node, "sh", "-c", states), timeout=60)


def test_its_health_is_that_of_its_report(podman: Podman, node: str) -> None:
    podman("healthcheck", "run", node)
    stranger = podman.call("exec", "--env=OCIDIST_CONFIG=", node, "python", "/opt/node/health.py")
    assert stranger.returncode == 1
    assert "OCIDIST_CONFIG cannot be read" in stranger.stdout


def test_sigterm_reaches_the_program_and_ends_the_container(podman: Podman, node: str) -> None:
    started = time.monotonic()
    podman("stop", "--time=60", node)
    assert time.monotonic() - started < 30
    assert podman("inspect", "--format={{.State.ExitCode}}", node) == "143"
    assert "saved" in podman("logs", node)


def test_the_image_says_what_it_is_and_keeps_nothing_of_the_build(podman: Podman, image: str) -> None:
    described = json.loads(podman("image", "inspect", image))[0]
    labels = described["Config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == image_of.version_of_package()
    assert labels["org.opencontainers.image.revision"] == image_of.revision()
    assert described["Config"]["User"] == "datascience"
    settings = [
        value for name, value in os.environ.items() if name in ("PIP_FIND_LINKS", "PIP_CERT", "PIP_INDEX_URL")
    ]
    layers = podman("history", "--no-trunc", image) + json.dumps(described)
    assert [value for value in settings if value in layers] == []
    places = (
        "/etc/pip.conf /run/ca.crt /root/.config /home/*/.config /home/*/source /opt/node/lib/*/*/airflow"
    )
    found = podman.call("run", "--rm", "--user=root", "--entrypoint=sh", image, "-c", f"ls -d {places}")
    assert found.stdout == ""


def test_the_versions_in_it_are_the_locked_ones(podman: Podman, image: str) -> None:
    listed = podman("run", "--rm", "--entrypoint=pip", image, "list", "--format=freeze")
    installed = dict(line.split("==") for line in listed.splitlines())
    locks = ["requirements/constraints.txt", "requirements/pip.txt", "container/torch-cpu.txt"]
    lines = [line for lock in locks for line in (REPOSITORY / lock).read_text().splitlines()]
    locked = dict(
        line.partition(";")[0].split("==") for line in lines if "==" in line and not line.startswith("#")
    )
    ours = installed.pop("airflow-provider-ocidist")
    assert ours == image_of.version_of_package()
    assert {
        name: version for name, version in installed.items() if locked.get(canonical(name)) != version
    } == {}


def test_the_agent_in_it_is_compiled_so_that_no_node_has_to(podman: Podman, image: str) -> None:
    folder = "/opt/node/lib/*/site-packages/airflow_provider_ocidist/agent/__pycache__"
    listed = podman("run", "--rm", "--entrypoint=sh", image, "-c", f"ls {folder}")
    assert {"__main__", "start", "node"} <= {name.split(".")[0] for name in listed.split()}


def test_it_is_small(image: str) -> None:
    assert image_of.size_of("podman", image) < 1.4e9


def test_a_main_and_two_workers_train_by_the_compose_file(podman: Podman, image: str) -> None:
    compose = ["-p", podman.name, "-f", str(REPOSITORY / "container" / "compose.yaml")]
    small = "--layers 1 --width 32 --heads 2 --steps 10 --checkpoint-every 5 --eval-every 10 --sample 20"
    arguments = json.dumps(["--data", "/usr/lib/python3.11/pydoc_data/topics.py", *small.split()])
    try:
        podman(*compose, "up", "-d", tool="podman-compose", IMAGE=image, ARGS=arguments)
        names = [f"{podman.name}_{service}_1" for service in ("main", "worker-0", "worker-1")]
        codes = podman("wait", *names).split()
        assert codes == ["0", "0", "0"], "\n".join(podman.call("logs", name).stderr for name in names)
        work = Path(podman("volume", "inspect", "--format={{.Mountpoint}}", f"{podman.name}_work"))
        assert len(list((work / "checkpoints").glob("step-*/manifest.json"))) == 2
        assert json.loads((work / "outputs" / "summary.json").read_text())["processes"] == 3
    finally:
        podman(*compose, "down", "--volumes", tool="podman-compose", IMAGE=image)


def test_a_node_without_a_fresh_report_is_not_healthy() -> None:
    report = NodeReport(rank=0, phase=Phase.TRAINING, address="", started_at=0.0, heartbeat_at=1000.0)
    health = load(REPOSITORY / "container" / "health.py")
    assert health.judge(report, now=1010.0) == 0
    assert health.judge(report, now=1100.0) == 1
    assert health.judge(None, now=1010.0) == 1


def test_its_health_is_read_in_the_region_of_the_run_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node at a candidate's connection is in another region than its bucket."""
    health = load(REPOSITORY / "container" / "health.py")
    region = random.choice(["eu-frankfurt-1", "us-phoenix-1"])
    config = AgentConfig(
        run_name="container",
        nodes=1,
        run_dir="oci://bucket@namespace/runs/x",
        program=Program(script="program.py"),
        oci_region=region,
    )
    for name, value in config.to_env().items():
        monkeypatch.setenv(name, value)

    def stop(environ: object, endpoint: str | None = None, region: str | None = None) -> None:
        raise AgentError(f"asked in the region {region}", cause=Cause.CONFIG)

    monkeypatch.setattr(OciAccess, "from_environment", stop)
    assert health.main() == 1
    assert f"asked in the region {region}" in capsys.readouterr().out


def canonical(name: str) -> str:
    return name.lower().replace("_", "-")


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
