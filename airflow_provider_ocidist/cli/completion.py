"""Shell completion beyond commands and flags: job files, connections, kinds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from typing import Any

CONN_VARIABLE = "AIRFLOW_CONN_"
Completer = Callable[..., Iterable[str]]


def complete_with(argument: argparse.Action, completer: Completer) -> None:
    """Set the completer of an argument for argcomplete; argparse itself ignores it."""
    argument.completer = completer  # type: ignore[attr-defined]  # only argcomplete knows it


def answer_completion(parser: argparse.ArgumentParser) -> None:
    """Answer and exit if the shell asks for completions."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    try:
        import argcomplete
    except ImportError:
        return
    argcomplete.autocomplete(parser)


def command_in_line(line: str) -> str | None:
    """Return the command in the line to complete."""
    words = line.split()[1:]
    return words[0] if words else None


def yaml_files(prefix: str, **_: Any) -> list[str]:
    """Return YAML files, and folders, which end in `/`."""
    return _files(prefix, (".yaml", ".yml"))


def connection_ids(**_: Any) -> list[str]:
    return sorted(
        name.removeprefix(CONN_VARIABLE).lower() for name in os.environ if name.startswith(CONN_VARIABLE)
    )


def kinds_of(family: str) -> Completer:
    """Return a completer for the kinds of a family: `backends`, `launchers`."""

    def offer(**_: Any) -> list[str]:
        from airflow_provider_ocidist import kinds

        return kinds.names(family)

    return offer


def _files(prefix: str, endings: tuple[str, ...]) -> list[str]:
    folder, _, beginning = prefix.rpartition("/")
    place = f"{folder}/" if folder or prefix.startswith("/") else ""
    try:
        found = sorted(os.scandir(os.path.expanduser(place) or "."), key=lambda each: each.name)  # noqa: PTH111 - Path raises for unknown users
    except OSError:
        return []
    return [
        f"{place}{each.name}{'/' if each.is_dir() else ''}"
        for each in found
        if each.name.startswith(beginning or "") and (each.is_dir() or each.name.endswith(endings))
        if beginning.startswith(".") or not each.name.startswith(".")
    ]
