"""A record that is written late: it adds what was created, and takes nothing back that others have recorded since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.model.attempts import Attempt, End
from airflow_provider_ocidist.model.run import Tries
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.attempt_index import AttemptIndex
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from tests.service_in_memory import LIVE, Model
from tests.training_jobs import a_job, a_key

KEY = a_key()
FIRST, SECOND = (Tries(try_number=number, max_tries=1) for number in (1, 2))


@pytest.mark.parametrize("has_ended", [True, False])
@pytest.mark.parametrize(
    "there", ["nothing", "begun", "begun by a later try", "more", "adopted by a later try"]
)
def test_what_was_created_is_added_to_the_record_of_its_own_try_and_to_no_other(
    tmp_path: Path, there: str, *, has_ended: bool
) -> None:
    index = AttemptIndex(RunDirStores(open_store), str(tmp_path / "work"))
    model = Model()
    plan = replace(model.plan(a_job(), KEY), run_dir=f"{tmp_path}/work/{KEY.name}", tries=FIRST)
    made = model.has(KEY, [LIVE] * 2, run_dir=plan.run_dir)
    created, begun = Attempt.of(plan, made), Attempt.of(plan)
    newer = replace(created, ref=replace(made, run_ids=("other", "nodes")))
    known = {
        "nothing": None,
        "begun": begun,
        "begun by a later try": replace(begun, tries=SECOND),
        "more": newer,
        "adopted by a later try": replace(created, tries=SECOND),
    }[there]
    end = End(succeeded=False) if has_ended else None
    if known is not None:
        index.write(known)
    if end is not None:
        index.end(KEY, created.place, end)
    index.complete(created)
    expected = created if there in ("nothing", "begun") else known
    assert expected is not None
    assert index.read(KEY) == [replace(expected, end=end)]
