"""`ocidist diff`: the differences between two jobs, as described or as they run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.cli import note
from airflow_provider_ocidist.cli.completion import complete_with, yaml_files
from airflow_provider_ocidist.cli.connection import add_connection
from airflow_provider_ocidist.cli.files import load, problems_of, with_lease
from airflow_provider_ocidist.cli.terminal import FINE, WRONG, add_json, hide, last_output, print_json, say
from airflow_provider_ocidist.model.masking import masked, secrets_in

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.model.run import Request, RunRecord, RunRef


JOB_RUN, ARTIFACT = "CreateJobRun", "CreateJobArtifact"


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs between the sides; None if a side has none."""

    path: str
    old: Any
    new: Any


def add_diff(parser: argparse.ArgumentParser) -> None:
    for name in ("old", "new"):
        side = parser.add_argument(
            name,
            metavar=name.upper(),
            help="job file (path or URI), file that `ocidist run` wrote (info.yaml), or id of a run",
        )
        complete_with(side, yaml_files)
    add_connection(parser)
    note.add_backend(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Two files are compared as jobs; a file and a run by the requests that would be and were sent."""
    sides = [options.old, options.new]
    live = [_is_run(side, options.backend) for side in sides]
    if any(live):
        values = _requests(options, sides, live)
    else:
        values = [load(side, options, templates=True).to_mapping() for side in sides]
    hide(secrets_in(values))
    found = list(differences(*values))
    with last_output():
        if options.json:
            print_json([asdict(item) for item in found])
        else:
            for item in found:
                _print(item)
            if not found:
                say("no difference", "green")
    return WRONG if found else FINE


def differences(old: Any, new: Any) -> Iterator[Difference]:
    """Yield the differences, by dotted path, in the order of the old side, with secrets masked.

    Lists are compared item by item.
    """
    yield from _differences(old, new, masked(old), masked(new), "")


def _differences(old: Any, new: Any, old_shown: Any, new_shown: Any, path: str) -> Iterator[Difference]:
    """The last two sides are the first two with secrets masked."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            first, second, *seen = (_at(side, key) for side in (old, new, old_shown, new_shown))
            yield from _differences(first, second, seen[0], seen[1], f"{path}.{key}" if path else str(key))
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        for index in range(len(old)):
            first, second, *seen = (_at(side, index) for side in (old, new, old_shown, new_shown))
            yield from _differences(first, second, seen[0], seen[1], f"{path}.{index}")
    elif old != new:
        yield Difference(path, old_shown, new_shown)


def _at(side: Any, place: Any) -> Any:
    """Return the item at a place of a mapping or a list; a masked value is masked at all of its places."""
    if isinstance(side, Mapping):
        return side.get(place)
    return side[place] if isinstance(side, list | tuple) else side


def _print(item: Difference) -> None:
    say(item.path, "bold")
    if item.old is not None:
        say(f"  - {_shown(item.old)}", "red")
    if item.new is not None:
        say(f"  + {_shown(item.new)}", "green")


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


# runs


def _is_run(side: str, backend: str) -> bool:
    return "://" not in side and (note.is_id(side, backend) or note.is_note(Path(side)))


def _requests(options: argparse.Namespace, sides: list[str], live: list[bool]) -> list[Any]:
    """Return both sides as the requests of a gang: for a file those that would be sent for the other side's run."""
    runs = {side: _run(options, side) for side, is_live in zip(sides, live, strict=True) if is_live}
    backend, record = next(iter(runs.values()))
    return [
        _created(*runs[side]) if is_live else _planned(options, side, backend, record.ref)
        for side, is_live in zip(sides, live, strict=True)
    ]


def _run(options: argparse.Namespace, side: str) -> tuple[Backend, RunRecord]:
    return note.known(argparse.Namespace(**{**vars(options), "target": side}))


def _as_mapping(requests: Iterable[Request]) -> dict[str, Any]:
    """Return requests by their verb, runs by their number, with JSON in texts parsed, and lists by their names."""
    others = {item.verb: item.body for item in requests if item.verb not in (JOB_RUN, ARTIFACT)}
    runs = [item.body for item in requests if item.verb == JOB_RUN]
    opened: dict[str, Any] = _opened(
        {**others, **{f"{JOB_RUN}[{rank}]": run for rank, run in enumerate(runs)}}
    )
    return opened


def _opened(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _opened(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return _by_name([_opened(item) for item in value])
    if isinstance(value, str) and value.startswith("{"):
        with suppress(ValueError):
            return _opened(json.loads(value))
    return value


def _by_name(items: list[Any]) -> Any:
    """Return a list whose items have names, as variables and volumes of a pod, by these: their order means nothing."""
    names = [item.get("name") if isinstance(item, Mapping) else None for item in items]
    if not items or not all(isinstance(name, str) for name in names) or len(set(names)) < len(items):
        return items
    return {name: _named(item) for name, item in zip(names, items, strict=True)}


def _named(item: Mapping[str, Any]) -> Any:
    rest = {name: value for name, value in item.items() if name != "name"}
    return rest["value"] if rest.keys() == {"value"} else rest


def _created(backend: Backend, record: RunRecord) -> dict[str, Any]:
    from airflow_provider_ocidist.backends.capabilities import ShowsWhatItCreated

    return _as_mapping(ShowsWhatItCreated.of(backend).created(record.ref))


def _planned(options: argparse.Namespace, file: str, backend: Backend, run: RunRef) -> dict[str, Any]:
    from airflow_provider_ocidist.backends.capabilities import ShowsWhatItCreated

    # The waiting process sets a run's lease, which the file does not have.
    job = with_lease(load(file, options), run.lease)
    with problems_of(file):
        plan = backend.plan(job, run.key)
    return _as_mapping(ShowsWhatItCreated.of(backend).planned(plan))
