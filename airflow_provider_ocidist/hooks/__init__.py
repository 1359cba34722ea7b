"""The connection of a task to a service, and code that all our tasks share."""

from airflow_provider_ocidist.hooks.oci import OciHook

__all__ = ["OciHook"]
