"""Operators for DAG files."""

from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.operators.cleanup import EndTrainingOperator
from airflow_provider_ocidist.operators.training import DistributedTrainingOperator

if TYPE_CHECKING:
    from airflow_provider_ocidist.operators.retries import TrainingRetries

__all__ = ["DistributedTrainingOperator", "EndTrainingOperator", "TrainingRetries"]


def __getattr__(name: str) -> Any:
    # Before Airflow 3.3 there are no retry policies, and all else works.
    if name != "TrainingRetries":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from airflow_provider_ocidist.operators.retries import TrainingRetries

    return TrainingRetries
