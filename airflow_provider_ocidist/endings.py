"""Where DAG files of before look for EndTrainingOperator; it is in `operators` now."""

from airflow_provider_ocidist.operators.cleanup import EndTrainingOperator

__all__ = ["EndTrainingOperator"]
