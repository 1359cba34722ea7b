"""Exceptions of Airflow that moved after 3.1, and that its compatibility module leaves out."""

from __future__ import annotations

try:
    from airflow.sdk.exceptions import (
        AirflowRescheduleException,
        TaskDeferralError,
        TaskDeferralTimeout,
    )
except ImportError:  # Airflow 3.1
    from airflow.exceptions import (
        AirflowRescheduleException,
        TaskDeferralError,
        TaskDeferralTimeout,
    )

__all__ = ["AirflowRescheduleException", "TaskDeferralError", "TaskDeferralTimeout"]
