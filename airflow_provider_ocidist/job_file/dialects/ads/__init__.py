"""Oracle ADS: the two kinds of YAML that `ads opctl run` accepts for distributed PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.job_file.dialects.ads import distributed, job
from airflow_provider_ocidist.job_file.dialects.base import Dialect, Translation

KINDS = {"distributed": distributed.translate, "job": job.translate}


class Ads(Dialect):
    """Recognised by `kind` and `spec`, which our own form does not have."""

    def matches(self, mapping: Mapping[str, Any]) -> bool:
        kind = mapping.get("kind")
        return isinstance(kind, str) and kind in KINDS

    def translate(self, mapping: Mapping[str, Any], home: str | None = None) -> Translation:
        del home
        return KINDS[mapping["kind"]](mapping)


DIALECT = Ads()
