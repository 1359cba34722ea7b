"""Proofs: what shows that an entry of the checkpoint folder is complete. Pure; all rules are in `RULES`."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_ocidist.agent.save.formats import NOTHING, FormatResult, Reading
from airflow_provider_ocidist.backports import StrEnum, dataclass

REMEDY = (
    "write it under another name and rename it when it is whole, or append a line such as "
    '{{"checkpoint": "{name}"}} to $OCIDIST_PROGRESS_FILE after each save'
)


class Moment(StrEnum):
    """When an entry is looked at."""

    RUNNING = "running"
    """The training runs."""
    EXITED = "exited"
    """The training has exited with 0 by itself: its writes are done."""
    CUT_OFF = "cut off"
    """The training has ended in any other way: an error, a signal, or a stop request."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of one entry."""

    format: Reading = NOTHING
    is_file: bool = False
    """Whether the entry is one file, which its format proves alone; of a folder another file may still be missing."""
    open_for_writing: tuple[str, ...] = ()
    """Files of the entry that a process of the training could still write to."""
    left_open: tuple[str, ...] = ()
    """Files that a process had open for writing when it ended, or was cut off: it may have written half of them."""
    left_over: tuple[str, ...] = ()
    """Files unchanged since an earlier version, while others are newer: a save may be under way."""
    lacks: tuple[str, ...] = ()
    """Files of the whole checkpoint before it that the entry lacks."""
    smaller: tuple[str, ...] = ()
    """Files that are smaller than in each whole checkpoint before it, or missing, and not proved by their format."""
    is_like_the_last: bool = False
    """Whether the entry has the files of the whole checkpoint before it: of the same size, or proved by their
    format, or of the same members."""
    followed: bool = False
    """Whether the program has begun the next save since it last wrote to this entry."""
    announced: bool = False
    """Whether the program has named the entry in its progress file since it last wrote to it."""
    renamed: bool = False
    """Whether the entry was renamed into place, and not written to since."""


@dataclass(frozen=True)
class Proof:
    """The entry is whole."""

    by: str
    """Rule that proved it; goes into the manifest."""


@dataclass(frozen=True)
class Unproved:
    """The entry may be partial."""

    why: str
    broken: bool = False
    """Whether something is certainly missing."""
    mixed: bool = False
    """Whether it holds files of two saves."""


@dataclass(frozen=True)
class Rule:
    """One way to know that an entry is whole."""

    by: str
    holds: Callable[[Evidence], bool]
    moments: frozenset[Moment] = frozenset(Moment)


def _is_whole_by_its_format(found: Evidence) -> bool:
    form = found.format
    if form.says is not FormatResult.WHOLE or form.is_cut_short:
        # An exception may have written its end too, and the program may have caught it.
        return False
    if found.is_file:
        return not (form.is_by_length and found.left_open)
    return not (found.lacks or found.left_over)


def _is_followed(found: Evidence) -> bool:
    """Whether it was left for the next. A program that has caught the error of a save goes on too."""
    return found.followed and not (found.left_over or found.lacks or found.smaller or found.left_open)


def _is_like_the_last(found: Evidence) -> bool:
    return found.is_like_the_last and not (found.left_over or found.left_open)


RULES = (
    Rule("format", _is_whole_by_its_format),
    Rule("announced by the program", lambda found: found.announced),
    Rule("renamed into place", lambda found: found.renamed),
    Rule("its successor was begun", _is_followed),
    Rule("has all files of the one before", _is_like_the_last),
    Rule("the program exited with 0", lambda _: True, frozenset({Moment.EXITED})),
)
"""Any of these is enough, unless the format shows that something is missing, or a file of it is open for writing.

Where the format is doubtful, the program's announcement, or its exit with 0, overrides it.
"""


def judge(moment: Moment, found: Evidence) -> Proof | Unproved:
    """Return the proof that an entry is whole, or why there is none."""
    if found.format.says is FormatResult.BROKEN and not (
        found.format.is_doubtful and _is_vouched_for(moment, found)
    ):
        return Unproved(found.format.why, broken=True)
    if found.open_for_writing:
        return Unproved(f"{found.open_for_writing[0]} is still open for writing")
    for rule in RULES:
        if moment in rule.moments and rule.holds(found):
            return Proof(rule.by)
    return Unproved(_why_not(found), mixed=bool(found.left_over))


def _is_vouched_for(moment: Moment, found: Evidence) -> bool:
    """Whether the program has announced it or exited with 0."""
    return found.announced or moment is Moment.EXITED


def _why_not(found: Evidence) -> str:
    if found.lacks:
        return f"it lacks {found.lacks[0]}, which the whole one before has"
    if found.left_over:
        return f"its file {found.left_over[0]} belongs to an earlier save than the others"
    if found.left_open:
        return f"a process ended while it had {found.left_open[0]} open for writing"
    if found.followed and found.smaller:
        return f"{found.smaller[0] or 'it'} is smaller than in the whole one before, or missing"
    return "nothing shows that the program had written all of it"


def remedy(name: str) -> str:
    """Return what the program may do so that an entry like this one is proved."""
    return REMEDY.format(name=name)
