"""Jobs of the form in which Oracle shows how to fine-tune Llama 2: each loads and plans, and pip gets its very words.

Two are in the documentation of ADS (oracle/accelerated-data-science, docs/source/user_guide/jobs/tabs/llama2_full.rst,
an older and a newer version), one in its samples (oracle-samples/oci-data-science-ai-samples,
distributed_training/llama2/README.md). These here have their keys, quotes and folds; places and packages are our own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.prepare.packages import _wanted
from airflow_provider_ocidist.agent.prepare.workspace import Workspace
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.agent_config import AgentConfig
from tests.training_jobs import a_key

OLDER, NEWER, SAMPLE = (
    """\
    'speedup>=0.21.0'
    dirs
    quantize==0.39.1
    black
    'black[notebook]'
    'git+https://example.com/adapters.git'
    'models>=4.31.0'
    archives
    """,
    """\
    --extra-index-url https://example.com/whl/cu118 torch==2.1.0
    git+https://example.com/adapters.git@15a013af5ff5660b9377af24d3eee358213d72d4
    recipes==0.0.1
    dirs==1.4.4
    """,
    """\
    'speedup>=0.21.0'
    quantize==0.39.1
    'black[notebook]'
    'git+https://example.com/adapters.git'
    --extra-index-url
    https://example.com/whl/test/cu118
    'recipes'
    'models>=4.31.0'
    archives
    """,
)
WORDS = {
    OLDER: [
        "speedup>=0.21.0",
        "dirs",
        "quantize==0.39.1",
        "black",
        "black[notebook]",
        "git+https://example.com/adapters.git",
        "models>=4.31.0",
        "archives",
    ],
    NEWER: [
        "--extra-index-url",
        "https://example.com/whl/cu118",
        "torch==2.1.0",
        "git+https://example.com/adapters.git@15a013af5ff5660b9377af24d3eee358213d72d4",
        "recipes==0.0.1",
        "dirs==1.4.4",
    ],
    SAMPLE: [
        "speedup>=0.21.0",
        "quantize==0.39.1",
        "black[notebook]",
        "git+https://example.com/adapters.git",
        "--extra-index-url",
        "https://example.com/whl/test/cu118",
        "recipes",
        "models>=4.31.0",
        "archives",
    ],
}
OUTPUT_OF_RUN = """\
      outputDir: /home/datascience/results
      outputUri: oci://bucket@namespace/results/$JOB_RUN_OCID
"""
MOUNT = """\
      storageMount:
      - dest: results
        src: oci://<a-bucket>@<namespace>/tuned/
"""
JOB = """\
kind: job
apiVersion: v1.0
spec:
  name: Tune-A-Model
  infrastructure:
    kind: infrastructure
    spec:
      blockStorageSize: 256
      compartmentId: "<compartment_ocid>"
      logGroupId: "<log_group_id>"
      logId: "<log_id>"
      projectId: "<project_id>"
      subnetId: "<subnet_id>"
      shapeName: VM.GPU.A10.2
{mount}    type: dataScienceJob
  runtime:
    kind: runtime
    type: pyTorchDistributed
    spec:
      git:
        url: https://example.com/recipes.git
{commit}      command: >-
        torchrun examples/tune.py
        --shard
        --batch_size 1
        --model_name $MODEL_NAME
      replicas: {nodes}
      conda:
        type: service
        slug: {slug}
      dependencies:
        pipPackages: >-
{packages}{output}      env:
        - name: MODEL_NAME
          value: someone/a-model-7b
        - name: A_HUB_TOKEN
          value: "<access_token>"
        - name: LD_LIBRARY_PATH
          value: /usr/local/nvidia/lib:/usr/local/nvidia/lib64:/opt/conda/lib
"""
COMMIT = "        commit: 03faba661f079ee1ecaeb66deaa6bdec920a7bab\n"
FORMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "older documentation": (
        OLDER,
        {"nodes": 2, "slug": "pytorch20_p39_gpu_v1", "output": OUTPUT_OF_RUN, "commit": COMMIT},
    ),
    "newer documentation": (
        NEWER,
        {"nodes": 2, "slug": "pytorch20_p39_gpu_v2", "output": OUTPUT_OF_RUN, "commit": COMMIT},
    ),
    "sample": (SAMPLE, {"nodes": 6, "slug": "pytorch20_p39_gpu_v2", "mount": MOUNT}),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_oracle_shows_loads_and_plans_and_pip_gets_the_words_of_its_list(
    tmp_path: Path, form: str
) -> None:
    packages, parts = FORMS[form]
    lines = textwrap.indent(textwrap.dedent(packages), " " * 10)
    text = JOB.format(**{"mount": "", "output": "", "commit": "", **parts, "packages": lines})
    job = parsing.parse(text)
    assert (job.nodes, job.launcher.kind) == (parts["nodes"], "torchrun")
    connection = {"work_dir": "oci://work@ns/jobs", "region": "us-ashburn-1"}
    plan = OciDataScience.connect(connection).plan(job, a_key())
    config = AgentConfig.from_env(environment_in(plan.requests[0].body))
    assert config.dependencies is not None
    workspace = Workspace(code=tmp_path, working_dir=tmp_path, program=config.program)
    assert _wanted(config.dependencies, workspace) == WORDS[packages]


def environment_in(body: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the variables of a job's nodes, which lie as deep as its topology has them."""
    groups = body.get("jobNodeConfigurationDetails", {}).get("jobNodeGroupConfigurationDetailsList", [body])
    found: Mapping[str, str] = groups[0]["jobConfigurationDetails"]["environmentVariables"]
    return found
