"""The parts of a job, where DAG files import them from."""

from airflow_provider_ocidist.model.field_limits import AtLeast, Duration
from airflow_provider_ocidist.model.job import (
    BackendOptions,
    Best,
    Checkpoints,
    Container,
    Dependencies,
    Input,
    LauncherOptions,
    Limits,
    Mount,
    Output,
    Program,
    Restarts,
    TrainingJob,
)

__all__ = [
    "AtLeast",
    "BackendOptions",
    "Best",
    "Checkpoints",
    "Container",
    "Dependencies",
    "Duration",
    "Input",
    "LauncherOptions",
    "Limits",
    "Mount",
    "Output",
    "Program",
    "Restarts",
    "TrainingJob",
]
