"""Nodes as processes of this machine, without any service: for debugging, and for a single GPU server."""

from airflow_provider_ocidist.backends.local.backend import Local
from airflow_provider_ocidist.backends.local.plans import RULES, LocalOptions

__all__ = ["BACKEND", "OPTIONS", "RULES", "Local", "LocalOptions"]

OPTIONS = LocalOptions
BACKEND = Local
