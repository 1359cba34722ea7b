"""`ocidist watch`, and `run --wait`: follow a gang to its end."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.cli import note
from airflow_provider_ocidist.cli.connection import connection_of
from airflow_provider_ocidist.cli.status import status_json
from airflow_provider_ocidist.cli.terminal import FAILED, FINE, say

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.cli.screen import Screen
    from airflow_provider_ocidist.errors import Cause
    from airflow_provider_ocidist.gangs.decisions import Action
    from airflow_provider_ocidist.gangs.watch import Watch
    from airflow_provider_ocidist.model.run import RunRecord, RunRef

ATTEMPTS = 3
"""Number of attempts of a request before the command reports that the service does not answer; it then asks again."""


def add_watch(parser: argparse.ArgumentParser) -> None:
    note.add_target(parser)
    add_interval(parser)
    parser.set_defaults(run=run)


def add_interval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="time between two requests for the state (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    backend, record = note.known(options, max_attempts=ATTEMPTS)
    note.hide_secrets_of(backend, record.ref)
    # A run given by its id has a waiting owner, who ends it when necessary.
    may_end_it = not note.is_id(options.target, options.backend)
    try:
        return to_the_end(
            options,
            backend,
            record,
            may_end_it=may_end_it,
            proven=False,
            on_replaced=lambda ref: note.write(Path(options.target), replace(record, ref=ref)),
        )
    except KeyboardInterrupt:
        say(f"the run continues: ocidist watch {options.target}", "yellow", stderr=True)
        raise


def to_the_end(
    options: argparse.Namespace,
    backend: Backend,
    record: RunRecord,
    *,
    may_end_it: bool,
    proven: bool = True,
    on_replaced: Callable[[RunRef], object] = lambda _: None,
    on_failed: Callable[[Watch, Cause, str], object] = lambda *_: None,
) -> int:
    """Show a gang until it has ended; return the exit code. Outages of the service are waited out.

    `proven`: the service has accepted these credentials before. Else a refusal of the first look is raised at once.
    `on_replaced` takes the gang whenever nodes of it were replaced; `on_failed` may raise where another gang follows.
    """
    from airflow_provider_ocidist.cli.screen import screen_for
    from airflow_provider_ocidist.gangs.decisions import Cancel, Fail, GoOnWithout, Replace, Succeed, Wait
    from airflow_provider_ocidist.gangs.leases import LeaseKeeper
    from airflow_provider_ocidist.gangs.replacements import catch_up, change_nodes

    if not may_end_it:
        # Only the owner renews the lease; watching alone does not.
        record = replace(record, lease=None)
    with contextlib.ExitStack() as stack:
        screen = stack.enter_context(screen_for(record, as_json=options.json))
        watch = screen.watch(backend, record)
        watch.reconnect = lambda: backend.reconnect(connection_of(options))
        stack.enter_context(LeaseKeeper().keeping(watch))
        while True:
            action = _look(watch, screen)
            if not proven and watch.status is None and watch.refusal is not None:
                raise watch.refusal
            proven = True
            match action:
                case Succeed(warning):
                    _finish(watch, may_end_it=may_end_it)
                    assert watch.status is not None
                    if warning:
                        screen.warning("SUCCEEDED, BUT %s", warning)
                    screen.succeeded(status_json(watch.record, watch.status), watch.status)
                    return FINE
                case Fail(cause, message):
                    _finish(watch, may_end_it=may_end_it)
                    on_failed(watch, cause, message)
                    result = status_json(watch.record, watch.status) if watch.status else None
                    screen.failed(str(cause), message, result)
                    return FAILED
                case Cancel(ending) if may_end_it:
                    watch.end(ending)
                case Cancel(ending):
                    screen.warning(
                        "%s: %s; to end it: ocidist cancel %s", ending.cause, ending.message, options.target
                    )
                case Replace() | GoOnWithout() as change if may_end_it:
                    if change_nodes(watch, change, screen):
                        on_replaced(watch.record.ref)
                case Replace() | GoOnWithout():
                    catch_up(watch, screen)
                case Wait():
                    pass
            time.sleep(watch.pause(options.interval))


def _finish(watch: Any, *, may_end_it: bool) -> None:
    watch.write_the_rest()
    if may_end_it:
        watch.end_leftovers()


def _look(watch: Any, screen: Screen) -> Action:
    action: Action = watch.look(time.time())
    screen.show(watch.status)
    return action
