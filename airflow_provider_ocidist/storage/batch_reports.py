"""Reports of a batch: what became of each item, in short."""

from __future__ import annotations

from typing import Any

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import OcidistError, StorageError
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.copy_items import CopyItem
from airflow_provider_ocidist.storage.transfer import CopyReport

NAMES_SHOWN = 20
"""Most skipped names of one item that a report lists."""
ITEMS_SHOWN = 100
"""Most items that the report of all lists."""


@dataclass(frozen=True, kw_only=True)
class ItemReport:
    """The result of one item."""

    item: CopyItem
    report: CopyReport | None = None
    error: OcidistError | OSError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result in short: names are counted, and the first are listed."""
        places = {
            "item": self.item.number,
            "source": locations.shown(self.item.source),
            "target": locations.shown(self.item.target),
        }
        if self.report is None:
            return {**places, "error": error_text(self.error)}
        return {
            **places,
            "files": self.report.files,
            "bytes": self.report.bytes,
            "seconds": round(self.report.seconds, 3),
            "unchanged": len(self.report.unchanged),
            "resumed_bytes": self.report.resumed_bytes,
            "deleted": len(self.report.deleted),
            "unverified": len(self.report.unverified),
            "skipped": list(self.report.skipped[:NAMES_SHOWN]),
        }

    def __str__(self) -> str:
        if self.report is None:
            return f"item {self.item.number}: {self.item.shown}: failed: {error_text(self.error)}"
        report = self.report
        more = {
            f"{report.resumed_bytes} bytes of them from an earlier attempt": report.resumed_bytes,
            f"{len(report.unchanged)} files were there already": report.unchanged,
            f"{len(report.deleted)} files deleted that only the target had": report.deleted,
            f"{len(report.unverified)} files compared by size only": report.unverified,
            f"{len(report.skipped)} names skipped: {', '.join(report.skipped[:NAMES_SHOWN])}": report.skipped,
        }
        done = f"{report.files} files, {report.bytes} bytes in {report.seconds:.1f} s"
        parts = [done, *(text for text, there in more.items() if there)]
        return f"item {self.item.number}: {self.item.shown}: {'; '.join(parts)}"


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """The results of all items."""

    items: tuple[ItemReport, ...]
    seconds: float

    @property
    def error(self) -> StorageError | None:
        """One error that names every item that failed."""
        failed = [item for item in self.items if item.error is not None]
        if not failed:
            return None
        lines = "\n  ".join(map(str, failed))
        return StorageError(
            f"{len(failed)} of {len(self.items)} items failed, the others have arrived:\n  {lines}",
            retryable=all(isinstance(item.error, StorageError) and item.error.retryable for item in failed),
        )

    def to_json(self) -> dict[str, Any]:
        reports = [item.report for item in self.items if item.report is not None]
        return {
            "files": sum(report.files for report in reports),
            "bytes": sum(report.bytes for report in reports),
            "unchanged": sum(len(report.unchanged) for report in reports),
            "seconds": round(self.seconds, 3),
            "failed": len(self.items) - len(reports),
            "items": [item.to_json() for item in self.items[:ITEMS_SHOWN]],
            "items_left_out": max(len(self.items) - ITEMS_SHOWN, 0),
        }


def error_text(error: BaseException | None) -> str:
    """Return an error's message, without secrets in web addresses."""
    return locations.shown_in(str(error))
