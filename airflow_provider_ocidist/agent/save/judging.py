"""Judging: gathers evidence that the checkpoint folder's entries are complete, scan by scan."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from airflow_provider_ocidist.agent.save.entries import Candidate, Signature, candidates
from airflow_provider_ocidist.agent.save.file_clocks import WallClock, ahead_ns
from airflow_provider_ocidist.agent.save.formats import NOTHING, FormatResult, Reading, read_file
from airflow_provider_ocidist.agent.save.layouts import (
    LATEST,
    LATEST_UNIVERSAL,
    Elsewhere,
    none_elsewhere,
    read_folder,
)
from airflow_provider_ocidist.agent.save.left_open import LeftOpen
from airflow_provider_ocidist.agent.save.open_files import files_by_writer
from airflow_provider_ocidist.agent.save.proofs import Evidence, Moment, Proof, Unproved, judge
from airflow_provider_ocidist.agent.save.renames import Renames
from airflow_provider_ocidist.agent.save.save_order import SaveOrder
from airflow_provider_ocidist.agent.save.series_comparison import CompleteSaves


@dataclass(frozen=True)
class Verdict:
    """The result for an entry at one scan."""

    item: Candidate
    found: Proof | Unproved
    begun: int
    """Number of the save in the order in which the program has begun its saves."""
    step: int | None
    """The program's step when this version was first seen; None: it had reported none."""


