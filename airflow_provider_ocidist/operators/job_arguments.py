"""A task's arguments about its job. DAG files import this module: it imports no other of ours."""

from __future__ import annotations

import contextlib
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
    env: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    require_training: bool | None = None
    code: WrittenCode | None = None

    def all_overrides(self) -> dict[str, Any]:
        """Return what all arguments change in the job, by dotted path; the more special ones win."""
        named = {
            "nodes": self.nodes,
            "backend.shape": self.shape,
            "require_training": self.require_training,
        }
        return {
            **self.overrides,
            **(self.code.overrides if self.code else {}),
            **{path: value for path, value in named.items() if value is not None},
            **{f"env.{name}": str(value) for name, value in self.env.items()},
        }
