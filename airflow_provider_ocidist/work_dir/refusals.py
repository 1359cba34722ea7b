"""Refusals: which machines there were none of lately, in the work directory, for all tasks that share it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.refusal import KnownRefusals, Refusal, refusal_file
from airflow_provider_ocidist.model.run import Plan
from airflow_provider_ocidist.model.work_dir import REFUSALS_FOLDER
from airflow_provider_ocidist.storage import conditional_writes
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.work_dir.attempt_index import work_dir_of
from airflow_provider_ocidist.work_dir.parallel import in_parallel
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores

log = logging.getLogger(__name__)


class Refusals:
    """One small file for each kind of machine, with the refusals that hold. A hint: its loss costs time."""

    def __init__(self, run_dirs: RunDirStores) -> None:
        self._run_dirs = run_dirs

    def note(self, plan: Plan, refusal: Refusal, now: float) -> None:
        """Record that what a plan asks for is not there; `now`: the time at the service. Raises nothing."""
        if not plan.machine:
            return
        try:
            store, prefix = self._folder(plan)
            name = prefix + refusal_file(plan.backend, plan.machine)

            def content(exists: bool) -> bytes | None:
                before = self._known(plan, store, name) if exists else KnownRefusals()
                remembered = before.after(refusal, now)
                return None if remembered == before else json.dumps(codec.encode(remembered)).encode()

            # Several tasks may meet refusals at once: none overwrites another's.
            conditional_writes.change(store, name, content)
        except (OcidistError, OSError) as error:
            log.warning("%s: the refusal could not be recorded for other tasks: %s", plan.key.name, error)

    def of(self, plans: Sequence[Plan]) -> list[Refusal | None]:
        """Return the latest refusal of what each plan asks for, of whatever age; one request for each."""
        return in_parallel(lambda plan: self._read(plan).of(plan.nodes), list(plans))

    def _read(self, plan: Plan) -> KnownRefusals:
        if not plan.machine:
            return KnownRefusals()
        try:
            store, prefix = self._folder(plan)
            return self._known(plan, store, prefix + refusal_file(plan.backend, plan.machine))
        except (OcidistError, OSError) as error:
            log.info("%s: the latest refusals cannot be read: %s", plan.key.name, error)
            return KnownRefusals()

    @staticmethod
    def _known(plan: Plan, store: Store, name: str) -> KnownRefusals:
        """Return what a file holds; nothing where it is not one of ours. Raises StorageError."""
        try:
            return codec.read(KnownRefusals, store.read(name))
        except FileNotFoundError:
            return KnownRefusals()
        except (ValueError, TypeError, LookupError) as error:
            log.info("%s: the latest refusals cannot be read: %s", plan.key.name, error)
            return KnownRefusals()

    def _folder(self, plan: Plan) -> tuple[Store, str]:
        return self._run_dirs.below(work_dir_of(plan.run_dir), REFUSALS_FOLDER)
