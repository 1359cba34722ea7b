"""The parts of a job, where DAG files import them from."""

from airflow_provider_ocidist.model.job import (
    AtLeast,
    BackendOptions,
    Best,
    Checkpoints,
    Container,
    Dependencies,
    Duration,
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
