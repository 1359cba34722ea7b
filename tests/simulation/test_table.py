"""What trials print becomes the table of the page."""

from __future__ import annotations

from tests.simulation import table
from tests.simulation.mutants import MUTANTS

FIRST, SECOND = (mutant.name for mutant in MUTANTS[:2])


def test_the_last_row_of_each_mutant_is_in_the_table_and_the_rest_of_the_page_stays():
    printed = "\n".join(
        [
            *table.HEAD,
            f"| {SECOND} | 1b | any | 2 | wholeness (seed 1.1) |",
            f"| {FIRST} | 1a | any | NOT FOUND in 9 | |",
            f"1.1 violates wholeness without {FIRST!r} too; going on",
            f"| {FIRST} | 1a | any | 22 | wholeness (seed 1.21) |",
            "2 mutants, 33 schedules, 9 s",
        ]
    )
    rows = table.rows_of(printed)
    assert [row.split(" | ")[0] for row in rows] == [f"| {FIRST}", f"| {SECOND}"]
    assert "22" in rows[0]
    page = "before\n\n" + "\n".join([*table.HEAD, "| gone | 1 | any | 1 | |"]) + "\n\nafter\n"
    made = table.with_rows(page, rows)
    assert made == "before\n\n" + "\n".join([*table.HEAD, *rows]) + "\n\nafter\n"
    assert table.with_rows(made, rows) == made


def test_the_page_names_no_defect_that_is_not_put_back():
    page = table.PAGE.read_text()
    before, _, rest = page.partition("\n".join(table.HEAD))
    named = [row.split(" | ")[0].removeprefix("| ") for row in rest.partition("\n\n")[0].strip().splitlines()]
    assert before
    assert set(named) <= {mutant.name for mutant in MUTANTS}
