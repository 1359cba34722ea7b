"""Where triggers that were deferred before an upgrade look for their class; it is in `triggers` now."""

from airflow_provider_ocidist.triggers.storage import CheckpointTrigger, NewDataTrigger

__all__ = ["CheckpointTrigger", "NewDataTrigger"]
