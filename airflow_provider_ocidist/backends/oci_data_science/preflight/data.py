"""Checks of where data comes from and goes to."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_ocidist.backends.capabilities import Finding
from airflow_provider_ocidist.backends.oci_data_science.preflight.target import PreflightTarget
from airflow_provider_ocidist.backends.place_probe import writable
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import checkpoints as checkpoint_files
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.stores.opening import open_store

WRITE_POLICY = (
    "create the bucket, or: allow group <yours>, and the dynamic group of job runs, to manage objects in "
    "compartment <it> where target.bucket.name='<it>'"
)
READ_POLICY = (
    "correct the URI, or: allow group <yours>, and the dynamic group of job runs, to read objects in "
    "compartment <it>"
)


def work_dir(target: PreflightTarget) -> Iterator[Finding]:
    yield _writable("work_dir", str(target.job.work_dir), target.storage)


def checkpoints(target: PreflightTarget) -> Iterator[Finding]:
    kept = target.job.checkpoints
    if kept is not None and kept.uri is not None:
        yield _writable("checkpoints", kept.uri, target.storage)
    if kept is not None and kept.start_from:
        yield _whole(kept.start_from, target.storage)


def outputs(target: PreflightTarget) -> Iterator[Finding]:
    for output in target.job.outputs:
        # What is filled in on the nodes is unknown here.
        if "${" not in output.uri:
            yield _writable("output", output.uri, target.storage)


def inputs(target: PreflightTarget) -> Iterator[Finding]:
    for source in target.job.inputs:
        yield _readable(source.source, target.storage)


def _writable(subject: str, uri: str, access: OciAccess) -> Finding:
    return writable(subject, uri, lambda place: open_store(place, access), WRITE_POLICY)


def _whole(uri: str, access: OciAccess) -> Finding:
    try:
        checkpoint_files.verify(uri, access)
    except (StorageError, OSError) as error:
        return Finding.failed("checkpoints", str(error), f"correct checkpoints.start_from, or: {READ_POLICY}")
    return Finding.passed("checkpoints", f"{locations.shown(uri)} is whole")


def _readable(uri: str, access: OciAccess) -> Finding:
    place = locations.parse(uri)
    try:
        if place.is_folder:
            there = bool(open_store(place.uri, access).as_source().list())
        else:
            there = open_store(place.parent + place.query, access).exists(place.name)
    except (StorageError, OSError) as error:
        return Finding.failed("input", str(error), READ_POLICY)
    if not there:
        return Finding.failed("input", f"{locations.shown(place.uri)}: nothing is there", READ_POLICY)
    return Finding.passed("input", f"{locations.shown(place.uri)} is there")