class Judge:
    """Judges each version of each entry until it is proved. Entries from before the start are skipped."""

    def __init__(
        self,
        folder: Path,
        pattern: str | None = None,
        *,
        announced: Callable[[], Mapping[str, int]] = dict,
        elsewhere: Elsewhere = none_elsewhere,
        ahead: Callable[[Path], int] = ahead_ns,
        far: Callable[[Candidate], str | None] = lambda _: None,
        begins: Callable[[str], object] = lambda _: None,
        step: Callable[[], int | None] = lambda: None,
        before: int = 0,
    ) -> None:
        """`announced`: the entries that the program announced, and when, in ns of this machine's clock.

        `ahead`: by how many ns the folder's file stamps are ahead of that clock. `far`: why another node may still
        write to an entry. `begins` takes what is read next. `step` returns the program's step. `before`: as
        `SaveOrder`.
        """
        self.folder = folder
        self.pattern = pattern
        self.announced = announced
        self.elsewhere = elsewhere
        self._ahead = ahead
        self._far = far
        self._begins = begins
        self._step = step
        self._renames = Renames(folder)
        there = candidates(folder, pattern)
        self._there = there
        """Result of the last look."""
        self._order = SaveOrder(there, before)
        self._clock = WallClock()
        self._seen = {item.path: item.signature for item in there}
        self._begun_beside: dict[Path, Mapping[Path, Signature]] = {}
        """Signatures of what was there and unproved at the last look before an entry appeared, unless it was renamed
        into place."""
        self._steps: dict[Path, int | None] = {}
        """The program's step when the version of an entry that was last seen was new."""
        self._proved = dict(self._seen)
        self._dropped: set[Path] = set()
        """Entries that were changed or deleted after their proof, and before they were sent."""
        self._has_exited = False
        """Whether the program has exited with 0, as the last look knows."""
        self._readings: dict[Path, tuple[tuple[Signature, tuple[int | None, ...]], Reading]] = {}
        self._left_open = LeftOpen()
        self._complete = CompleteSaves(there, self._reading_of_unchanged)

    def look(self, moment: Moment) -> list[Verdict]:
        """Return a verdict on each new entry, in the order of writing.

        While the training runs, an entry that changed since the last scan is skipped.
        """
        self._begins(str(self.folder))
        self._has_exited = moment is Moment.EXITED
        before, renamed = self._seen, self.renamed()
        found = self._take_in(renamed)
        at_rest = [item for item in found if item.is_readable and before.get(item.path) == item.signature]
        looked_at = at_rest if moment is Moment.RUNNING else found
        new = [item for item in reversed(looked_at) if self._is_unproved(item)]
        # Slow on a machine with hundreds of processes: called once, and only where something may be open.
        written = cache(files_by_writer)
        if moment is Moment.RUNNING:
            self._note_what_is_open(found, written)
        return [
            Verdict(
                item,
                self._found(moment, item, found, written, renamed),
                self._order.of(item.path),
                self._steps[item.path],
            )
            for item in new
        ]

    def observe(self) -> None:
        """Note what has changed and what is open, without judging it: while a checkpoint is being sent."""
        self._note_what_is_open(self._take_in(self.renamed()), cache(files_by_writer))

    def _take_in(self, renamed: Collection[str]) -> list[Candidate]:
        """Return what is there now, once its order, its steps and what was beside it are noted."""
        found = self._there = candidates(self.folder, self.pattern, self._there)
        self._clock.went_back()
        # What was renamed into place later still has its stamp from before.
        self._order.note(found, self._proved, self._folder_ns if self._clock.was_set_back else None)
        before, step = self._seen, self._step()
        self._steps = {
            item.path: self._steps.get(item.path) if before.get(item.path) == item.signature else step
            for item in found
        }
        beside = {item.path: self._begun_beside.get(item.path, {}) for item in found if item.path in before}
        new = [item for item in found if item.path not in before and item.path.name not in renamed]
        # All that is there would be as many signatures as the square of a program's saves.
        unproved = {path: was for path, was in before.items() if self._proved.get(path) != was} if new else {}
        self._begun_beside = {**beside, **{item.path: unproved for item in new}}
        self._seen = {item.path: item.signature for item in found}
        return found

    def note_dropped(self, path: Path) -> None:
        """Note that a proved entry is not sent as it was: what is left of it may be all that the program keeps."""
        self._dropped.add(path)

    def _is_unproved(self, item: Candidate) -> bool:
        proved = self._proved.get(item.path)
        # Until its end, the program may just be deleting the rest too.
        is_left = self._has_exited and item.path in self._dropped
        return proved != item.signature and (is_left or not _is_rest_of(item, proved))

    def renamed(self) -> frozenset[str]:
        """Return the entries renamed into place since the folder was first seen."""
        return self._renames.names()

    def close(self) -> None:
        self._renames.close()

    def _found(
        self,
        moment: Moment,
        item: Candidate,
        found: Sequence[Candidate],
        written: Callable[[], Mapping[int, Collection[str]]],
        renamed: frozenset[str],
    ) -> Proof | Unproved:
        self._begins(str(item.path))
        try:
            reading = self._reading(item)
            self._complete.note_read(item, reading)
            evidence = self._evidence(item, reading, found, renamed)
        except OSError as error:
            # The program deletes it, or replaces it, at this moment.
            return Unproved(f"it cannot be read: {error}")
        verdict = judge(moment, evidence)
        if isinstance(verdict, Proof):
            verdict = judge(moment, self._with_what_is_open(moment, item, found, written, evidence))
        if isinstance(verdict, Proof) and (doubt := self._far(item)):
            verdict = Unproved(doubt)
        if isinstance(verdict, Proof):
            self._proved[item.path] = item.signature
            self._dropped.discard(item.path)
            self._complete.note_proved(item, reading)
        return verdict

    def _with_what_is_open(
        self,
        moment: Moment,
        item: Candidate,
        found: Sequence[Candidate],
        written: Callable[[], Mapping[int, Collection[str]]],
        evidence: Evidence,
    ) -> Evidence:
        if moment is Moment.EXITED:
            return evidence
        followers = [other.path for other in found if self._follows(other, item)]
        if moment is Moment.CUT_OFF:
            left = self._left_open.left_in(item, followers, has_ended=True)
            return replace(evidence, left_open=left)
        if self._left_open.is_known_closed(item):
            # By an earlier look; one that was to be looked for has been, by this one.
            self._left_open.look(item, written(), [other.path for other in found])
        return replace(
            evidence,
            open_for_writing=self._left_open.open_in(item),
            left_open=self._left_open.left_in(item, followers, has_ended=False),
        )

    def _note_what_is_open(
        self, found: Sequence[Candidate], written: Callable[[], Mapping[int, Collection[str]]]
    ) -> None:
        """Note which files of unproved entries are open, also of those that change from look to look.

        The program may be killed before the next one.
        """
        paths = [item.path for item in found]
        self._left_open.keep(paths)
        for item in found:
            if self._is_unproved(item) and not self._left_open.is_known_closed(item):
                self._left_open.look(item, written(), paths)

    def _reading_of_unchanged(self, item: Candidate) -> Reading:
        """Return what an entry holds; nothing, where it is no longer as it was."""
        return self._reading(item) if self._seen.get(item.path) == item.signature else NOTHING

    def _reading(self, item: Candidate) -> Reading:
        # DeepSpeed names a complete entry in a file beside it.
        pointers = tuple(_modified(item.path.with_name(name)) for name in (LATEST, LATEST_UNIVERSAL))
        known_by = (item.signature, pointers)
        known, reading = self._readings.get(item.path, (None, None))
        if known != known_by or reading is None:
            folder = item.path.is_dir()
            reading = read_folder(item.path, item.files, self.elsewhere) if folder else read_file(item.path)
            if not folder and reading.says is FormatResult.WHOLE and not reading.is_cut_short:
                reading = replace(reading, files=frozenset(item.files))
            self._readings[item.path] = (known_by, reading)
        return reading

    def _evidence(
        self,
        item: Candidate,
        reading: Reading,
        found: Sequence[Candidate],
        renamed: frozenset[str],
    ) -> Evidence:
        compared = self._complete.compared(item, reading, self.elsewhere)
        return Evidence(
            format=reading,
            is_file=item.path.is_file(),
            left_over=_left_over(item, self._proved.get(item.path)),
            lacks=compared.lacks,
            smaller=compared.smaller,
            is_like_the_last=compared.is_like_the_last,
            followed=any(self._follows(other, item) for other in found),
            announced=self._is_announced(item),
            renamed=item.path.name in renamed and _was_moved_whole(item),
        )

    def _follows(self, other: Candidate, item: Candidate) -> bool:
        """Whether the program has begun another save of the series since it last wrote to this one."""
        if not _is_later(other, item):
            return False
        # What keeps the time of its origin, as a copied tokenizer, makes a save look older than it is.
        was_there = self._begun_beside.get(other.path, {}).get(item.path) == item.signature
        return was_there or other.begun_ns > item.signature.modified_ns

    def _is_announced(self, item: Candidate) -> bool:
        """Whether the program has announced this version: nothing was written to it since."""
        at = self.announced().get(item.path.name)
        # The folder's server may have another clock than the machine that stamps the progress file.
        return at is not None and at + self._ahead(self.folder) >= item.signature.modified_ns

    def _folder_ns(self) -> int:
        """Return the time in ns of the clock that stamps the folder's files."""
        return int(time.time() * 1e9) + self._ahead(self.folder)


