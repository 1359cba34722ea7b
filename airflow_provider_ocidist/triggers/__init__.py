"""Triggers: waiting in the triggerer."""

from airflow_provider_ocidist.triggers.storage import CheckpointTrigger, NewDataTrigger
from airflow_provider_ocidist.triggers.training import DistributedTrainingTrigger, PauseTrigger

__all__ = ["CheckpointTrigger", "DistributedTrainingTrigger", "NewDataTrigger", "PauseTrigger"]
