"""CopyItem: one source and one target of many; the only place that validates them."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import JobFileError, Problem, StorageError
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.transfer import MODES, CopyRules

ITEM_KEYS = ("source", "target", "include", "exclude", "mode", "verify", "delete_extra")
FORM = '{"source": URI, "target": URI}'
NOTHING_FOUND = "is 'None': its template has found nothing"
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True, kw_only=True)
class CopyItem:
    """One source, target and rules."""

    number: int
    """Number of the item as written, from 1; several sources of one item share it."""
    source: str
    target: str
    rules: CopyRules = field(default_factory=CopyRules)

    @property
    def shown(self) -> str:
        return f"{locations.shown(self.source)} -> {locations.shown(self.target)}"


def read_items(data: object, rules: CopyRules) -> tuple[CopyItem, ...]:
    """Return the items of a list, of a mapping of sources to targets, or of either as JSON.

    `rules` are the items' defaults. Raises JobFileError with every problem and the number of its item.
    """
    problems: list[Problem] = []
    items: list[CopyItem] = []
    try:
        for number, written in enumerate(_listed(data), start=1):
            made = _read(number, written, rules)
            problems += [thing for thing in made if isinstance(thing, Problem)]
            items += [thing for thing in made if isinstance(thing, CopyItem)]
    except ValueError as error:
        problems.append(Problem("", str(error)))
    problems += _same_targets(items)
    if problems:
        raise JobFileError(problems, "the data to copy")
    return tuple(items)


def _listed(data: object) -> Iterable[object]:
    value: Any = _parsed(data) if isinstance(data, str) else data
    if isinstance(value, Mapping):
        if "source" in value or "target" in value:
            return [value]
        return [{"source": source, "target": target} for source, target in value.items()]
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(  # noqa: TRY004 - reported with all others
            f"{_quoted(value)} is neither a list of {FORM} nor a mapping of sources to targets"
        )
    return value


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"{_quoted(text[:60])} is text, but not JSON: pass a list, such as `data=task.output`, or end the "
            "template in `| tojson`"
        ) from error


def _read(number: int, written: object, rules: CopyRules) -> list[CopyItem | Problem]:
    place = f"item {number}"
    if not isinstance(written, Mapping):
        return [Problem(place, f"must be {FORM}, not {_quoted(written)}")]
    sources, target = _several(written.get("source", ())), written.get("target")
    own, wrong = _own_rules(place, written, rules)
    problems: list[CopyItem | Problem] = [
        *_key_problems(place, written),
        *_place_problems(place, written, sources),
        *wrong,
        *(_problems_of_several(place, target, own) if len(sources) > 1 else ()),
    ]
    if problems or target is None:
        return problems
    to = os.fspath(target)
    return [CopyItem(number=number, source=os.fspath(source), target=to, rules=own) for source in sources]


def _several(sources: Any) -> Sequence[Any]:
    if isinstance(sources, (str, os.PathLike)) or not isinstance(sources, Iterable):
        return [sources]
    return list(sources)


def _quoted(value: object) -> str:
    return repr(locations.shown(value) if isinstance(value, str) else value)


def _place_problems(place: str, written: Mapping[str, Any], sources: Sequence[Any]) -> Iterator[Problem]:
    if "source" in written and not sources:
        yield Problem(f"{place}, source", "is an empty list")
    targets = [written["target"]] if "target" in written else []
    for key, values in (("source", sources), ("target", targets)):
        for value in values:
            if why := _fault(value):
                yield Problem(f"{place}, {key}", why)


def _problems_of_several(place: str, target: Any, rules: CopyRules) -> Iterator[Problem]:
    if isinstance(target, str) and not target.endswith("/"):
        yield Problem(f"{place}, target", "takes several sources: end it in / to say that it is a folder")
    if rules.delete_extra:
        yield Problem(
            f"{place}, delete_extra", "needs one source: of several, each would delete the others' files"
        )


def _key_problems(place: str, written: Mapping[Any, Any]) -> Iterator[Problem]:
    for key in written:
        if key not in ITEM_KEYS:
            near = difflib.get_close_matches(str(key), ITEM_KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(ITEM_KEYS)}"
            yield Problem(place, f"has the unknown key {key!r}: {hint}")
    for key in ("source", "target"):
        if key not in written:
            yield Problem(place, f"has no {key!r}")


def _fault(value: object) -> str | None:
    """Return what is wrong with a place."""
    if not isinstance(value, (str, os.PathLike)):
        return f"must be a URI or a path, not {value!r}"
    if value == "None":
        return NOTHING_FOUND
    try:
        locations.parse(os.fspath(value))
    except StorageError as error:
        return str(error)
    return None


def _own_rules(place: str, written: Mapping[str, Any], rules: CopyRules) -> tuple[CopyRules, list[Problem]]:
    values: dict[str, Any] = {}
    problems = []
    for key in ITEM_KEYS[2:]:
        if key not in written:
            continue
        value, why = _rule(key, written[key])
        values[key] = value
        if why:
            problems.append(Problem(f"{place}, {key}", why))
    return (rules if problems else replace(rules, **values)), problems


def _rule(key: str, value: Any) -> tuple[Any, str | None]:
    """Return the value of a rule, and what is wrong with it."""
    if key in ("include", "exclude"):
        patterns = [value] if isinstance(value, str) else value
        if not isinstance(patterns, Iterable) or not all(isinstance(text, str) for text in patterns):
            return (), f"must be a list of patterns, not {value!r}"
        # An empty one fits no name: it comes from a template, and means that there is none.
        return tuple(filter(None, patterns)), NOTHING_FOUND if "None" in patterns else None
    if key == "mode":
        return value, None if value in MODES else f"must be one of {', '.join(MODES)}, not {value!r}"
    truth = _TRUTH.get(value.lower()) if isinstance(value, str) else value
    return truth, None if isinstance(truth, bool) else f"must be true or false, not {value!r}"


def rules_of(**values: Any) -> CopyRules:
    """Return the rules of all items, from what an operator was given. Raises JobFileError."""
    rules, problems = _own_rules("all items", values, CopyRules())
    if problems:
        raise JobFileError(problems, "the data to copy")
    return rules


def _same_targets(items: Sequence[CopyItem]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for item in items:
        if item.target.endswith("/"):
            continue
        target = locations.parse(item.target)
        place = os.path.realpath(target.path) if target.kind == "local" else target.uri
        if first.setdefault(place, item.number) != item.number:
            yield Problem(
                f"item {item.number}, target",
                f"is that of item {first[place]} too: end both in / if both go into one folder",
            )
