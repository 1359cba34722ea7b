"""Manifests of Kubeflow on job runs of the emulator: the seed's as it is, and one whose command we start."""

from __future__ import annotations

import logging
import sys
import threading
import time

import pytest
import yaml

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.gangs.actions import Fail, Succeed
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import EmulatorProcess
from tests.job_file.dialects.test_pytorchjob import ELSEWHERE, GPU, manifest
from tests.training_jobs import a_key
from tests.views import need_views

STAND_IN = """\
import os, pathlib, sys
print('SEEN', os.environ['WORLD_SIZE'], sys.argv[1:])
pathlib.Path('/opt/pytorch/output/model.txt').write_text('trained')
"""
STEPS = "import os; print('STEP', os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['WHO'])"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An emulator that knows what the seed's image runs."""
    image = parsing.load(GPU, overrides=ELSEWHERE).image
    folder = tmp_path_factory.mktemp("emulator")
    (folder / "entrypoint.py").write_text(STAND_IN)
    options = ("--image", f"{image}={sys.executable} {folder / 'entrypoint.py'}")
    with EmulatorProcess(folder, options=options) as access:
        yield OciDataScience.connect(access.connection_fields(shape="VM.Standard2.1"))


def run(place, job, caplog):
    """Return how the gang of a job ends, and all that its nodes printed."""
    logger = logging.getLogger("manifest")
    caplog.set_level(logging.INFO, "manifest")
    record = GangSubmitter(place, job, logger, None, threading.Event()).adopt_or_submit(a_key(), None)
    try:
        watch, deadline = Watch(place, record, logger), time.monotonic() + 60
        while time.monotonic() < deadline:
            action = watch.look(time.time())
            if isinstance(action, Succeed | Fail):
                return action, caplog.text
            time.sleep(0.2)
        raise AssertionError(f"no end: {watch.status}")
    finally:
        place.cancel(record.ref)


@pytest.mark.slow
def test_the_seeds_manifest_runs_unchanged(place, caplog):
    need_views()  # which the claim at a path of its own takes
    action, output = run(place, parsing.load(GPU, overrides=ELSEWHERE), caplog)
    assert isinstance(action, Succeed), action
    assert output.count("SEEN 2 ['--backend', 'nccl']") == 2
    # The claim outlives the run, as on a cluster.
    volume = open_store(f"{place.defaults.work_dir}/volumes/data", place.access)
    assert volume.read("model.txt") == b"trained"


@pytest.mark.slow
def test_a_manifest_with_a_command_is_one_gang_under_our_agent(place, caplog, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(STEPS)
    env = [{"name": "WHO", "value": "worker"}]
    container = {"command": [sys.executable, str(script)], "env": [{"name": "WHO", "value": "main"}]}
    mapping = manifest(container, {**container, "env": env})
    mapping["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 1
    job = parsing.parse(yaml.safe_dump(mapping), overrides=ELSEWHERE)
    assert job.launcher.kind == "python"
    action, output = run(place, job, caplog)
    assert isinstance(action, Succeed), action
    assert output.count("STEP 0 2 main") == 1
    assert output.count("STEP 1 2 worker") == 1
