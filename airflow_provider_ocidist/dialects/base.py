"""Dialect: other people's YAML in our form, with the way back for messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_ocidist.errors import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Translation:
    """A job file in our form; what is wrong with it is still told by its own paths."""

    mapping: Mapping[str, Any]
    paths: Mapping[str, str] = field(default_factory=dict)
    """Our dotted paths to theirs; what lies below a path follows it."""
    problems: tuple[Problem, ...] = ()
    """What the dialect itself found, by their paths."""
    readable: bool = True
    """Whether the rest was understood, so that looking at it further makes sense."""

    def theirs(self, path: str) -> str:
        """Return where the value of one of our paths is written."""
        fits = [ours for ours in self.paths if f"{path}.".startswith(f"{ours}.")]
        if not fits:
            return path
        ours = max(fits, key=len)
        return self.paths[ours] + path[len(ours) :]


class Dialect(ABC):
    """One form of job file that is not ours."""

    @abstractmethod
    def matches(self, mapping: Mapping[str, Any]) -> bool:
        """Return whether a file is of this form, whatever else may be wrong with it."""

    @abstractmethod
    def translate(self, mapping: Mapping[str, Any]) -> Translation:
        """Return the same job in our form; never drops a key in silence."""
