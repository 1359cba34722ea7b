"""`kill -9` of worker, triggerer and scheduler, at seeded moments, on SQLite and on PostgreSQL.

`CHAOS_SEED` and `CHAOS_KILLS` (for each database) make another or a longer campaign.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.emulator_process import EmulatorProcess
from scripts.local_airflow import LocalAirflow
from scripts.postgres import Postgres, why_not
from tests.chaos.books import Books
from tests.chaos.campaign import SETTINGS, Campaign
from tests.chaos.kills import planned

KILLS = int(os.environ.get("CHAOS_KILLS", "12"))
SEED = int(os.environ.get("CHAOS_SEED") or random.randrange(10_000))


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[Postgres | None]:
    if request.param == "sqlite":
        yield None
        return
    if reason := why_not():
        pytest.skip(reason)
    with Postgres() as database:
        yield database


@pytest.mark.timeout(600 + 60 * KILLS)
def test_whatever_is_killed_each_task_trains_once_and_leaves_nothing_behind(
    database: Postgres | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    say(f"\nCHAOS_SEED={SEED} CHAOS_KILLS={KILLS}")
    dags = Path(__file__).parent / "dags"
    with EmulatorProcess(tmp_path / "emulator") as access:
        env, url = {**access.airflow_env(), **SETTINGS}, database.url if database else None
        home = tmp_path / "airflow"
        with LocalAirflow(home, dags=dags, env=env, database_url=url, start_timeout=600) as airflow:
            books = Books(access)
            books.slow_down()
            airflow.api.wait_for_dag("chaos_blocking_without_store", timeout=300)
            campaign = Campaign(airflow, books, tmp_path / "marks", say)
            campaign.strike_all(planned(SEED, KILLS))
            assert books.untagged() == []
    strikes = [strike for outcome in campaign.outcomes for strike in outcome.strikes]
    hit = Counter(f"{strike.kill.who} at {strike.phase}" for strike in strikes)
    say(f"{len(strikes)} kills: {dict(sorted(hit.items()))}")
    bad = [str(outcome) for outcome in campaign.outcomes if outcome.problems]
    assert not bad, "\n".join([f"CHAOS_SEED={SEED}", *bad])
