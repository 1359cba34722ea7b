"""Nodes as pods of a TrainJob, `trainer.kubeflow.org/v1alpha1`: Kubeflow Trainer, version 2."""

from airflow_provider_ocidist.backends.trainjob.backend import TrainJob
from airflow_provider_ocidist.backends.trainjob.options import RULES, TrainJobOptions

__all__ = ["BACKEND", "OPTIONS", "RULES", "TrainJob", "TrainJobOptions"]

OPTIONS = TrainJobOptions
BACKEND = TrainJob
