"""What connects a task to a service, and what all tasks of ours share of Airflow."""

from airflow_provider_ocidist.hooks.oci import OciHook

__all__ = ["OciHook"]
