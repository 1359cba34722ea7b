"""Triggers: the same waits in the triggerer."""

from airflow_provider_ocidist.triggers.storage import NewDataTrigger
from airflow_provider_ocidist.triggers.training import DistributedTrainingTrigger

__all__ = ["DistributedTrainingTrigger", "NewDataTrigger"]
