"""Operators for DAG files."""

from airflow_provider_ocidist.operators.cleanup import EndTrainingOperator
from airflow_provider_ocidist.operators.retries import TrainingRetries
from airflow_provider_ocidist.operators.training import DistributedTrainingOperator

__all__ = ["DistributedTrainingOperator", "EndTrainingOperator", "TrainingRetries"]
