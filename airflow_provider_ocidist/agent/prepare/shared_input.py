"""SharedInput: one input, which this node reads together with the others where that saves something."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_ocidist.agent.prepare import disk
from airflow_provider_ocidist.agent.share.turns import WORTH_SHARING
from airflow_provider_ocidist.errors import AgentError, Cause, StorageError
from airflow_provider_ocidist.model.amounts import names_text
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.locations import shown, shown_in

if TYPE_CHECKING:
    from airflow_provider_ocidist.agent.share.exchange import Exchange
    from airflow_provider_ocidist.agent.share.shared_store import SharedStore
    from airflow_provider_ocidist.storage.copying.destination import Landing
    from airflow_provider_ocidist.storage.copying.selection import Selection
    from airflow_provider_ocidist.storage.transfer import CopyReport, TransferProgress

logger = logging.getLogger(__name__)


class SharedInput:
    """A source and its target on this node."""

    def __init__(
        self,
        source: str,
        target: str,
        access: OciAccess,
        cancel: threading.Event,
        exchange: Exchange | None,
        *,
        number: int,
    ) -> None:
        """`exchange` None: this node reads alone; `number`: of the input, the same on all nodes."""
        self.source = source
        self.target = target
        self.access = access
        self.cancel = cancel
        self.exchange = exchange
        self.number = number
        self.borrowed = 0
        """Bytes that came from other nodes."""

    def copy(self, on_progress: Callable[[TransferProgress], None]) -> CopyReport:
        """Copy it. What other nodes have sent proves wrong at the end: then all of it is read from the store.

        Raises AgentError, before anything is copied, for a web page with a link that leads nowhere.
        """
        from airflow_provider_ocidist.storage.copying.destination import landing
        from airflow_provider_ocidist.storage.copying.selection import find
        from airflow_provider_ocidist.storage.stores.opening import Stores

        stores = Stores(self.access)
        found = find(self.source, stores)
        self._require_no_dead_link(found)
        landed = landing(self.target, found, stores)
        shared = self._shared(found, landed)
        if shared is None:
            return self._copied(found, landed, on_progress)
        try:
            return self._copied(replace(found, store=shared), landed, on_progress)
        except StorageError as error:
            if error.retryable or disk.is_full(error) or self.cancel.is_set() or not shared.borrowed_bytes:
                raise
            logger.warning(
                "the input %s: %s; reading it again, from the store alone",
                shown(self.source),
                shown_in(str(error)),
            )
        finally:
            self.borrowed += shared.borrowed_bytes
        self.exchange, self.borrowed = None, 0
        return self._copied(found, landed, on_progress)

    def _require_no_dead_link(self, found: Selection) -> None:
        """Raise AgentError, before anything is copied, where a web page links to what is not there.

        Nodes may have got different answers, and would train on different data.
        """
        if found.store.skipped and self.source.startswith(("http://", "https://")):
            raise AgentError(
                f"the input {shown(self.source)} links to {names_text(found.store.skipped)}, where nothing is",
                cause=Cause.DATA,
            )

    def _shared(self, found: Selection, landed: Landing) -> SharedStore | None:
        """Return the source as the nodes share it; None where it is not worth it."""
        exchange, folder = self.exchange, landed.store.folder
        size = sum(entry.size or 0 for entry in found.entries)
        if (
            not exchange
            or not exchange.others
            or folder is None
            or found.store.folder
            or size < WORTH_SHARING
        ):
            return None
        from airflow_provider_ocidist.agent.share.shared_store import SharedStore

        exchange.begin(self.cancel)
        return SharedStore(
            found.store,
            exchange,
            lambda name: folder / (landed.rename or name),
            self.cancel,
            number=self.number,
        )

    def _copied(
        self, found: Selection, landed: Landing, on_progress: Callable[[TransferProgress], None]
    ) -> CopyReport:
        from airflow_provider_ocidist.storage.copying.budget import CopyBudget
        from airflow_provider_ocidist.storage.transfer import PART_SIZE, THREADS, CopyRules, copy_selection

        return copy_selection(
            found,
            landed,
            CopyRules(),
            budget=CopyBudget(THREADS, PART_SIZE),
            on_progress=on_progress,
            cancel=self.cancel,
        )
