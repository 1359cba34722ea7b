"""Workloads of NVIDIA Run:ai, through the REST of its control plane."""

from airflow_provider_ocidist.backends.runai.backend import Runai
from airflow_provider_ocidist.backends.runai.options import RunaiOptions
from airflow_provider_ocidist.backends.runai.rules import RULES

__all__ = ["BACKEND", "OPTIONS", "RULES", "Runai", "RunaiOptions"]

OPTIONS = RunaiOptions
BACKEND = Runai
