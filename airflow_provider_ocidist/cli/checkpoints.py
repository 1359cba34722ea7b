"""`ocidist checkpoints list | verify | prune | fetch | export`: look after stored checkpoints."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.cli import note
from airflow_provider_ocidist.cli.connection import add_connection, connection_of
from airflow_provider_ocidist.cli.numbers import count_or_none
from airflow_provider_ocidist.cli.terminal import (
    FINE,
    WRONG,
    Unusable,
    add_json,
    columns,
    counted,
    last_output,
    local_path,
    print_json,
    say,
)
from airflow_provider_ocidist.model.amounts import size_text, time_text

if TYPE_CHECKING:
    from airflow_provider_ocidist.oci_client.credentials import OciAccess
    from airflow_provider_ocidist.storage.catalog import Item, PruneRule
    from airflow_provider_ocidist.storage.manifests import Manifest
    from airflow_provider_ocidist.storage.stores.base import Store

FOLDER_COLOURS = {"damaged": "red", "unfinished": "yellow", "unproved": "yellow"}
LAYOUTS = ("folder", "safetensors", "huggingface")


def add_checkpoints(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="action", required=True)
    _add_list(actions.add_parser("list", help="print step, loss, size, age, attempt and proof of each"))
    _add_verify(actions.add_parser("verify", help="read every file again and compare it with its manifest"))
    _add_prune(actions.add_parser("prune", help="print what the rules would delete; --yes deletes it"))
    _add_fetch(actions.add_parser("fetch", help="copy one checkpoint to this machine, and verify it"))
    _add_export(actions.add_parser("export", help="write one checkpoint in another layout"))


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "place",
        nargs="?",
        default=note.INFO,
        metavar="PLACE",
        help="path or URI of a folder with checkpoints, or of a folder above several such; or the file that "
        "`ocidist run` wrote (default: %(default)s)",
    )
    add_connection(parser)


def _add_list(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    add_json(parser)
    parser.set_defaults(run=_list)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    parser.add_argument(
        "--step", type=count_or_none, metavar="N", help="verify only the newest checkpoint of this step"
    )
    add_json(parser)
    parser.set_defaults(run=_verify)


def _add_prune(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    parser.add_argument(
        "--keep", type=int, default=3, metavar="N", help="keep the newest N (default: %(default)s)"
    )
    parser.add_argument(
        "--keep-every", type=int, metavar="N", help="also keep those whose step is a multiple of N"
    )
    parser.add_argument(
        "--keep-best",
        metavar="METRIC",
        help="also keep the one with the smallest METRIC; METRIC:max for the largest",
    )
    parser.add_argument(
        "--older-than", default="0", metavar="AGE", help="delete only those saved longer ago: 12h, 30d"
    )
    parser.add_argument(
        "--remains",
        action="store_true",
        help="also delete damaged, unfinished and unproved ones that are older than an hour",
    )
    parser.add_argument("--yes", action="store_true", help="delete; without it nothing is deleted")
    add_json(parser)
    parser.set_defaults(run=_prune)


def _add_fetch(parser: argparse.ArgumentParser) -> None:
    _add_one(parser)
    parser.add_argument(
        "--force",
        action="store_true",
        help="replace what is at the target already, also files that are not of the checkpoint",
    )
    parser.set_defaults(run=_fetch)


def _add_export(parser: argparse.ArgumentParser) -> None:
    _add_one(parser)
    parser.add_argument(
        "--to", choices=LAYOUTS, default="folder", help="layout of the target (default: %(default)s)"
    )
    parser.add_argument(
        "--file", metavar="NAME", help="file of the checkpoint that contains the model's weights"
    )
    parser.add_argument(
        "--key", metavar="NAME", help="entry of that file that contains the weights, such as model.state_dict"
    )
    parser.set_defaults(run=_export)


def _add_one(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "place",
        metavar="SOURCE",
        help="path or URI of one checkpoint, or of a folder with checkpoints, of which the newest whole one is used; "
        "or the file that `ocidist run` wrote",
    )
    parser.add_argument("target", metavar="TARGET", type=Path, help="path on this machine")
    parser.add_argument(
        "--step", type=count_or_none, metavar="N", help="use the newest checkpoint of this step"
    )
    add_connection(parser)
    add_json(parser)


# list


def _list(options: argparse.Namespace) -> int:
    found = list(_found(options))
    with last_output():
        if options.json:
            print_json([_as_json(place, item) for place, items in found for item in items])
            return FINE
        for place, items in found:
            say(place.uri, "bold")
            _print_table(items)
    return FINE


def _found(options: argparse.Namespace) -> Iterator[tuple[Store, Sequence[Item]]]:
    """Yield each place for checkpoints that is there, with what lies in it."""
    from airflow_provider_ocidist.storage import catalog

    uri, access = _uri(options), _access(options)
    store = _opened(uri, access)
    if own := catalog.own_item(store):
        yield store, [own]
        return
    # Several tasks may save below one folder.
    for place in catalog.places(store) or [""]:
        there = _opened(f"{uri.rstrip('/')}/{place}", access) if place else store
        items = catalog.items(there)
        if not items:
            raise Unusable(f"{uri}: is empty, or does not exist")
        yield there, items


def _uri(options: argparse.Namespace) -> str:
    """Return the place that a command's argument names. Raises Unusable or Unopenable when it names none."""
    from airflow_provider_ocidist.storage import locations

    local = Path(locations.parse(options.place).path)
    if "://" in options.place or local.is_dir():
        return str(options.place)
    if not local.exists():
        what = "name a folder of checkpoints, a URI, or the info.yaml of a run"
        raise Unusable(f"{options.place}: does not exist; {what}")
    uri = note.read(Path(options.place))["record"]["ref"].get("checkpoints_uri")
    if not uri:
        raise Unusable(f"{options.place}: its run saves no checkpoints (the job has no section checkpoints)")
    return str(uri)


