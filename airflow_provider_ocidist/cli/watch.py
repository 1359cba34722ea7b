"""`ocidist watch`, and `run --wait`: follow a gang to its end."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.cli import note
from airflow_provider_ocidist.cli.connection import named_by, reconnect
from airflow_provider_ocidist.cli.numbers import seconds
from airflow_provider_ocidist.cli.status import status_json
from airflow_provider_ocidist.cli.terminal import FAILED, FINE, last_output, say
from airflow_provider_ocidist.kinds import DEFAULT_BACKEND
from airflow_provider_ocidist.model.homes import command_on, ways_to_end

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.cli.screen import Screen
    from airflow_provider_ocidist.errors import Cause
    from airflow_provider_ocidist.gangs.actions import Action, NodeChange
    from airflow_provider_ocidist.gangs.watch import Watch
    from airflow_provider_ocidist.model.run import Ending, RunRecord, RunRef, RunStatus

MAX_ATTEMPTS = 3
"""Number of attempts of a request before the command reports that the service does not answer; it then asks again."""


def add_watch(parser: argparse.ArgumentParser) -> None:
    note.add_target(parser, run)
    add_interval(parser)


def add_interval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval",
        type=seconds,
        default=2.0,
        metavar="SECONDS",
        help="time between two requests for the state (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    backend, record = note.known(options, max_attempts=MAX_ATTEMPTS)
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
            max_attempts=MAX_ATTEMPTS,
        )
    except KeyboardInterrupt:
        # A note names its backend.
        kind = DEFAULT_BACKEND if may_end_it else options.backend
        command = command_on("watch", kind, options.target, named_by(options))
        say(f"the run continues: {command}", "yellow", stderr=True)
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
    to_go_on: Callable[[RunStatus], str | None] = lambda _: None,
    **defaults: Any,
) -> int:
    """Show a gang until it has ended; return the exit code. Outages of the service are waited out.

    `proven`: the service has accepted these credentials before. Else a refusal of the first look is raised at once.
    `on_replaced` takes the gang whenever nodes of it were replaced; `on_failed` may raise where another gang follows.
    `to_go_on` returns the line about how to go on from where a failed training stands.
    `defaults`: those for the fields of the connection with which `backend` was made (`backend_of`).
    """
    from airflow_provider_ocidist.cli.screen import screen_for
    from airflow_provider_ocidist.gangs.leases import LeaseKeeper

    if not may_end_it:
        # Only the owner renews the lease; watching alone does not.
        record = replace(record, lease=None)
    with screen_for(record, as_json=options.json) as screen:
        watch = screen.watch(backend, record)
        watch.reconnect = lambda: reconnect(options, backend, **defaults)
        follower = _Follower(options, watch, screen, may_end_it, on_replaced, on_failed, to_go_on)
        with LeaseKeeper().keeping(watch):
            action = follower.look()
            if not proven and watch.status is None and watch.refusal is not None:
                raise watch.refusal
            while (code := follower.act(action)) is None:
                time.sleep(watch.pause(options.interval))
                action = follower.look()
            return code


@dataclass(frozen=True)
class _Follower:
    """What `watch` does with each action that a look at its gang has led to."""

    options: argparse.Namespace
    watch: Watch
    screen: Screen
    may_end_it: bool
    on_replaced: Callable[[RunRef], object]
    on_failed: Callable[[Watch, Cause, str], object]
    to_go_on: Callable[[RunStatus], str | None]

    def look(self) -> Action:
        action: Action = self.watch.look(time.time())
        self.screen.show(self.watch.status)
        return action

    def act(self, action: Action) -> int | None:
        """Return the exit code once the gang has ended; None while it goes on."""
        from airflow_provider_ocidist.gangs.actions import Cancel, Fail, NodeChange, Succeed

        match action:
            case Succeed(warning):
                return self._succeed(warning)
            case Fail(cause, message):
                return self._fail(cause, message)
            case Cancel(ending):
                self._cancel(ending)
            case NodeChange() as change:
                self._change(change)
        return None

    def _succeed(self, warning: str | None) -> int:
        self._finish()
        assert self.watch.status is not None
        if warning:
            self.screen.warning("SUCCEEDED, BUT %s", warning)
        with last_output():
            self.screen.succeeded(status_json(self.watch.record, self.watch.status), self.watch.status)
        return FINE

    def _fail(self, cause: Cause, message: str) -> int:
        from airflow_provider_ocidist.cli.screen import Failed
        from airflow_provider_ocidist.gangs.failure import remedy_of, remedy_on_terminal

        self._finish()
        self.on_failed(self.watch, cause, message)
        status = self.watch.status
        end = Failed(
            cause=cause,
            message=message,
            # A run given by its id is a task's, which retries; of any other run a person decides.
            remedy=(remedy_on_terminal if self.may_end_it else remedy_of)(cause, message),
            result=status_json(self.watch.record, status) if status else None,
            to_go_on=self.to_go_on(status) if status else None,
        )
        with last_output():
            self.screen.failed(end)
        return FAILED

    def _finish(self) -> None:
        self.watch.write_the_rest()
        if self.may_end_it:
            self.watch.end_leftovers()

    def _cancel(self, ending: Ending) -> None:
        if self.may_end_it:
            self.watch.end(ending)
        else:
            kind = self.options.backend
            command = command_on("cancel", kind, self.options.target, named_by(self.options))
            self.screen.warning(
                "%s: %s; to end it: %s", ending.cause, ending.message, ways_to_end(kind, command)
            )

    def _change(self, change: NodeChange) -> None:
        """Replace nodes, or have the others go on without them; of another's gang, take what its owner has done."""
        from airflow_provider_ocidist.gangs.replacements import catch_up, change_nodes

        if not self.may_end_it:
            catch_up(self.watch, self.screen)
        elif change_nodes(self.watch, change, self.screen):
            self.on_replaced(self.watch.record.ref)
