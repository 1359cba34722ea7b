"""How our operators hand a retry policy to Airflow, which may not know it, and detect a failed trigger."""

from __future__ import annotations

from typing import Any

TRIGGER_FAILED = "__fail__"
"""Method by which Airflow resumes a task whose trigger failed or timed out (`sdk.bases.operator`)."""


def _retries() -> Any:
    try:
        from airflow_provider_ocidist.operators.retries import TrainingRetries
    except ModuleNotFoundError as error:
        if str(error.name).startswith("airflow."):
            return None
        raise
    return TrainingRetries()


RETRIES = _retries()
"""Default retry policy; None before Airflow 3.3. In signatures, where Airflow finds it for mapped tasks too."""


def as_argument(retry_policy: Any) -> dict[str, Any]:
    """Return the argument for Airflow, which does not know it before 3.3."""
    return {} if RETRIES is None and retry_policy is None else {"retry_policy": retry_policy}