def _access(options: argparse.Namespace) -> OciAccess:
    from airflow_provider_ocidist.oci_client.credentials import access_of

    return access_of(connection_of(options))


def _opened(uri: str, access: OciAccess) -> Store:
    from airflow_provider_ocidist.storage.stores.opening import open_store

    return open_store(uri, access)


def _as_json(place: Store, item: Item) -> dict[str, Any]:
    manifest = item.manifest
    return {
        "uri": f"{place.uri.rstrip('/')}/{item.folder}".rstrip("/"),
        "state": str(item.state),
        "problem": item.fault,
        "step": manifest.step if manifest else None,
        "loss": manifest.loss if manifest else None,
        "metrics": dict(manifest.metrics) if manifest else {},
        "bytes": item.size,
        "files": len(item.files),
        "saved_at": item.saved_at,
        "generation": manifest.generation if manifest else None,
        "attempt": manifest.attempt if manifest else None,
        "proof": manifest.proof if manifest else None,
    }


def _print_table(items: Sequence[Item]) -> None:
    rows = [["CHECKPOINT", "STEP", "LOSS", "SIZE", "AGE", "ATTEMPT", "STATE", "PROOF OR PROBLEM"]]
    title, *lines = columns(rows + [_row(item) for item in items])
    say(title, "bold")
    for line, item in zip(lines, items, strict=True):
        say(line, FOLDER_COLOURS.get(item.state, ""))


def _row(item: Item) -> list[str]:
    manifest = item.manifest
    step = "" if manifest is None or manifest.step is None else str(manifest.step)
    loss = "" if manifest is None or manifest.loss is None else f"{manifest.loss:.4g}"
    attempt = f"g{manifest.generation}-a{manifest.attempt}" if manifest else ""
    age = "" if item.saved_at is None else time_text(time.time() - item.saved_at)
    why = item.fault or (manifest.proof if manifest else "")
    return [item.folder or ".", step, loss, size_text(item.size), age, attempt, str(item.state), why]


# verify


def _verify(options: argparse.Namespace) -> int:
    found = (_judged(place, item) for place, items in _found(options) for item in _published(items, options))
    judged = [each for each in found if each]
    if not judged:
        raise Unusable(f"{options.place}: there is no published checkpoint" + _of_step(options))
    bad = [each for each in judged if each["problem"]]
    with last_output():
        if options.json:
            print_json(judged)
        else:
            for each in judged:
                say(f"{each['uri']}: {each['problem'] or 'whole'}", "red" if each["problem"] else "")
            say(f"{counted(len(judged), 'checkpoint')} read: {len(bad)} damaged", "bold")
    return WRONG if bad else FINE


def _judged(place: Store, item: Item) -> dict[str, Any] | None:
    """Return a published checkpoint with what differs from its manifest; None where retention has just deleted it."""
    from airflow_provider_ocidist.storage import catalog
    from airflow_provider_ocidist.storage.manifests import MANIFEST

    try:
        problem = catalog.what_differs(place, item)
    except FileNotFoundError:
        # The manifest is deleted first.
        if not place.exists(item.files[MANIFEST].name):
            return None
        problem = "a file of it was deleted while it was read"
    return {**_as_json(place, item), "problem": problem}


def _published(items: Sequence[Item], options: argparse.Namespace) -> list[Item]:
    found = [item for item in items if item.state in ("whole", "damaged")]
    if options.step is None:
        return found
    return [item for item in found if item.manifest and item.manifest.step == options.step][:1]


