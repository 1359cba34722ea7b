"""Job files: the only place that checks input, in our own form and other formats."""

from airflow_provider_ocidist.job_file.parsing import build, dump, load, parse

__all__ = ["build", "dump", "load", "parse"]
