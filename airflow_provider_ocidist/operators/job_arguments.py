"""A task's arguments about its job. DAG files import this module: it imports no other of ours when it is loaded."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenCode:
    """Code that a task writes itself, for its nodes. The files are there only while they are needed."""

    folder: str
    """Name of the folder, the same in each attempt, since the code sent to the nodes must be the same, too."""
    files: Mapping[str, str]
    """Text of each file, by its name."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the job needs for this code, by dotted path."""

    @contextlib.contextmanager
    def written(self) -> Iterator[Path]:
        """Write the files into a folder of this machine, and delete it afterwards."""
        with tempfile.TemporaryDirectory(prefix="ocidist-") as place:
            folder = Path(place) / self.folder
            folder.mkdir()
            for name, text in self.files.items():
                (folder / name).write_text(text, encoding="utf-8")
            yield folder


@dataclass(frozen=True, kw_only=True, slots=True)
class JobArguments:
    """The arguments of an operator that name a job and change it, rendered by Airflow."""

    job: Any
    """Path of a job file, its URI, or a mapping of the same form."""
    folder: Path
    """Folder that relative paths begin in."""
    nodes: int | str | None = None
    shape: str | None = None
    env: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    require_training: bool | None = None
    code: WrittenCode | None = None

    def all_overrides(self) -> dict[str, Any]:
        """Return what all arguments change in the job, by dotted path; the more special ones win.

        Raises JobFileError for a shape whose template has found nothing.
        """
        if self.shape in ("", "None"):
            raise _problem("shape", f"is {self.shape!r}: its template has found nothing; name a shape")
        named = {
            "nodes": self.nodes,
            "backend.shape": self.shape,
            "require_training": self.require_training,
        }
        return {
            **self.overrides,
            **(self.code.overrides if self.code else {}),
            **{path: value for path, value in named.items() if value is not None},
            # As they are: what is no text or number is refused as in a job file.
            **{f"env.{name}": value for name, value in self.env.items()},
        }


def settings(name: str, value: Any) -> dict[str, Any]:
    """Return an argument that is a mapping, or JSON text of one; empty text is none. Raises JobFileError."""
    read = value
    if isinstance(value, str):
        try:
            read = json.loads(value or "{}")
        except ValueError as error:
            raise _no_mapping(name, "is text, but not JSON") from error
    if read is None:
        return {}
    if not isinstance(read, Mapping):
        raise _no_mapping(name, f"is no mapping, but {type(read).__name__}")
    return dict(read)


def settings_if_any(name: str, value: Any) -> Any:
    """Return an argument as `settings` does, or as it is where that refuses it."""
    from airflow_provider_ocidist.errors import JobFileError

    try:
        return settings(name, value)
    except JobFileError:
        return value


def _no_mapping(name: str, why: str) -> Exception:
    return _problem(name, f"{why}: pass a mapping, or end the template in `| tojson`")


def _problem(name: str, why: str) -> Exception:
    from airflow_provider_ocidist.errors import JobFileError, Problem

    return JobFileError([Problem(name, why)], "the task's arguments")
