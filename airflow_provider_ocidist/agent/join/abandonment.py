"""Abandonment: whether a run still needs a node that does not train: one that idles, or waits for its turn."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from airflow_provider_ocidist.agent.join.lease import LeaseWatch
from airflow_provider_ocidist.agent.join.run_directory import run_directory
from airflow_provider_ocidist.agent.join.stop_requests import load_stop_request, stop_in_words
from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.work_dir import LEASE_FILE

logger = logging.getLogger("ocidist")


class Abandonment:
    """Looks whether the run is to end, or nobody has waited for it for `limits.lease`, by this node's own clock."""

    def __init__(self, config: AgentConfig, environ: Mapping[str, str]) -> None:
        self._config = config
        self._environ = environ
        self._expired: str | None = None
        lease = config.limits.lease
        self._lease = LeaseWatch(lease, self._renewal, declare=self._note) if lease else None

    def lease_expired(self) -> str | None:
        """Return that nobody waits for the run any more, in words; None: somebody does, or that cannot be known now."""
        if self._lease is not None:
            self._lease.look()
        return self._expired

    def why(self) -> str | None:
        """Return why the run does not need this node any more, in words; None: it does, or that cannot be known now."""
        return self.lease_expired() or self._ended()

    def _ended(self) -> str | None:
        try:
            with run_directory(self._config, self._environ) as store:
                request = load_stop_request(store)
        except (OcidistError, TypeError) as error:
            logger.debug("stop request not readable: %s", error)
            return None
        return stop_in_words(request) if request is not None and request.ends_run else None

    def _renewal(self) -> bytes | None:
        with run_directory(self._config, self._environ) as store:
            try:
                return store.read(LEASE_FILE)
            except FileNotFoundError:
                return None

    def _note(self, why: str) -> None:
        self._expired = why
