"""Dependencies: real pip against an index of our own on loopback."""

from __future__ import annotations

import json
import logging
import os
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from airflow_provider_ocidist.agent.prepare import packages, wheels
from airflow_provider_ocidist.agent.prepare.overlay import Overlay
from airflow_provider_ocidist.agent.prepare.packages import Pip, install
from airflow_provider_ocidist.agent.prepare.wheels import WheelCache
from airflow_provider_ocidist.agent.prepare.workspace import Workspace, environment_paths, program_paths
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.job import Dependencies, Program
from airflow_provider_ocidist.oci_client.credentials import OciAccess


def write_wheel(folder: Path, name: str, requires: str = "") -> None:
    info = f"{name}-1.0.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"NAME = {name!r}")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def certificate(folder: Path) -> Path:
    """Return a file with a key and a certificate of its own for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "index")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "index.pem"
    path.write_bytes(private + made.public_bytes(pem))
    return path


class Index:
    """A package index, and which files were taken from it."""

    def __init__(self, home: Path) -> None:
        self.url = ""
        self.home = home
        self.taken: list[str] = []

    @property
    def environ(self) -> dict[str, str]:
        foreign = ("PIP_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_")
        ours = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return ours | {
            "PIP_INDEX_URL": f"{self.url}/",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_CACHE_DIR": "1",
            "PIP_RETRIES": "0",
            "PIP_CERT": str(self.home / "index.pem"),
            "no_proxy": "*",
            "HOME": str(self.home),
        }


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """An index that holds `tinyleaf`, and `tinyroot` that needs it."""
    for name, requires in (("tinyleaf", ""), ("tinyroot", "tinyleaf")):
        folder = tmp_path / "index" / name
        folder.mkdir(parents=True)
        write_wheel(folder, name, requires)
    made = Index(tmp_path)

    class Handler(SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            self.send_header("Cache-Control", "max-age=1000")
            super().end_headers()

        def log_request(self, code: Any = "-", size: Any = "-") -> None:
            del code, size
            if self.path.endswith(".whl"):
                made.taken.append(self.path.rpartition("/")[2].partition("-")[0])

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "index")))
    # pip keeps only what came over https.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(certificate(tmp_path)))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    made.url = f"https://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _each_node_has_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "fresh_folder", lambda name, environ: Path(environ["HOME"]) / name)


def node(root: Path, rank: int = 0, nodes: int = 1) -> tuple[Workspace, WheelCache]:
    code = root / f"node-{rank}"
    code.mkdir(exist_ok=True)
    program = Program(script="train.py")
    cache = WheelCache(
        run_dir=str(root / "run"), rank=rank, nodes=nodes, access=OciAccess(), switch=StopSwitch()
    )
    return Workspace(code=code, working_dir=code, program=program), cache


def installed(
    root: Path, environ: Mapping[str, str], wanted: Dependencies, rank: int = 0, nodes: int = 1
) -> str:
    """Install, and return what the program can import then."""
    workspace, cache = node(root, rank, nodes)
    own = {**environ, "HOME": str(workspace.code)}
    workspace = install(wanted, workspace, own, StopSwitch(), cache)
    script = "import tinyroot, tinyleaf; print(tinyroot.NAME, tinyleaf.NAME)"
    path = environment_paths(workspace, {})
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_first_node_downloads_and_the_others_take_its_wheels(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Dependencies(packages=("tinyroot==1.0",))
    with ThreadPoolExecutor(3) as pool:
        ranks = pool.map(lambda rank: installed(tmp_path, index.environ, wanted, rank, 3), range(3))
        assert list(ranks) == ["tinyroot tinyleaf"] * 3
    assert sorted(index.taken) == ["tinyleaf", "tinyroot"]


def test_half_a_cache_is_none_and_pip_does_it_all_and_speaks_in_the_log(
    tmp_path: Path, index: Index, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "run" / "wheels"
    folder.mkdir(parents=True)
    manifest = {"state": "ready", "pins": ["tinyroot==1.0"], "files": {"tinyroot-1.0-py3-none-any.whl": "0"}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    write_wheel(folder, "tinyroot", "tinyleaf")
    (tmp_path / "node-1").mkdir()
    (tmp_path / "node-1" / "requirements.txt").write_text("tinyroot\n")
    wanted = Dependencies(requirements="requirements.txt")
    assert installed(tmp_path, index.environ, wanted, rank=1, nodes=2) == "tinyroot tinyleaf"
    assert sorted(index.taken) == ["tinyleaf", "tinyroot"]
    assert "differ from its list" in caplog.text
    assert "pip: Successfully installed tinyleaf-1.0 tinyroot-1.0" in caplog.text


@pytest.mark.parametrize("manifest", [None, '{"state": "none"}', '{"state": "installing"}', "no JSON"])
def test_a_node_does_not_wait_long_for_wheels_that_do_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: str | None
) -> None:
    monkeypatch.setattr(wheels, "FIRST_SIGN_S", 0.1)
    monkeypatch.setattr(wheels, "WAIT_S", 0.1)
    monkeypatch.setattr(wheels, "LOOK_INTERVAL_S", 0.02)
    if manifest:
        (tmp_path / "run" / "wheels").mkdir(parents=True)
        (tmp_path / "run" / "wheels" / "manifest.json").write_text(manifest)
    _, cache = node(tmp_path, rank=1, nodes=2)
    overlay = Overlay(tmp_path / "overlay")
    assert not cache.install(Pip(environ={}, switch=StopSwitch(), folder=tmp_path, overlay=overlay))


def test_packages_of_a_job_leave_those_of_the_interpreter_alone(tmp_path: Path, index: Index) -> None:
    """An older `packaging` than the interpreter has goes above it, for this job only."""
    folder = tmp_path / "index" / "packaging"
    folder.mkdir()
    write_wheel(folder, "packaging")
    before = version("packaging")
    workspace, cache = node(tmp_path)
    own = {**index.environ, "HOME": str(workspace.code)}
    wanted = Dependencies(packages=("packaging==1.0", "tinyleaf"))
    workspace = install(wanted, workspace, own, StopSwitch(), cache)
    script = "import packaging, pytest, tinyleaf; print(packaging.NAME, tinyleaf.NAME)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": environment_paths(workspace, {})},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "packaging tinyleaf\n"
    there = f"import sys; sys.path.insert(0, {str(Path(packages.__file__).parents[3])!r}); import packaging; "
    told = subprocess.run(
        [sys.executable, "-c", there + "print(packaging.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == before
    assert workspace.overlay is not None
    assert program_paths(workspace, {"PATH": "/bin"}) == f"{workspace.overlay.scripts}:/bin"


def failure(root: Path, environ: Mapping[str, str], wanted: Dependencies) -> AgentError:
    workspace, cache = node(root)
    with pytest.raises(AgentError) as caught:
        install(wanted, workspace, environ, StopSwitch(), cache)
    return caught.value


def test_a_package_that_does_not_exist_is_named(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = failure(tmp_path, index.environ, Dependencies(packages=("tinyleaf", "tinynone==9")))
    assert error.cause is Cause.CONFIG
    assert str(error).startswith("pip cannot install tinynone==9: ERROR: Could not find a version")


def test_an_index_out_of_reach_is_no_fault_of_the_job(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {**index.environ, "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "1"}
    error = failure(tmp_path, environ, Dependencies(packages=("tinyroot",)))
    assert error.cause is Cause.DATA
    assert "pip cannot install tinyroot: its index cannot be reached" in str(error)


@pytest.mark.parametrize(
    "option, form",
    [
        (option, form)
        for option in ("--extra-index-url", "--index-url", "-i")
        for form in ("{option} {url}/", "{option}={url}/", None, "--no-deps tinyleaf {option} '{url}/'")
        if (option, form) != ("-i", "{option}={url}/")  # a short option takes no =
    ],
)
def test_each_word_goes_to_pip_so_that_its_options_may_be_among_the_packages(
    tmp_path: Path, index: Index, option: str, form: str | None
) -> None:
    """The index that the environment names has nothing; the one among the packages has all."""
    (tmp_path / "index" / "empty").mkdir()
    environ = {**index.environ, "PIP_INDEX_URL": f"{index.url}/empty/"}
    given = (option, f"{index.url}/") if form is None else (form.format(option=option, url=index.url),)
    assert installed(tmp_path, environ, Dependencies(packages=(*given, "tinyroot"))) == "tinyroot tinyleaf"


@pytest.mark.parametrize("text", ["--index-url='http://x", "", "a\nb", "  "])
def test_what_is_no_word_for_pip_is_named(tmp_path: Path, text: str) -> None:
    error = failure(tmp_path, {"HOME": str(tmp_path)}, Dependencies(packages=(text,)))
    assert error.cause is Cause.CONFIG
    assert "neither a package nor an option of pip" in str(error)


def test_a_requirements_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    error = failure(tmp_path, {}, Dependencies(requirements="reqs.txt"))
    assert error.cause is Cause.CONFIG
    assert "'reqs.txt' is not in the code" in str(error)
