"""Job files: the only place that checks input; ours, and other people's YAML."""

from airflow_provider_ocidist.job_file.parsing import build, dump, load, parse

__all__ = ["build", "dump", "load", "parse"]
