"""What proves that an entry is whole: every cell of the product, against the table of docs/nodes.md."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from airflow_provider_ocidist.agent.save.formats import NOTHING, WHOLE, broken
from airflow_provider_ocidist.agent.save.proofs import Evidence, Moment, Proof, Unproved, judge, remedy

FORMATS = {
    "whole": WHOLE,
    "by length": replace(WHOLE, is_by_length=True),
    "cut short": replace(WHOLE, is_cut_short=True),
    "nothing": NOTHING,
    "broken": broken("something is missing"),
    "doubtful": broken("something is odd", is_doubtful=True),
}


def expected(moment: Moment, form: str, found: Evidence) -> set[str]:
    """Return the proofs that the documents name for it; none where it is not published."""
    word_of_the_program = found.announced or moment is Moment.EXITED
    if form == "broken" or (form == "doubtful" and not word_of_the_program) or found.open_for_writing:
        return set()
    proofs = set()
    # A folder may still lack a file that no format of another speaks of.
    is_whole = form == "whole" or (form == "by length" and not (found.is_file and found.left_open))
    if is_whole and (found.is_file or not (found.lacks or found.left_over)):
        proofs.add("format")
    if found.announced:
        proofs.add("announced by the program")
    if found.renamed:
        proofs.add("renamed into place")
    if found.followed and not (found.left_over or found.lacks or found.smaller or found.left_open):
        proofs.add("its successor was begun")
    if found.is_like_the_last and not (found.left_over or found.left_open):
        proofs.add("has all files of the one before")
    if moment is Moment.EXITED:
        proofs.add("the program exited with 0")
    return proofs


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("form", FORMATS)
def test_every_cell_is_as_the_documents_promise(form: str, moment: Moment) -> None:
    flags = itertools.product([False, True], repeat=5)
    files = itertools.product([(), ("a.bin", "b.bin")], repeat=5)
    for (is_file, like, followed, announced, renamed), found_files in itertools.product(flags, list(files)):
        opened, left_open, left_over, lacks, smaller = found_files
        found = Evidence(
            format=FORMATS[form],
            is_file=is_file,
            open_for_writing=opened,
            left_open=left_open,
            left_over=left_over,
            lacks=lacks,
            smaller=smaller,
            is_like_the_last=like,
            followed=followed,
            announced=announced,
            renamed=renamed,
        )
        verdict = judge(moment, found)
        proofs = expected(moment, form, found)
        assert isinstance(verdict, Proof) == bool(proofs), found
        assert not isinstance(verdict, Proof) or verdict.by in proofs, found


def test_of_an_entry_nothing_is_known_and_nothing_proved_to_begin_with() -> None:
    bare = Evidence()
    assert (bare.open_for_writing, bare.left_open, bare.left_over) == ((), (), ())
    assert (bare.lacks, bare.smaller) == ((), ())
    for flag in (bare.is_file, bare.is_like_the_last, bare.followed, bare.announced, bare.renamed):
        assert flag is False
    verdict = judge(Moment.RUNNING, bare)
    assert isinstance(verdict, Unproved)
    assert verdict.why == "nothing shows that the program had written all of it"
    assert (verdict.broken, verdict.mixed) == (False, False)
    assert judge(Moment.EXITED, Evidence()) == Proof("the program exited with 0")


@pytest.mark.parametrize("moment", [Moment.RUNNING, Moment.CUT_OFF])
def test_the_reason_names_the_file(moment: Moment) -> None:
    lacking = judge(moment, Evidence(lacks=("a.bin", "b.bin")))
    assert lacking == Unproved("it lacks a.bin, which the whole one before has")
    mixed = judge(moment, Evidence(left_over=("a.bin", "b.bin")))
    assert isinstance(mixed, Unproved)
    assert mixed == Unproved("its file a.bin belongs to an earlier save than the others", mixed=True)
    left = judge(moment, Evidence(followed=True, left_open=("a.bin", "b.bin")))
    assert left == Unproved("a process ended while it had a.bin open for writing")
    smaller = judge(moment, Evidence(followed=True, smaller=("a.bin", "b.bin")))
    assert smaller == Unproved("a.bin is smaller than in the whole one before, or missing")
    alone = judge(moment, Evidence(followed=True, smaller=("",)))
    assert alone == Unproved("it is smaller than in the whole one before, or missing")
    not_followed = judge(moment, Evidence(smaller=("a.bin",)))
    assert not_followed == Unproved("nothing shows that the program had written all of it")
    opened = judge(moment, Evidence(announced=True, open_for_writing=("a.bin", "b.bin")))
    assert opened == Unproved("a.bin is still open for writing")


@pytest.mark.parametrize("doubtful", [False, True])
def test_what_is_broken_is_called_so_with_the_reason_of_its_format(doubtful: bool) -> None:
    found = Evidence(format=broken("no end", is_doubtful=doubtful), renamed=True)
    assert judge(Moment.CUT_OFF, found) == Unproved("no end", broken=True)
    assert isinstance(judge(Moment.EXITED, replace(found, announced=True)), Proof) == doubtful


def test_what_is_whole_by_its_format_is_not_doubted() -> None:
    assert judge(Moment.RUNNING, Evidence(format=WHOLE)) == Proof("format")
    assert not broken("x").is_doubtful


def test_the_remedy_is_a_line_that_the_program_can_append_as_it_stands() -> None:
    assert '{"checkpoint": "step-5"}' in remedy("step-5")