def _modified(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _is_rest_of(item: Candidate, before: Signature | None) -> bool:
    """Whether the program has only deleted files of an entry since: the proof was one of the whole."""
    known = {} if before is None else dict(before.files)
    is_less = len(item.files) < len(known)
    return is_less and all(known.get(name) == stamp for name, stamp in item.files.items())


def _left_over(item: Candidate, before: Signature | None) -> tuple[str, ...]:
    """Return the files unchanged since an earlier version of an entry, where others have changed."""
    known = {} if before is None else dict(before.files)
    same = tuple(name for name, stamp in known.items() if item.files.get(name) == stamp)
    return same if len(same) < len(known) else ()


def _is_later(other: Candidate, item: Candidate) -> bool:
    """Whether the name of an entry has a higher number of the same series."""
    mine, its = item.placed.number, other.placed.number
    return other.placed.series == item.placed.series and mine is not None and its is not None and its > mine


def _was_moved_whole(item: Candidate) -> bool:
    """Whether nothing below it was written to since, or created, replaced or deleted: moving sets a folder's ctime."""
    with contextlib.suppress(OSError):
        if item.path.is_file():
            return True
        moved_ns = item.path.stat().st_ctime_ns
        below = [folder for folder, _, _ in os.walk(item.path)][1:]
        return item.signature.modified_ns <= moved_ns and all(
            Path(folder).stat().st_mtime_ns < moved_ns for folder in below
        )
    return False
