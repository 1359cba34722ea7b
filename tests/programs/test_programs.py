"""Programs that nobody here wrote, on two nodes: killed, resumed, compared with a run that nothing disturbed."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunStatus
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import ROOT, Access, EmulatorProcess
from tests.training_jobs import BACKEND, a_key, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1500)]

PROGRAMS = ROOT / ".venv-programs"
CODE = Path(__file__).with_name("code")
CONDA = "programs"
ENV = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HOME": "hf", "HF_HUB_OFFLINE": "1"}
STEPS, SAVED_BEFORE_THE_KILL = 12, 4
"""As tests/programs/code/death.py has them."""


@dataclass(frozen=True)
class End:
    """How a gang ended, and what each rank has left in the end."""

    status: RunStatus
    left: dict[int, dict[str, Any]]

    @property
    def states(self) -> set[NodeState]:
        return {node.state for node in self.status.nodes}


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    if not (PROGRAMS / ".ready").exists():
        pytest.fail(f"the programs are not installed; run: make {PROGRAMS.name}/.ready", pytrace=False)
    options = ("--conda", f"{CONDA}={PROGRAMS}")
    with EmulatorProcess(tmp_path_factory.mktemp("emulator"), options=options) as access:
        yield access


@pytest.fixture
def run(backend: OciDataScience, fields: dict[str, Any]) -> Iterator[Callable[..., End]]:
    """Runs a program on two nodes as one attempt of a task, to the end of both."""
    refs = []

    def to_the_end(
        script: str, key: RunKey, *, kind: str = "torchrun", saves: bool = True, **env: str
    ) -> End:
        results = f"{fields['work_dir']}/results/{uuid.uuid4().hex}"
        job = parsing.build(
            {
                "name": "programs",
                "nodes": 2,
                "program": {"source": str(CODE), "script": script},
                "launcher": {"kind": kind, "processes_per_node": 1},
                "env": {**ENV, **env},
                **({"checkpoints": {"keep": 9}} if saves else {}),
                "outputs": [{"path": "results", "uri": results, "nodes": "all"}],
                "limits": {"stop_grace": 5},
                "backend": {**BACKEND, "conda_slug": CONDA},
            }
        )
        ref = backend.submit(backend.plan(job, key))
        refs.append(ref)
        status = wait_until(backend, ref, lambda status: status.ended, seconds=400)
        store = open_store(results, backend.access)
        names = [name for name in ("end.json", "node-0/end.json", "node-1/end.json") if store.exists(name)]
        ends = [json.loads(store.read(name)) for name in names]
        left = {end.pop("rank"): end for end in ends}
        return End(status, left)

    yield to_the_end
    for ref in refs:
        backend.cancel(ref)


@pytest.mark.parametrize(
    "script, fourth",
    [
        ("hf_trainer.py", "checkpoint-4"),
        ("lightning_trainer.py", "epoch=0-step=4.ckpt"),
        ("titan.py", "step-4"),
    ],
)
def test_a_killed_program_ends_with_the_weights_of_one_that_nothing_disturbed(
    run: Callable[..., End], script: str, fourth: str
) -> None:
    undisturbed = run(script, a_key())
    assert undisturbed.states == {NodeState.SUCCEEDED}, undisturbed
    assert {end["begun"] for end in undisturbed.left.values()} == {None}

    key = a_key()
    killed = run(script, key, DIES="1")
    assert killed.states == {NodeState.FAILED}, killed
    assert killed.status.checkpoint is not None
    assert killed.status.checkpoint.step == SAVED_BEFORE_THE_KILL
    fates = [node.report.message for node in killed.status.nodes if node.report]
    assert any("SIGKILL" in str(fate) for fate in fates), fates

    resumed = run(script, dataclasses.replace(key, attempt=2), DIES="1")
    assert resumed.states == {NodeState.SUCCEEDED}, resumed
    assert {end["begun"] for end in resumed.left.values()} == {fourth}
    for rank in range(2):
        assert resumed.left[rank]["weights"] == pytest.approx(undisturbed.left[rank]["weights"], rel=1e-6)
    assert resumed.status.checkpoint is not None
    assert resumed.status.checkpoint.step == STEPS


def test_accelerates_own_test_passes_on_two_nodes(run: Callable[..., End], tmp_path: Path) -> None:
    ended = run("accelerates_own.py", a_key(), kind="accelerate", saves=False, SHARED=str(tmp_path))
    assert ended.states == {NodeState.SUCCEEDED}, ended
    assert ended.left.keys() == {0, 1}
