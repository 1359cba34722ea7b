"""Outputs: copies the job's outputs off the node, each node's to its own place."""

from __future__ import annotations

import contextlib
import logging
import os
import posixpath
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from airflow_provider_ocidist.agent.monitor.node_hours import reports_of
from airflow_provider_ocidist.agent.save.output_places import (
    Clash,
    OthersFolders,
    OutputPlaces,
    absolute,
    lines_of,
    meetings,
)
from airflow_provider_ocidist.agent.save.saving import SaveDeadline, cause_of_failed_save, passes
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import AgentError, BehindLink, Cause, OcidistError, StorageError
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


@dataclass(frozen=True, kw_only=True)
class OutputCopy:
    """One output of this node, and where it goes."""

    path: str
    source: Path
    uri: str
    required: bool
    clashes: tuple[Clash, ...] = ()
    """Files that are left out, as their places are others'."""


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


def warn_beforehand(outputs: Sequence[Output]) -> None:
    """Warn, before the training, of what may keep files of the outputs from being copied after it."""
    for pair in meetings(outputs):
        logger.warning(
            "the outputs %s go to one folder: of files that they would both write there, only one would be copied",
            pair,
        )
    for link in (link for output in outputs for link in linked_folders(output.uri)):
        logger.warning(
            "%s is a link: files of an output that would lie behind it are not copied; name the folder that it leads "
            "to as the place of an output of its own",
            link,
        )


def planned_copies(
    outputs: Sequence[Output],
    working_dir: Path,
    *,
    rank: int,
    is_main: bool,
    nodes: int,
    failed_run: str | None = None,
) -> list[OutputCopy]:
    """Return what this node, of a gang of so many `nodes`, has to copy.

    `failed_run` is the name of a run that did not succeed. Where two outputs, of this node or of two, would write the
    same place, only the first does.
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
    # Every other node has a folder of its own.
    others = [_others_folders(output, rank, nodes, failed_run) for output in outputs] if is_main else []
    places = OutputPlaces(others)
    return [
        replace(copy, clashes=places.add(copy.path, copy.source, copy.uri, _names(copy.source)))
        for copy in chosen
    ]


def _place(uri: str, rank: int, *, is_main: bool, failed_run: str | None) -> str:
    below = [] if failed_run is None else [f"failed-{_attempt(failed_run)}"]
    return join(uri, *below, *([] if is_main else [_folder_of(rank)]))


def _folder_of(rank: int) -> str:
    return f"node-{rank}"


def _attempt(run_name: str) -> str:
    attempt = RunKey.attempt_in(run_name)
    return run_name if attempt is None else str(attempt)


def _others_folders(output: Output, main_rank: int, nodes: int, failed_run: str | None) -> OthersFolders:
    ranks = [rank for rank in range(nodes) if rank != main_rank] if output.nodes == "all" else []
    return OthersFolders(
        output=output.path,
        root=absolute(_place(output.uri, main_rank, is_main=True, failed_run=failed_run)),
        nodes=frozenset(map(_folder_of, ranks)),
        attempts=output.when == "always" and failed_run is None,
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
    AgentError when a required output is missing, or a copy fails; and, once all else is copied, for files whose place
    is another's, and for names that the target cannot hold.
    """
    missing = [output.path for output in chosen if output.required and not _names(output.source)]
    if missing:
        raise AgentError(
            f"the training succeeded but did not write its required output {', '.join(missing)}",
            cause=Cause.USER,
        )
    copied = tuple(
        _copy_patiently(partial(_copy, output, access, cancel, in_flight), output.path, deadline)
        for output in chosen
        if _names_to_send(output)
    )
    _report_left_out(chosen)
    return copied


def _names_to_send(output: OutputCopy) -> list[str]:
    left_out = {*(clash.name for clash in output.clashes), *_odd_names(output), *_behind_links(output)}
    return [name for name in _names(output.source) if name not in left_out]


def _odd_names(output: OutputCopy) -> list[str]:
    """Return the names that the target cannot hold."""
    if parse(output.uri).kind == "local":
        return []
    return [name for name in _names(output.source) if not is_text(name)]


def _behind_links(output: OutputCopy) -> dict[str, str]:
    """Return the names that would be written behind a link of a local target, each with that link."""
    place = parse(output.uri)
    if place.kind != "local":
        return {}
    from airflow_provider_ocidist.storage.stores.local_files import link_above

    names = _names(output.source)
    links = {
        folder: link_above(Path(place.path), f"{folder}/x")
        for folder in {*map(posixpath.dirname, names)} - {""}
    }
    found = {name: links.get(posixpath.dirname(name)) for name in names}
    return {name: link for name, link in found.items() if link}


def linked_folders(uri: str) -> list[str]:
    """Return the links to folders that are directly in a local folder; deeper ones may be anywhere in a large tree."""
    place = parse(uri)
    if place.kind != "local":
        return []
    with contextlib.suppress(OSError), os.scandir(place.path) as children:
        return sorted(child.path for child in children if child.is_symlink() and child.is_dir())
    return []


def _report_left_out(chosen: Sequence[OutputCopy]) -> None:
    """Raise AgentError for the files that were not copied, though they are there."""
    lines = lines_of(clash for output in chosen for clash in output.clashes)
    cause = Cause.CONFIG if lines else Cause.DATA
    odd = sorted({repr(name) for output in chosen for name in _odd_names(output)})
    if odd:
        lines.append(
            f"without {names_text(odd)}: a name that is not UTF-8 can only be copied to a local folder; rename it"
        )
    behind = [link for output in chosen for link in _behind_links(output).values()]
    if behind:
        lines.append(
            f"without {len(behind)} files behind the links {names_text(sorted({*behind}))}: nothing behind a link is "
            "changed; name the folder that it leads to as the place of an output of its own"
        )
    if lines:
        raise AgentError(f"of the outputs all else is copied, but {'; '.join(lines)}", cause=cause)


def _copy_patiently(copy: Callable[[], str], path: str, deadline: SaveDeadline | None) -> str:
    what = f"the output {path} cannot be copied"
    while True:
        try:
            return copy()
        except (StorageError, OSError) as error:
            kind = BehindLink if isinstance(error, BehindLink) else StorageError
            shown_error = kind(shown_in(str(error)), retryable=passes(error))
            if deadline is None or not deadline.again(what, shown_error):
                raise AgentError(f"{what}: {shown_error}", cause=cause_of_failed_save(error)) from error


def _copy(
    output: OutputCopy, access: OciAccess, cancel: threading.Event | None, in_flight: InFlight | None
) -> str:
    """Copy what of an output can be sent."""
    from airflow_provider_ocidist.storage.copying.destination import landing
    from airflow_provider_ocidist.storage.copying.selection import find
    from airflow_provider_ocidist.storage.progress import progress_lines
    from airflow_provider_ocidist.storage.stores.opening import Stores
    from airflow_provider_ocidist.storage.transfer import CopyRules, copy_selection, default_budget

    folder, names, stores = output.uri.rstrip("/") or "/", {*_names_to_send(output)}, Stores(access)
    found = find(str(output.source), stores)
    found = replace(found, entries=[entry for entry in found.entries if entry.name in names])
    report = copy_selection(
        found,
        landing(f"{folder}/", found, stores),
        CopyRules(),
        budget=default_budget(),
        on_progress=progress_lines(logger.info, f"the output {output.path}", every=15.0),
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
