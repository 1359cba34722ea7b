"""Dialect: another YAML format in our form, with the original paths for messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.job_file.schema import PLACEHOLDER, unknown_key, value_shown
from airflow_provider_ocidist.job_file.written_values import whole_in
from airflow_provider_ocidist.launchers.command_line import CommandLine


@dataclass(frozen=True, kw_only=True, slots=True)
class Translation:
    """A job file in our form; problems are still reported by its own paths."""

    mapping: Mapping[str, Any]
    paths: Mapping[str, str] = field(default_factory=dict)
    """Dotted paths in the file by ours; each also maps the paths below it."""
    problems: tuple[Problem, ...] = ()
    """Problems found by the dialect, by their paths."""
    readable: bool = True
    """Whether the rest was understood, so that further checks make sense."""

    def theirs(self, path: str) -> str:
        """Return the original path of one of ours."""
        fits = [ours for ours in self.paths if f"{path}.".startswith(f"{ours}.")]
        if not fits:
            return path
        ours = max(fits, key=len)
        return self.paths[ours] + path[len(ours) :]


class Dialect(ABC):
    """One form of job file that is not ours."""

    @abstractmethod
    def matches(self, mapping: Mapping[str, Any]) -> bool:
        """Return whether a file is of this form, even with errors."""

    @abstractmethod
    def translate(self, mapping: Mapping[str, Any], home: str | None = None) -> Translation:
        """Return the same job in our form; never drops a key in silence.

        `home`: the kind of the backend that was chosen for it; None: that for which the file is meant.
        """


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the file and its path."""

    path: str
    value: Mapping[str, Any]
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Keys with another spelling in the file."""

    def at(self, key: str) -> str:
        key = self.spelled.get(key, key)
        return f"{self.path}.{key}" if self.path else key

    def respelled(self, known: Iterable[str]) -> Section:
        """Return the section with keys such as `shape_name` under their known names, `shapeName`."""
        names = {name.casefold(): name for name in known}
        spelled = {
            names[plain]: str(key)
            for key in self.value
            if "_" in str(key) and (plain := str(key).replace("_", "").casefold()) in names
        }
        back = {key: name for name, key in spelled.items()}
        return Section(self.path, {back.get(key, key): item for key, item in self.value.items()}, spelled)


@dataclass(frozen=True, slots=True)
class Variable:
    """The value of an environment variable, and its path."""

    path: str
    value: Any


Variables = dict[str, Variable]
"""Variables by their names."""


@dataclass(slots=True)
class Draft:
    """A job in our form under construction."""

    mapping: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def finished(self) -> Translation:
        return Translation(mapping=self.mapping, paths=self.paths, problems=tuple(self.problems))

    def put(self, ours: str, theirs: str, value: Any) -> None:
        """Write a value at a path of ours, and record its origin."""
        holder = self.mapping
        *above, last = ours.split(".")
        for part in above:
            holder = holder.setdefault(part, {})
        holder[last] = value
        self.paths[ours] = theirs

    def put_entry(self, ours: str, name: str, theirs: str, value: Any) -> None:
        """Write one entry of a section of ours whose names are the user's own, and may hold dots."""
        self.mapping.setdefault(ours, {})[name] = value
        self.paths[f"{ours}.{name}"] = theirs

    def put_command(self, theirs: str, command: CommandLine) -> None:
        """Write the values of a command line; all have one path."""
        self.put("launcher.kind", theirs, command.launcher)
        if command.flags:
            self.put("launcher.args", theirs, list(command.flags))
        self.put("program.script", theirs, command.script)
        if command.module:
            self.put("program.module", theirs, value=True)
        if command.args:
            self.put("program.args", theirs, list(command.args))

    def copy(self, section: Section, table: Mapping[str, str]) -> None:
        for theirs, ours in table.items():
            if theirs in section.value:
                self.put(ours, section.at(theirs), section.value[theirs])

    def put_needed(self, ours: str, section: Section, key: str, missing: str = "is needed") -> None:
        """Put a required value; reports a missing one, and lets the checks continue."""
        if key not in section.value:
            self.complain(section.at(key), missing)
        self.put(ours, section.at(key), section.value.get(key, PLACEHOLDER))

    def complain(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))

    def section(
        self,
        parent: Section | Mapping[str, Any],
        key: str,
        known: Iterable[str],
        *,
        refused: Mapping[str, str] | None = None,
        respell: bool = False,
    ) -> Section:
        """Return a section below another, empty if it is absent; reports its unknown keys.

        `refused`: keys that we do not support, with the reason. `respell`: `shape_name` is `shapeName` too.
        """
        parent = parent if isinstance(parent, Section) else Section("", parent)
        path, value = parent.at(key), parent.value.get(key)
        if value is None:
            return Section(path, {})
        if not isinstance(value, Mapping):
            self.complain(path, f"must be a section with keys and values, not {value_shown(value)}")
            return Section(path, {})
        section = Section(path, value)
        if respell:
            written = section
            section = section.respelled({*known, *(refused or {})})
            for name, spelling in section.spelled.items():
                if name in written.value:
                    self.complain(f"{path}.{spelling}", f"says the same as {name!r}: remove one of them")
        self.keys(section.value, path, known, refused)
        return section

    def keys(
        self,
        value: Mapping[str, Any],
        path: str,
        known: Iterable[str],
        refused: Mapping[str, str] | None = None,
    ) -> None:
        """Report the unknown keys of a section."""
        known, refused = sorted(known), refused or {}
        for key in value:
            where = f"{path}.{key}" if path else str(key)
            if key in refused:
                self.complain(where, refused[key])
            elif key not in known:
                self.complain(where, unknown_key(str(key), [*known, *refused]))

    def listed(self, section: Section, key: str, what: str = "a list") -> list[tuple[str, Any]]:
        """Return the entries of a list with their paths, none if it is absent; reports a value that is no list."""
        value, path = section.value.get(key), section.at(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            self.complain(path, f"must be {what}, not {value_shown(value)}")
            return []
        return [(f"{path}.{index}", item) for index, item in enumerate(value)]

    def only(self, section: Section, key: str, *allowed: str) -> None:
        """Report a value other than the allowed ones."""
        value = section.value.get(key)
        if value is not None and str(value).casefold() not in {item.casefold() for item in allowed}:
            self.complain(section.at(key), f"must be {' or '.join(allowed)}, not {value_shown(value)}")

    def whole_number(self, section: Section, key: str, least: int, default: int) -> int:
        """Return a whole number of at least `least`; reports any other value."""
        value = section.value.get(key, default)
        if isinstance(value, str):
            # Jinja renders text only.
            value = whole_in(value)
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return int(value)
        self.complain(
            section.at(key),
            f"must be a whole number of at least {least}, not {value_shown(section.value.get(key, default))}",
        )
        return default
