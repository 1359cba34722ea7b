"""What a reader would paste from the documents runs: each block in some test, or it is not in the documents."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_ocidist.backends.connection_fields import unknown_fields
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.preflight.machine import SERVICE_CONDA
from airflow_provider_ocidist.hooks import oci
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.run import NodeState
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access
from tests.documents import ROOT, Block, blocks, blocks_in
from tests.training_jobs import a_job, a_key, wait_until
from tests.views import need_views

PROGRAM = """
import os, pathlib
if os.environ["RANK"] == "0":
    folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "step-3.txt").write_text("weights")
"""
FIRST_RUN, OFFLINE = "docs/first-run.md", "docs/offline.md"
EMULATOR, TRANSFER, CONTAINERS = "docs/emulator.md", "docs/transfer.md", "docs/containers.md"


def lines_of(block: Block) -> list[str]:
    joined = block.text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def is_for_make(block: Block) -> bool:
    return all(line.startswith(("make ", ".venv/bin/python -m tests.")) for line in lines_of(block))


def is_settings(block: Block) -> bool:
    return block.text.startswith("export AIRFLOW_")


def is_for_docker(block: Block) -> bool:
    return block.document == CONTAINERS and not is_for_make(block)


def is_for_kubectl(block: Block) -> bool:
    return block.document == EMULATOR and "kubectl " in block.text


TRIED: dict[str, Callable[[Block], bool]] = {
    "test_document_blocks.py::test_make_knows_what_it_is_asked_for": is_for_make,
    "test_document_blocks.py::test_settings_for_airflow_are_understood": is_settings,
    "test_document_blocks.py::test_what_docker_is_asked_for_is_there": is_for_docker,
    "cli/test_walk.py::test_the_documented_walk_ends_with_a_checkpoint": lambda block: (
        block.document == "docs/command-line.md"
    ),
    "test_document_blocks.py::test_the_first_run_trains": lambda block: block.document == FIRST_RUN,
    "test_document_blocks.py::test_clients_find_the_emulator_as_its_page_says": lambda block: (
        block.document in (EMULATOR, TRANSFER) and not is_for_kubectl(block)
    ),
    "test_document_blocks.py::test_kubectl_finds_the_emulators_cluster_as_its_page_says": is_for_kubectl,
    "test_document_blocks.py::test_a_drill_knows_the_faults_that_it_is_asked_for": lambda block: (
        block.document == "docs/drills.md"
    ),
    "test_document_blocks.py::test_wheels_install_without_an_index": lambda block: block.document == OFFLINE,
    "backends/local/test_local.py::test_the_command_line_runs_here_what_is_meant_for_another_backend": lambda block: (
        block.document == "docs/local.md"
    ),
    "test_document_blocks.py::test_a_node_is_looked_into": lambda block: (
        block.document == "docs/inside-a-node.md"
    ),
    "test_document_blocks.py::test_all_jobs_are_checked_after_an_upgrade": lambda block: (
        block.document == "docs/upgrading.md"
    ),
    "test_document_blocks.py::test_the_question_for_rdma_has_an_answer": lambda block: (
        block.document == "docs/networks.md"
    ),
    "clients/test_oci_cli.py::test_old_jobs_of_ocidist_are_deleted_as_the_page_says_and_no_others": lambda block: (
        block.document == "docs/airflow.md" and not is_settings(block)
    ),
}
"""The test that tries a block, in a language that a shell or a Python prompt takes."""
TO_PASTE = ("bash", "sh", "shell", "console", "pycon", "dockerfile")
READ_ONLY = {"text", "mermaid"}
ELSEWHERE = {"yaml", "python"}
"""Tried by test_docs.py."""


def tried_by(block: Block) -> list[str]:
    return [test for test, fits in TRIED.items() if fits(block)]


def test_every_block_is_in_a_language_that_is_tried_or_only_read():
    assert {block.language for block in blocks()} <= {*TO_PASTE, *READ_ONLY, *ELSEWHERE}


@pytest.mark.parametrize("block", blocks(*TO_PASTE), ids=lambda block: block.name)
def test_every_block_to_paste_is_tried(block):
    (test,) = tried_by(block)
    file, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)


def test_a_block_in_a_list_is_found_without_its_indentation():
    text = "1. So:\n\n   ```bash\n   one\n     two\n   ```\n2. Then:\n   ```yaml\n   a: 1\n   ```\n"
    assert [(block.language, block.text) for block in blocks_in(text)] == [
        ("bash", "one\n  two\n"),
        ("yaml", "a: 1\n"),
    ]


def those_of(test: str) -> list[Block]:
    return [block for block in blocks(*TO_PASTE) if tried_by(block) == [f"test_document_blocks.py::{test}"]]


def run(script: str, folder: Path, **environ: str) -> str:
    """Run a script in bash, with this Python's programs first; return what it prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"set -eu\n{script}"],
        cwd=folder,
        env={**os.environ, "PATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_make_knows_what_it_is_asked_for():
    for line in sorted(
        {line for block in those_of("test_make_knows_what_it_is_asked_for") for line in lines_of(block)}
    ):
        words = shlex.split(line, comments=True)
        command = [*words, "--dry-run"] if words[0] == "make" else [sys.executable, *words[1:3], "--help"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.mark.parametrize(
    "block", those_of("test_settings_for_airflow_are_understood"), ids=lambda block: block.name
)
def test_settings_for_airflow_are_understood(block, tmp_path, monkeypatch):
    show = f"{shlex.quote(sys.executable)} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    found = json.loads(run(f"{block.text}\n{show}", tmp_path))
    new = {name: found[name] for name in re.findall(r"export (AIRFLOW_\w+)=", block.text)}
    assert new
    for name, value in new.items():
        if name.startswith("AIRFLOW_CONN_"):
            monkeypatch.setenv(name, value)
            fields = oci.OciHook(name.removeprefix("AIRFLOW_CONN_").lower()).fields
            assert fields["work_dir"]
            assert unknown_fields(fields, "oci") == []
        elif name.endswith(("_CLASS", "_BACKEND")):
            module, _, attribute = value.rpartition(".")
            # Found, not imported: one of them wants the other settings of its block when it is imported.
            spec = importlib.util.find_spec(module)
            assert spec is not None, value
            assert re.search(rf"^(class )?{attribute}\b", Path(str(spec.origin)).read_text(), re.MULTILINE), (
                value
            )
        else:
            assert re.fullmatch(r"AIRFLOW__[A-Z_]+__[A-Z_]+", name)


def test_what_docker_is_asked_for_is_there():
    compose = (ROOT / "container" / "compose.yaml").read_text()
    for block in those_of("test_what_docker_is_asked_for_is_there"):
        if block.language == "dockerfile":
            assert block.text.startswith("FROM localhost/ocidist-node:cpu\n")
            continue
        subprocess.run(["bash", "-n", "-c", block.text], check=True)
        for path in re.findall(r"-f (\S+)", block.text):
            assert (ROOT / path).exists()
        for variable in re.findall(r"^([A-Z]+)=", block.text, re.MULTILINE):
            assert f"${{{variable}" in compose
        for service in re.findall(r"cp (\w+):", block.text):
            assert service in yaml.safe_load(compose)["services"]


def test_the_question_for_rdma_has_an_answer(tmp_path):
    (block,) = those_of("test_the_question_for_rdma_has_an_answer")
    assert run(block.text, tmp_path)


def test_all_jobs_are_checked_after_an_upgrade(tmp_path):
    shutil.copytree(ROOT / "dags_examples" / "train", tmp_path / "train")
    (readme,) = (block for block in blocks("yaml") if block.document == "README.md")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "gpt.yaml").write_text(readme.text)
    (block,) = those_of("test_all_jobs_are_checked_after_an_upgrade")
    assert "gpt.yaml: ok" in run(block.text, tmp_path)


def test_wheels_install_without_an_index(tmp_path):
    build, install = those_of("test_wheels_install_without_an_index")
    # What our package needs is hundreds of megabytes, and its building needs no more than is here.
    source = build.text.replace(" wheel ", " wheel --no-deps --no-build-isolation --quiet ").replace(
        " requirements/constraints.txt .", f" {ROOT}/requirements/constraints.txt {ROOT}"
    )
    run(source, tmp_path)
    run(install.text.replace(" install ", " install --no-deps --quiet --target here "), tmp_path)
    assert (tmp_path / "here" / "airflow_provider_ocidist" / "job_file" / "parsing.py").exists()


def test_the_first_run_trains(tmp_path: Path, emulator: Access) -> None:
    index, commands = those_of("test_the_first_run_trains")
    assert f"{SERVICE_CONDA}/index.json" in index.text
    text = (ROOT / FIRST_RUN).read_text()
    (init,) = re.findall(r"`(ocidist init [^`]+)`", text)
    run(init, tmp_path)
    # What it trains at first is tried by the walk through the command line, and takes a while: torch is imported.
    job = tmp_path / "first" / "job.yaml"
    job.write_text(job.read_text().replace("kind: torchrun", "kind: python"))
    (tmp_path / "first" / "train" / "train.py").write_text(PROGRAM)
    printed = run(commands.text, tmp_path, **emulator.airflow_env())
    assert "first/job.yaml: ok" in printed
    assert "0 failed" in printed
    assert "succeeded; newest checkpoint: oci://" in printed

    (dag,) = (block for block in blocks("python") if block.document == FIRST_RUN)
    names: dict[str, Any] = {"__file__": str(tmp_path / "dag.py")}
    exec(compile(dag.text, str(tmp_path / "dag.py"), "exec"), names)
    (task,) = names["dag"].tasks if "dag" in names else _tasks_of(dag.text)
    assert parsing.load(tmp_path / str(task.job)).nodes == 2


def _tasks_of(source: str) -> list[Any]:
    """Return the tasks that a DAG file makes in a DAG without a name."""
    names: dict[str, Any] = {}
    exec(compile(re.sub(r"(with DAG\(.*\)):", r"\1 as dag:", source), "dag.py", "exec"), names)
    return list(names["dag"].tasks)


def test_a_node_is_looked_into(tmp_path: Path, emulator: Access) -> None:
    copy, look = those_of("test_a_node_is_looked_into")
    run(
        f"echo '{{}}' > 0.json; ocidist copy 0.json {emulator.work_dir}/RUN/nodes/",
        tmp_path,
        **emulator.airflow_env(),
    )
    place = f"{emulator.bucket}@{emulator.namespace}"
    run(copy.text.replace("bucket@namespace", place), tmp_path, **emulator.airflow_env())
    assert (tmp_path / "reports" / "0.json").read_text() == "{}\n"
    start, again, processes = lines_of(look)
    for line in (start, again):
        words = shlex.split(line, comments=True)
        flags = [word for word in words if word.startswith("--")]
        shown = run(f"{' '.join(words[:2])} --help", tmp_path)
        assert [flag for flag in flags if flag not in shown] == []
    if shutil.which("ps") is None:
        pytest.skip("there is no ps, and only root may install it")
    assert "airflow_provider_ocidist" in run(processes, tmp_path)


@contextmanager
def started(command: str, folder: Path) -> Iterator[None]:
    """Run a program while the block lasts, until it has written its ready file."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            shlex.split(command), cwd=folder, env={**os.environ, "PATH": path}, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 120
        while not (folder / "oci-ready.json").exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "not ready"
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(60)


def test_clients_find_the_emulator_as_its_page_says(tmp_path: Path) -> None:
    found = those_of("test_clients_find_the_emulator_as_its_page_says")
    start, exports, faults, copying = (block.text for block in found)
    with started(start, tmp_path):
        ready = Access.from_file(tmp_path / "oci-ready.json")
        exports = exports.replace("PROXY_PORT", ready.proxy_url.rpartition(":")[2])
        place = f"{ready.bucket}@{ready.namespace}"
        program = "\n".join(line.removeprefix(">>> ") for line in copying.splitlines())
        program = program.replace("bucket@namespace", place).replace("/data/corpus", str(tmp_path / "corpus"))
        run(
            f"echo some > text; ocidist copy text oci://{place}/corpus/\n"
            f"unset NO_PROXY no_proxy https_proxy\n{exports}\n{shlex.quote(sys.executable)} -c {shlex.quote(program)}",
            tmp_path,
            **ready.airflow_env(),
        )
        assert (tmp_path / "corpus" / "text").read_text() == "some\n"
        # Not everybody has curl, and what is tried here is the rules.
        post = "import sys, urllib.request; urllib.request.urlopen(sys.argv[2], sys.argv[1].encode())"
        curl = f'curl() {{ {shlex.quote(sys.executable)} -c "{post}" "$2" "$3"; }}'
        rules = run(
            f"{curl}\n{faults}\n{shlex.quote(sys.executable)} -c "
            '\'import os, urllib.request as r; print(r.urlopen(os.environ["URL"] + "/_emulator").read().decode())\'',
            tmp_path,
            URL=ready.url,
        )
    assert len(json.loads(rules)["faults"]) == 4


def test_kubectl_finds_the_emulators_cluster_as_its_page_says(tmp_path: Path) -> None:
    need_views()
    (block,) = those_of("test_kubectl_finds_the_emulators_cluster_as_its_page_says")
    text = (ROOT / EMULATOR).read_text()
    (start,) = re.findall(r"`(ocidist emulator --kubernetes)`", text)
    with started(f"{start} --state ./oci --ready ./oci-ready.json", tmp_path):
        # Not everybody has kubectl, and what is tried here is whether its KUBECONFIG leads to the cluster.
        program = (
            "from kubernetes import client, config; config.load_kube_config(); "
            "api = client.CoreV1Api(); "
            "print(len(api.list_node().items), 'nodes')"
        )
        kubectl = f"kubectl() {{ {shlex.quote(sys.executable)} -c {shlex.quote(program)}; }}"
        assert run(f"{kubectl}\n{block.text}", tmp_path) == "4 nodes\n"


def test_a_drill_knows_the_faults_that_it_is_asked_for(tmp_path: Path) -> None:
    (block,) = those_of("test_a_drill_knows_the_faults_that_it_is_asked_for")
    command = block.text.strip()
    shown = run(f"cd {shlex.quote(str(ROOT))}; {command} --dry-run", tmp_path)
    assert shown.split() == re.findall(r"--fault (\S+)", command)


def test_a_node_reads_the_secret_of_a_tracker_as_its_page_says(
    backend: OciDataScience, fields: dict[str, Any], emulator: Access, ends: Any, tmp_path: Path
) -> None:
    (reads,) = (item.text for item in blocks("python") if "def read_secret" in item.text)
    (sets,) = (item.text for item in blocks("text") if "WANDB_API_KEY" in item.text)
    text = (ROOT / "docs" / "trackers.md").read_text()
    (name,) = re.findall(r"`(os\.environ\[\"OCIDIST_RUN_NAME\"\][^`]+)`", text)
    shows = f"json.dump([os.environ['WANDB_API_KEY'] == SECRET, {name}], open('shown.json', 'w'))\n"
    # The program holds the secret, so that it need not leave the node to be compared.
    program = f"import json, os\nSECRET = {emulator.secret_value!r}\n{reads}\n{sets}\n{shows}"
    (tmp_path / "train.py").write_text(program)
    results, key = f"{fields['work_dir']}/results", a_key()
    job = a_job(
        nodes=1,
        env={"WANDB_SECRET_OCID": emulator.secret_id},
        program={"source": str(tmp_path), "script": "train.py"},
        outputs=[{"path": "shown.json", "uri": f"{results}/"}],
        checkpoints=None,
    )
    ref = ends(backend.submit(backend.plan(job, key)))
    status = wait_until(backend, ref, lambda status: status.ended, seconds=90)
    assert [node.state for node in status.nodes] == [NodeState.SUCCEEDED], status
    same, of_the_task = json.loads(open_store(results, backend.access).read("shown.json"))
    assert same
    assert f"{of_the_task}-a1" == ref.key.name
