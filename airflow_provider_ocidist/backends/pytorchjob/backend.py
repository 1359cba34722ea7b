"""The backend of kind `pytorchjob`."""

from __future__ import annotations

from airflow_provider_ocidist.backends.kubernetes.replacing import ReplacingBackend
from airflow_provider_ocidist.backends.pytorchjob.operator import OPERATOR
from airflow_provider_ocidist.backends.pytorchjob.options import KIND


class PyTorchJob(ReplacingBackend):
    """Runs each gang as one PyTorchJob."""

    kind = KIND
    operator = OPERATOR
