"""Outputs: copies the job's outputs off the node, each node's to its own place."""

from __future__ import annotations

import glob
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from airflow_provider_ocidist.agent.monitor.node_hours import reports_of
from airflow_provider_ocidist.agent.save.saving import SaveDeadline, cause_of_failed_save, passes
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import AgentError, Cause, OcidistError, StorageError
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.amounts import names_text
from airflow_provider_ocidist.model.job import Output
from airflow_provider_ocidist.model.run import RunKey
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.copying.in_flight import InFlight
from airflow_provider_ocidist.storage.locations import is_text, join, parse, shown, shown_in

logger = logging.getLogger(__name__)

VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|(?P<bare>[A-Za-z_]\w*)|\{(?P<braced>[^{}]*)\})")
"""Variable in the URI of an output, or `$$` for a dollar sign."""


_NODES = re.compile("node-[0-9]+")
_FAILED = re.compile("failed-[0-9]+")


@dataclass(frozen=True, kw_only=True)
class OutputCopy:
    """One output of this node, and where it goes."""

    path: str
    source: Path
    uri: str
    required: bool


def with_uris(outputs: Sequence[Output], environ: Mapping[str, str]) -> tuple[Output, ...]:
    """Return the outputs with the variables in their URIs filled in. Raises AgentError for an unknown one."""
    return tuple(replace(output, uri=with_variables(output.uri, environ)) for output in outputs)


def with_variables(uri: str, environ: Mapping[str, str]) -> str:
    """Fill in `$NAME` and `${NAME}`; `$$` stands for `$`."""

    def value(found: re.Match[str]) -> str:
        if found["escaped"]:
            return "$"
        name = found["bare"] or found["braced"] or ""
        if not environ.get(name):
            raise AgentError(
                f"the output {shown(uri)} names the variable {name!r}, which this node does not have: "
                "set it in env, or write $$ for a dollar sign",
                cause=Cause.CONFIG,
            )
        return environ[name]

    return VARIABLE.sub(value, uri)


def planned_copies(
    outputs: Sequence[Output],
    working_dir: Path,
    *,
    rank: int,
    is_main: bool,
    failed_run: str | None = None,
    alone: bool = False,
) -> list[OutputCopy]:
    """Return what this node has to copy.

    `failed_run` is the name of a run that did not succeed; `alone`: whether the gang has no other node. Raises
    AgentError where two outputs, of this node or of two, would write the same file.
    """
    chosen = [
        OutputCopy(
            path=output.path,
            source=working_dir / output.path,
            uri=_place(output.uri, rank, is_main=is_main, failed_run=failed_run),
            required=output.required and is_main and failed_run is None,
        )
        for output in outputs
        if (is_main or output.nodes == "all") and (failed_run is None or output.when == "always")
    ]
    places = _places(chosen)
    if is_main:
        _refuse_others_folders(places, outputs, failed_run, alone=alone)
    return chosen


def _place(uri: str, rank: int, *, is_main: bool, failed_run: str | None) -> str:
    below = [] if failed_run is None else [f"failed-{_attempt(failed_run)}"]
    return join(uri, *below, *([] if is_main else [f"node-{rank}"]))


def _attempt(run_name: str) -> str:
    attempt = RunKey.attempt_in(run_name)
    return run_name if attempt is None else str(attempt)


def _places(chosen: Sequence[OutputCopy]) -> dict[str, str]:
    """Return the output that writes each place. Raises AgentError for a place that two write."""
    owners: dict[str, str] = {}
    folders: dict[str, str] = {}
    for output in chosen:
        root = _absolute(output.uri)
        for name in _names(output.source):
            place = join(root, name)
            # On a file system, a file where the other has a folder cannot be written either.
            above = [join(root, folder) for folder in _folders_above(name)] if root.startswith("/") else []
            for other in (owners.setdefault(place, output.path), folders.get(place), *map(owners.get, above)):
                if other not in (None, output.path):
                    raise AgentError(
                        f"the outputs {other} and {output.path} would both write {shown(place)}: "
                        "give them different URIs",
                        cause=Cause.CONFIG,
                    )
            folders.update((folder, output.path) for folder in above)
    return owners


