"""Where DAG files of before look for TrainingRetries; it is in `operators` now."""

from airflow_provider_ocidist.operators.retries import TrainingRetries

__all__ = ["TrainingRetries"]
