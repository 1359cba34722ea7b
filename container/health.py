"""The image's HEALTHCHECK: a node is healthy if its report in the run directory is fresh, or says that it is done."""

from __future__ import annotations

import os
import sys
import time

from airflow_provider_ocidist.agent.join.peer_reports import read_report
from airflow_provider_ocidist.agent.join.run_directory import run_directory
from airflow_provider_ocidist.agent.join.silence import LOST_AFTER
from airflow_provider_ocidist.agent.join.topology import own_rank
from airflow_provider_ocidist.errors import AgentError
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import NodeReport, Phase


def main() -> int:
    try:
        config = AgentConfig.from_env(os.environ)
        rank = own_rank(config, os.environ)
        with run_directory(config, os.environ) as store:
            return judge(read_report(store, rank), time.time())
    except AgentError as error:
        return say(str(error), healthy=False)


def judge(report: NodeReport | None, now: float) -> int:
    if report is None:
        return say("no report in the run directory", healthy=False)
    if report.phase is Phase.DONE:
        return say("done", healthy=True)
    silent = now - report.heartbeat_at
    return say(f"{report.phase}, last heartbeat {silent:.0f} s ago", healthy=silent < LOST_AFTER)


def say(what: str, *, healthy: bool) -> int:
    print(what)  # noqa: T201 - this is its log
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
