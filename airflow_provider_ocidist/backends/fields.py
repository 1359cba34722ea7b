"""The fields that backends of every kind read of a connection; a kind that reads more derives a class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from airflow_provider_ocidist.errors import JobFileError, Problem
from airflow_provider_ocidist.model.job import BackendOptions, TrainingJob

MISSING = "is needed here: the job does not set it, and the connection has no default for it"
Fields = TypeVar("Fields", bound="ConnectionFields")
Options = TypeVar("Options", bound=BackendOptions)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionFields:
    """What a connection says for gangs, besides the credentials of storage."""

    work_dir: str | None = None
    """URI of the work directory."""
    require_training: bool | str | None = None
    """Default of jobs; text, `true` or `false`, where it comes from the form or from a URI."""
    prices: Mapping[str, float] | str | None = None
    """Prices of a node for an hour, by what the kind calls a machine; JSON where they come from the form or from a
    URI."""

    def requires_training(self, job: TrainingJob) -> bool:
        """Whether a run that shows no training fails: by its job, else by this default."""
        return truth(self.require_training if job.require_training is None else job.require_training)

    def filled(self, job: TrainingJob) -> TrainingJob:
        """Return a job with the connection's values for the settings that it leaves out."""
        work_dir, require_training = job.work_dir or self.work_dir, self.requires_training(job)
        return replace(job, work_dir=work_dir, require_training=require_training)


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """What the fields of a connection hold where it stands beside that of a task, for a candidate (`fields_beside`)."""

    conn_id: str
    storage: Mapping[str, Any] = field(repr=False)
    """Fields of the task's connection, by whose credentials the work directory is read and written."""


FIELD_BESIDE = "beside"


def fields_beside(own: Mapping[str, Any], other: Mapping[str, Any], conn_id: str) -> dict[str, Any]:
    """Return the fields with which gangs of a task are created at another connection than its `own`.

    What the gang asks its service for is the other's; what belongs to the task, or to its buckets, stays its own.
    """
    kept = {name: own.get(name) for name in ("work_dir", "require_training")}
    packs = own.get("conda_region") or own.get("region")
    return {**other, **kept, "conda_region": packs, FIELD_BESIDE: Beside(conn_id=conn_id, storage=own)}


def beside_in(fields: Mapping[str, Any]) -> Beside | None:
    """Return what `fields_beside` has added; None for a task's own connection."""
    found = fields.get(FIELD_BESIDE)
    # Not a value that somebody has written under this name into a connection.
    return found if isinstance(found, Beside) else None


def storage_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of the connection that opens the work directory."""
    beside = beside_in(fields)
    return fields if beside is None else beside.storage


def options_of(job: TrainingJob, cls: type[Options], kind: str) -> Options:
    """Return a job's options for a kind of backend. Raises JobFileError where they are for another."""
    if not isinstance(job.backend, cls) or job.backend.kind != kind:
        raise JobFileError([Problem("backend", f"is for {job.backend.kind!r}, not for {kind!r}")])
    return job.backend


def missing(values: Mapping[str, object]) -> list[Problem]:
    """Return the problems of what neither job nor connection says; `values`: what they say, by path."""
    return [Problem(path, MISSING) for path, value in values.items() if not value]


def read_fields(cls: type[Fields], fields: Mapping[str, Any]) -> Fields:
    """Return what a class has of the fields of a connection; what is empty there has its default."""
    return cls(
        **{name: fields[name] for name in cls.__dataclass_fields__ if fields.get(name) not in (None, "")}
    )


def truth(value: bool | str | None) -> bool:
    """Return what a field says that is text where it comes from a form or a URI."""
    return str(value).lower() in ("true", "1", "yes")
