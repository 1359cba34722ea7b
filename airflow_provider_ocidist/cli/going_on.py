"""Going on: the command that continues a training from its newest checkpoint."""

from __future__ import annotations

import argparse
import shlex
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_ocidist.cli.connection import named_by
from airflow_provider_ocidist.cli.files import value_of
from airflow_provider_ocidist.cli.terminal import Unusable, without_secrets
from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.masking import masked

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.model.run import RunRef, RunStatus

START = "checkpoints.start_from"
LIMIT = 5.0
"""Most seconds that a command which ends, or refuses, looks for a checkpoint: an outage does not hold it."""
BETWEEN = 0.3
"""Seconds between two looks at nodes that end."""
LEFT_OUT = "..."
"""Sign in the place of a value that is, or may hold, a secret."""


def line(options: argparse.Namespace, status: RunStatus) -> str | None:
    """Return where a training stands, with the command that goes on from there; None where nothing is known of it."""
    step = status.progress.step if status.progress else None
    at = "" if step is None else f"the training stands at step {step}; "
    checkpoint = status.checkpoint
    if checkpoint is None or status.checkpoint_problem is not None:
        problem = status.checkpoint_problem or "no checkpoint was found"
        return f"{at}{problem}" if at else None
    which = checkpoint.uri if checkpoint.step is None else f"step {checkpoint.step}"
    later = "" if status.ended else " (its nodes have not ended, and may save a later one)"
    return f"{at}newest checkpoint: {which}{later}. To go on from it: {command(options, checkpoint.uri)}"


def command(options: argparse.Namespace, uri: str) -> str:
    """Return the command line that runs the same file, with the same replacements, from a checkpoint.

    Without the values of secrets, which a log keeps and other people read.
    """
    words = ["ocidist", "run", parsing.place_shown(options.file), *(["--wait"] if options.wait else [])]
    if (connection := named_by(options)) is not None:
        words.append(f"--conn-id={connection}")
    for text in options.field:
        words += ["--field", _shown(text)]
    if options.nodes is not None:
        words += ["--nodes", str(options.nodes)]
    if options.topology is not None:
        words += ["--topology", options.topology]
    for text in options.set:
        if not text.startswith(f"{START}="):
            words += ["--set", _shown(text)]
    return shlex.join([*words, "--info", str(_free_note(options.info)), "--set", f"{START}={uri}"])


def where_to_look(options: argparse.Namespace) -> str:
    """Return what to do where the newest checkpoint of a cancelled run is not known in time."""
    connection = named_by(options)
    named = [] if connection is None else [f"--conn-id={connection}"]
    listing = shlex.join(["ocidist", "checkpoints", "list", *named, str(options.info)])
    return f"its newest checkpoint is not known yet; to list its checkpoints: {listing}"


def _shown(text: str) -> str:
    """Return NAME=VALUE as it may be shown: without a value that is a secret, or that is too much for one line."""
    name, _, value = text.partition("=")
    tree = {name: _value(name, value)}
    is_plain = value.isprintable() and without_secrets(text) == text and masked(tree) == tree
    return text if is_plain else f"{name}={LEFT_OUT}"


def _value(name: str, text: str) -> object:
    try:
        return value_of(name, text)
    except Unusable:
        # No JSON, though it begins as such.
        return text


def _free_note(info: Path) -> Path:
    """Return a note beside another one that does not exist yet."""
    names = ("next.yaml", *(f"next-{number}.yaml" for number in range(2, 100)))
    return next((path for path in map(info.with_name, names) if not path.exists()), info.with_name(names[0]))


def state_in_time(backend_there: Callable[[], Backend], ref: RunRef, *, awaits_end: bool) -> RunStatus | None:
    """Return the state of a gang; None where the service does not give it within LIMIT. Raises nothing.

    `awaits_end`: look again until its nodes have ended, since they may still save.
    """
    seen: list[RunStatus] = []
    over = threading.Event()

    def look() -> None:
        with suppress(OcidistError, Unusable):
            backend = backend_there()
            while not over.is_set():
                with suppress(OcidistError):
                    seen.extend(backend.status([ref]))
                if not awaits_end or (seen and seen[-1].ended):
                    return
                over.wait(BETWEEN)

    # Of its own: a request that is not answered would hold this one, and the interpreter's exit.
    thread = threading.Thread(target=look, name="going-on", daemon=True)
    # A second Ctrl-C ends the look only.
    with suppress(KeyboardInterrupt):
        thread.start()
        thread.join(LIMIT)
    over.set()
    return seen[-1] if seen else None