def _folders_above(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _absolute(uri: str) -> str:
    """Return what two URIs of one folder share."""
    place = parse(uri)
    return os.path.realpath(place.path) if place.kind == "local" else uri


def _refuse_others_folders(
    places: Mapping[str, str], outputs: Sequence[Output], failed_run: str | None, *, alone: bool
) -> None:
    """Raise AgentError where the main node would write to a folder that is another node's, or a failed attempt's."""
    for output in outputs:
        root = _absolute(_place(output.uri, 0, is_main=True, failed_run=failed_run))
        kinds = [_NODES] if output.nodes == "all" and not alone else []
        kinds += [_FAILED] if output.when == "always" and failed_run is None else []
        for place, path in places.items():
            first, _, below = place.removeprefix(f"{root}/").partition("/")
            if place.startswith(f"{root}/") and below and any(kind.fullmatch(first) for kind in kinds):
                raise AgentError(
                    f"the output {path} would write {shown(place)}, to which other nodes or attempts copy the "
                    f"output {output.path}: rename {first}, or give them different URIs",
                    cause=Cause.CONFIG,
                )


def _names(path: Path) -> list[str]:
    """Return the names of the files that a copy of an output sends."""
    from airflow_provider_ocidist.storage.stores.local import LocalStore

    if path.is_file():
        return [path.name]
    return [entry.name for entry in LocalStore(path).as_source().list()] if path.is_dir() else []


def copy_outputs(
    chosen: Sequence[OutputCopy],
    access: OciAccess,
    cancel: threading.Event | None = None,
    *,
    deadline: SaveDeadline | None = None,
    in_flight: InFlight | None = None,
) -> tuple[str, ...]:
    """Return the URIs of what was copied.

    `deadline`: for how long a failed copy is retried; None: not at all. `in_flight` learns what is being sent. Raises
    AgentError when a required output is missing, or a copy fails; and, once all else is copied, for names that the
    target cannot hold.
    """
    missing = [output.path for output in chosen if output.required and not _names(output.source)]
    if missing:
        raise AgentError(
            f"the training succeeded but did not write its required output {', '.join(missing)}",
            cause=Cause.USER,
        )
    left_out: set[str] = set()
    copied = tuple(
        _copy_patiently(partial(_copy, output, access, cancel, in_flight, left_out), output.path, deadline)
        for output in chosen
        if _names(output.source)
    )
    if left_out:
        odd = names_text([repr(name) for name in sorted(left_out)])
        raise AgentError(
            f"the outputs are copied without {odd}: a name that is not UTF-8 can only be copied to a local folder; "
            "rename it",
            cause=Cause.DATA,
        )
    return copied


def _odd_names(output: OutputCopy) -> list[str]:
    """Return the names, of those that a copy sends, that the target cannot hold."""
    if parse(output.uri).kind == "local":
        return []
    return [name for name in _names(output.source) if not is_text(name)]


def _copy_patiently(copy: Callable[[], str], path: str, deadline: SaveDeadline | None) -> str:
    what = f"the output {path} cannot be copied"
    while True:
        try:
            return copy()
        except (StorageError, OSError) as error:
            shown_error = StorageError(shown_in(str(error)), retryable=passes(error))
            if deadline is None or not deadline.again(what, shown_error):
                raise AgentError(f"{what}: {shown_error}", cause=cause_of_failed_save(error)) from error


def _copy(
    output: OutputCopy,
    access: OciAccess,
    cancel: threading.Event | None,
    in_flight: InFlight | None,
    left_out: set[str],
) -> str:
    """Copy an output; the names that its target cannot hold are added to `left_out`."""
    from airflow_provider_ocidist.storage.progress import progress_lines
    from airflow_provider_ocidist.storage.transfer import copy

    folder, odd = output.uri.rstrip("/") or "/", _odd_names(output)
    left_out.update(odd)
    log_progress = progress_lines(logger.info, f"the output {output.path}", every=15.0)
    report = copy(
        str(output.source),
        f"{folder}/",
        access=access,
        exclude=[glob.escape(name) for name in odd],
        on_progress=log_progress,
        cancel=cancel,
        in_flight=in_flight,
    )
    logger.info("copied %s to %s: %d files, %d bytes", output.path, folder, report.files, report.bytes)
    return join(folder, output.source.name) if output.source.is_file() else folder


def abort_left_behind(config: AgentConfig, access: OciAccess) -> None:
    """Abort uploads of outputs that nodes of the attempt before have reported and left open. Raises nothing."""
    if config.attempt < 2 or not config.outputs:
        return
    from airflow_provider_ocidist.storage.open_uploads import abort_reported

    try:
        # That attempt has done so with those of the one before it.
        reports = reports_of(config.run_dir, config.attempt, config.attempt - 1, access)
    except (OcidistError, OSError) as error:
        logger.info("the reports of the attempt before cannot be read: %s", error)
        return
    aborted = abort_reported([each for report in reports for each in report.sending], access)
    if aborted:
        logger.info("aborted %d uploads of outputs that the attempt before had left open", aborted)
