"""Nodes as pods of a PyTorchJob, `kubeflow.org/v1`: Kubeflow's training operator."""

from airflow_provider_ocidist.backends.pytorchjob.backend import PyTorchJob
from airflow_provider_ocidist.backends.pytorchjob.options import RULES, PyTorchJobOptions

__all__ = ["BACKEND", "OPTIONS", "RULES", "PyTorchJob", "PyTorchJobOptions"]

OPTIONS = PyTorchJobOptions
BACKEND = PyTorchJob