def _of_step(options: argparse.Namespace) -> str:
    return "" if options.step is None else f" of step {options.step}"


# prune


def _prune(options: argparse.Namespace) -> int:
    from airflow_provider_ocidist.storage import catalog
    from airflow_provider_ocidist.storage.listing import delete_folder

    wanted, now = _prune_rule(options), time.time()
    chosen = [
        (place, item) for place, items in _found(options) for item in catalog.selected(items, wanted, now)
    ]
    if options.yes:
        for place, item in chosen:
            delete_folder(place, item.files)
    with last_output():
        if options.json:
            print_json([{**_as_json(place, item), "deleted": options.yes} for place, item in chosen])
            return FINE
        if chosen:
            _print_table(
                [replace(item, folder=f"{place.uri.rstrip('/')}/{item.folder}") for place, item in chosen]
            )
        what = f"{counted(len(chosen), 'checkpoint')}, {size_text(sum(item.size for _, item in chosen))}"
        say(f"{what} deleted" if options.yes else f"{what} would be deleted; --yes deletes", "bold")
    return FINE


def _prune_rule(options: argparse.Namespace) -> PruneRule:
    from airflow_provider_ocidist.model.field_limits import Duration
    from airflow_provider_ocidist.model.job import Best
    from airflow_provider_ocidist.storage.catalog import PruneRule
    from airflow_provider_ocidist.storage.retention import Retention

    if options.keep < 1:
        raise Unusable(f"--keep {options.keep}: at least the newest one stays; write 1 or more")
    if options.keep_every is not None and options.keep_every < 1:
        raise Unusable(f"--keep-every {options.keep_every}: write a number of steps, 1 or more")
    best = None
    if options.keep_best:
        metric, _, mode = options.keep_best.partition(":")
        if mode not in ("", "min", "max"):
            raise Unusable(f"--keep-best {options.keep_best}: write METRIC, METRIC:min or METRIC:max")
        best = Best(metric=metric, mode=mode or "min")
    try:
        age = float(Duration.parse(options.older_than))
    except ValueError:
        raise Unusable(f"--older-than {options.older_than}: write seconds, or 90s, 15m, 2h, 30d") from None
    rule = Retention(keep=options.keep, every=options.keep_every, best=best)
    return PruneRule(rule=rule, older_than=age, remains=options.remains)


# fetch and export


def _fetch(options: argparse.Namespace) -> int:
    from airflow_provider_ocidist.storage import checkpoints

    options.target = local_path(options.target)
    uri, access = _one(options), _access(options)
    if not options.force:
        _refuse_loss(options.target, checkpoints.verify(uri, access))
    _print_path(options, checkpoints.fetch(uri, options.target, access))
    return FINE


def _refuse_loss(target: Path, manifest: Manifest) -> None:
    """Raise Unusable where a fetch would delete what is not of the checkpoint."""
    from airflow_provider_ocidist.storage import reuse

    place = target / manifest.name
    if foreign := reuse.foreign_in(manifest, place):
        raise Unusable(
            f"{place}: exists already, and {foreign}; name another TARGET, or replace it with --force"
        )


def _export(options: argparse.Namespace) -> int:
    from airflow_provider_ocidist.cli import layouts
    from airflow_provider_ocidist.storage import checkpoints

    options.target = local_path(options.target)
    with layouts.staging(options.target) as folder:
        fetched = checkpoints.fetch(_one(options), folder, _access(options))
        written = layouts.write(
            fetched, options.target, layout=options.to, file=options.file, key=options.key
        )
    _print_path(options, written)
    return FINE


def _print_path(options: argparse.Namespace, path: Path) -> None:
    with last_output():
        if options.json:
            print_json({"path": str(path)})
        else:
            say(str(path))


def _one(options: argparse.Namespace) -> str:
    """Return the URI of the checkpoint that a command's arguments name. Raises Unusable without any."""
    from airflow_provider_ocidist.storage import catalog
    from airflow_provider_ocidist.storage.manifests import MANIFEST

    uri = _uri(options)
    store = _opened(uri, _access(options))
    if options.step is None and store.exists(MANIFEST) and catalog.own_item(store):
        return uri
    whole = [
        _as_json(place, item) for place, items in _found(options) for item in items if item.state == "whole"
    ]
    wanted = [each for each in whole if options.step in (None, each["step"])]
    if not wanted:
        raise Unusable(f"{uri}: no whole checkpoint{_of_step(options)} found")
    if len({each["uri"].rpartition("/")[0] for each in wanted}) > 1:
        raise Unusable(
            f"{uri}: several trainings have saved below it; name a checkpoint that `ocidist checkpoints list` prints"
        )
    return str(wanted[0]["uri"])
