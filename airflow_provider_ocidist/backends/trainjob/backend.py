"""The backend of kind `trainjob`."""

from __future__ import annotations

from airflow_provider_ocidist.backends.kubernetes.replacing import ReplacingBackend
from airflow_provider_ocidist.backends.trainjob.operator import OPERATOR
from airflow_provider_ocidist.backends.trainjob.options import KIND


class TrainJob(ReplacingBackend):
    """Runs each gang as one TrainJob."""

    kind = KIND
    operator = OPERATOR
