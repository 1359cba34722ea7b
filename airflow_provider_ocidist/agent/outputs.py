"""Outputs: copies what the job promises out of the node, after the training has succeeded."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_ocidist.errors import AgentError, Cause, StorageError
from airflow_provider_ocidist.job import Output
from airflow_provider_ocidist.oci_clients import OciAccess

logger = logging.getLogger(__name__)


def copy_outputs(outputs: Sequence[Output], working_dir: Path, access: OciAccess) -> tuple[str, ...]:
    """Return the URIs of what was copied. Raises AgentError when something is missing, or cannot be sent."""
    missing = [
        output.path for output in outputs if output.required and not _has_content(working_dir / output.path)
    ]
    if missing:
        raise AgentError(
            f"the training succeeded but did not write its required output {', '.join(missing)}",
            cause=Cause.USER,
        )
    present = [output for output in outputs if _has_content(working_dir / output.path)]
    return tuple(_copy(output, working_dir / output.path, access) for output in present)


def _has_content(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(item.is_file() for item in path.rglob("*")))


def _copy(output: Output, path: Path, access: OciAccess) -> str:
    from airflow_provider_ocidist.storage.locations import join
    from airflow_provider_ocidist.storage.transfer import copy

    folder = output.uri.rstrip("/") or "/"
    try:
        report = copy(str(path), f"{folder}/", access=access)
    except (StorageError, OSError) as error:
        raise AgentError(f"the output {output.path} cannot be copied: {error}", cause=Cause.DATA) from error
    logger.info("copied %s to %s: %d files, %d bytes", output.path, folder, report.files, report.bytes)
    return join(folder, path.name) if path.is_file() else folder
