"""Every job file of the examples trains as shipped, on nodes of the emulator; only what is OCI's own is replaced."""

from __future__ import annotations

import pydoc_data.topics
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.run import NodeState
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access, EmulatorProcess
from tests.agent.gangs import REPOSITORY
from tests.launchers.nodes import PYTHON
from tests.training_jobs import a_key, wait_until

pytestmark = [pytest.mark.launchers, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

JOBS = REPOSITORY / "dags_examples" / "jobs"
TRAINED_BY_DAGS = {"compare.yaml", "demand.yaml", "examine_demand.yaml", "retrain_gpt.yaml", "saved.yaml"}
"""By tests/examples and tests/e2e/test_dag_test.py."""
DRILLED = {"drill.yaml", "drill_saves.yaml"}
"""By tests/chaos/test_drills.py, on this machine."""
SLUG = "your_pytorch_p311_env"
FEW = ("--images", "128")
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "digits.yaml": {"args": (*FEW, "--workers", "0")},
    "digits_accelerate.yaml": {"args": FEW},
    # An image needs a registry; its packages are in the environment that the emulator has for SLUG.
    "digits_deepspeed.yaml": {"args": (*FEW, "--epochs", "1"), "overrides": {"image": None}},
    "gpt_fsdp.yaml": {"args": ("--steps", "20", "--layers", "1", "--width", "32")},
}
"""Fewer data and steps than in the file, as arguments behind the file's own."""
NEED_GPUS = {"torchtitan.yaml", "torchtitan_module.yaml"}
"""torchtitan asks for GPUs there; `make test-programs` trains its 0.2.2 without, and 0.3 does not train without."""
EXPORT = "10.0.0.5:/training"


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    options = ("--conda", f"{SLUG}={Path(PYTHON).parents[1]}", "--file-system", EXPORT)
    with EmulatorProcess(tmp_path_factory.mktemp("emulator"), options=options) as found:
        yield found


def test_every_job_file_is_trained_by_some_test_or_needs_gpus() -> None:
    assert {path.name for path in JOBS.glob("*.yaml")} == {*CHANGES, *TRAINED_BY_DAGS, *DRILLED, *NEED_GPUS}


@pytest.mark.parametrize("name", CHANGES)
def test_a_job_file_trains_with_its_own_launcher(access: Access, name: str) -> None:
    work_dir = f"{access.work_dir}/{uuid.uuid4().hex[:8]}"
    backend = OciDataScience.connect(access.connection_fields(work_dir=work_dir))
    store = open_store(work_dir, backend.access)
    store.write("data/text.txt", Path(pydoc_data.topics.__file__).read_bytes())
    values = {"{{ conn.oci_default.extra_dejson.work_dir }}": work_dir, "{{ run_id }}": "manual"}

    def render(text: str) -> str:
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        return text

    shipped = parsing.load(JOBS / name, render=render)
    args = [*shipped.program.args, *CHANGES[name]["args"]]
    overrides = {"program.args": args, "backend.conda_slug": SLUG, **CHANGES[name].get("overrides", {})}
    job = parsing.load(JOBS / name, render=render, overrides=overrides)

    ref = backend.submit(backend.plan(job, a_key()))
    status = wait_until(backend, ref, lambda status: status.ended, seconds=400)
    assert [node.state for node in status.nodes] == [NodeState.SUCCEEDED] * 2, status
    assert status.checkpoint is not None
    assert status.checkpoint.step
    for output in job.outputs:
        assert open_store(output.uri, backend.access).list(), output
