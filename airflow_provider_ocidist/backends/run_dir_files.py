"""What nodes fetch from their run directory: it is written there before any of them starts."""

from __future__ import annotations

from airflow_provider_ocidist.backends.bundle import agent_bundle, code_bundle, code_errors
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.model.report import Renewal
from airflow_provider_ocidist.model.run import Plan
from airflow_provider_ocidist.model.work_dir import AGENT_ARCHIVE, CODE_ARCHIVE, LEASE_FILE, NODES_FOLDER
from airflow_provider_ocidist.work_dir.attempt_index import work_dir_of
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores, unusable


def write(plan: Plan, run_dirs: RunDirStores, *, agent: bool = True) -> None:
    """Write agent, code and the first renewal of the lease, and so prove that the run directory can be used.

    `agent`: whether nodes fetch it there, and do not get it otherwise.
    Raises BackendError for code that cannot be read, and a work directory that cannot be written.
    """
    files = {} if plan.code is None else {CODE_ARCHIVE: _code(plan.code, work_dir_of(plan.run_dir))}
    if agent and plan.expects.reports:
        files[AGENT_ARCHIVE] = agent_bundle(None)
    if plan.lease:
        files[LEASE_FILE] = Renewal.now().to_json()
    try:
        store, prefix = run_dirs.at(plan.run_dir)
        for name, content in files.items():
            store.write(prefix + name, content)
        if not files:
            store.list(f"{prefix}{NODES_FOLDER}/")
    except (StorageError, OSError) as error:
        refused = unusable(error)
        # The attempt was recorded in the same work directory before.
        refused.after_acceptance = True
        raise refused from error


def _code(path: str, work_dir: str) -> bytes:
    with code_errors(path):
        return code_bundle(path, work_dir)
