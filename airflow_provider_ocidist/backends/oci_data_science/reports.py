"""Reports: what the nodes of many gangs last said, read from their run directories."""

from __future__ import annotations

import logging

from airflow_provider_ocidist.agent.report import NODES_FOLDER, NodeReport
from airflow_provider_ocidist.storage.stores import Store

log = logging.getLogger(__name__)


class Reports:
    """Reads only what has changed since the last call."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, tuple[str | None, NodeReport | None]]] = {}

    def read(self, run_dir: str, store: Store) -> dict[int, NodeReport]:
        """Return the reports in a run directory, by rank."""
        known = self._known.setdefault(run_dir, {})
        for entry in store.list(f"{NODES_FOLDER}/"):
            etag, _ = known.get(entry.name, (None, None))
            if entry.etag is None or entry.etag != etag:
                text = store.read(entry.name)
                known[entry.name] = (entry.etag, _report_in(store.place_of(entry.name), text))
        return {report.rank: report for _, report in known.values() if report is not None}


def _report_in(place: str, text: bytes) -> NodeReport | None:
    try:
        return NodeReport.from_json(text)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        # Of another version, or no report at all: no reason to lose sight of the whole gang.
        log.warning("%s holds no report of a node: %s", place, error)
        return None
