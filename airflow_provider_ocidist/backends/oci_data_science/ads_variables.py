"""The variables by which Oracle ADS describes the job to its nodes, for images and programs that use it. Pure.

Names and forms are those of oracle-ads 2.16.1: `ads/opctl/distributed/common/cluster_config_helper.py` for
`kind: distributed`, `ads/jobs/builders/infrastructure/dsc_job_runtime.py` for `kind: job`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.model.job import TrainingJob

CODE_DIR = "/code"
"""Folder of the user's code in ADS's own images."""
MAIN_RUN_VARIABLE = "MAIN_JOB_RUN_OCID"
MAIN_RUN = "<id of the first CreateJobRun>"
"""Placeholder in a plan for the OCID of the main node's job run."""
LAUNCH_WORDS = {"accelerate": ("accelerate", "launch"), "command": ()}
"""Command of each launcher that is not called by its own name."""


def job_variables(contract: str, job: TrainingJob) -> dict[str, str]:
    """Return the variables that all nodes share."""
    if contract == "ads_distributed":
        return _of_cluster(job)
    if contract == "ads_job":
        return _of_job(job)
    return {}


def node_variables(contract: str, job: TrainingJob, rank: int) -> dict[str, str]:
    """Return the variables of one node that has a job run of its own."""
    if contract == "ads_distributed":
        return {**role_variables(contract, main=rank == 0), "RANK": str(rank)}
    if contract == "ads_job":
        own = {"NODE_RANK": str(rank), "NODE_COUNT": str(job.nodes)}
        return {**own, MAIN_RUN_VARIABLE: MAIN_RUN} if rank else own
    return {}


def role_variables(contract: str, *, main: bool) -> dict[str, str]:
    """Return the variables that differ between the main node and the others."""
    return {"OCI__MODE": "MAIN" if main else "WORKER"} if contract == "ads_distributed" else {}


def with_main_run(run: Mapping[str, Any], run_id: str) -> Mapping[str, Any]:
    """Return the request for a worker's job run that names the main node's, where its contract wants that."""
    if not wants_main_run(run):
        return run
    details = run["jobConfigurationOverrideDetails"]
    environment = {**details["environmentVariables"], MAIN_RUN_VARIABLE: run_id}
    return {**run, "jobConfigurationOverrideDetails": {**details, "environmentVariables": environment}}


def wants_main_run(run: Mapping[str, Any]) -> bool:
    details = run.get("jobConfigurationOverrideDetails") or {}
    return MAIN_RUN_VARIABLE in (details.get("environmentVariables") or {})


def _of_cluster(job: TrainingJob) -> dict[str, str]:
    program = job.program
    fetched = {
        "OCI__RUNTIME_TYPE": "git" if _git_url(job) else "remote",
        "OCI__RUNTIME_URI": _git_url(job) or program.source,
        "OCI__RUNTIME_GIT_SECRET_ID": program.source_secret,
        "OCI__RUNTIME_PYTHON_PATH": ":".join(program.python_path),
    }
    return {
        "OCI__WORK_DIR": str(job.work_dir),
        # ADS writes None where the file sets nothing; its image reads any text as yes.
        "OCI__EPHEMERAL": "None",
        "OCI__CLUSTER_TYPE": "PYTORCH",
        "OCI__WORKER_COUNT": str(job.nodes - 1),
        "OCI__START_ARGS": "",
        "OCI__ENTRY_SCRIPT": program.script.removeprefix(f"{CODE_DIR}/"),
        **(_given(fetched) if program.source else {}),
        **_given({"OCI__ENTRY_SCRIPT_ARGS": shlex.join(program.args)}),
    }


def _of_job(job: TrainingJob) -> dict[str, str]:
    packages = job.dependencies.packages if job.dependencies else ()
    inputs = {item.source: item.target for item in job.inputs}
    values = {
        "NODE_COUNT": str(job.nodes),
        "OCI__LAUNCH_CMD": None if job.container else _launch_command(job),
        "PYTHON_PATH": ":".join(job.program.python_path),
        "WORKING_DIR": job.program.working_dir,
        "OUTPUT_DIR": job.outputs[0].path if job.outputs else None,
        "OUTPUT_URI": job.outputs[0].uri if job.outputs else None,
        "OCI__INPUT_MAPPINGS": json.dumps(inputs) if inputs else None,
        "OCI__RUNTIME_URI": _git_url(job),
        "OCI__RUNTIME_GIT_SECRET_ID": job.program.source_secret,
        "OCI__PIP_REQUIREMENTS": job.dependencies.requirements if job.dependencies else None,
        "OCI__PIP_PKG": shlex.join(packages),
    }
    return _given(values)


def _launch_command(job: TrainingJob) -> str:
    launcher, program = job.launcher, job.program
    words = LAUNCH_WORDS.get(launcher.kind, (launcher.kind,))
    module = ("-m",) if program.module else ()
    return shlex.join([*words, *launcher.args, *module, program.script, *program.args])


def _git_url(job: TrainingJob) -> str | None:
    """Return the plain URL that ADS clones, if the code comes from Git."""
    source = job.program.source or ""
    if source.startswith(("git@", "git+", "git://", "ssh://")):
        return source.removeprefix("git+").partition("#")[0]
    return None


def _given(values: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}
