"""Look up the open values of a plan at the service, right before the job is created.

Oracle ADS looks them up in the same way: `ads/common/dsc_file_system.py`, `ads/common/oci_logging.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_ocidist.backends.oci_data_science.calls import pages
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.oci_client.errors import oci_errors
from airflow_provider_ocidist.work_dir.parallel import in_parallel

OPEN = re.compile(r"<(?P<what>mount target at|export|log group of) (?P<of>.+)>")
"""Pattern of a value to look up, as `mounts` and `plans` write it."""


def completed(body: Mapping[str, Any], access: OciAccess) -> dict[str, Any]:
    """Return the body of CreateJob with every open value filled in. Raises BackendError when one is not found."""
    finders: Mapping[str, Callable[[str], str]] = {
        "mount target at": lambda address: _mount_target(address, access),
        "export": lambda path: _only("Export", path, _search(path, access)),
        "log group of": lambda log_id: _log_group(log_id, str(body["compartmentId"]), access),
    }

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            found = OPEN.fullmatch(value)
            return finders[found["what"]](found["of"]) if found else value
        if isinstance(value, Mapping):
            return {key: filled(item) for key, item in value.items()}
        return [filled(item) for item in value] if isinstance(value, list) else value

    return dict(filled(body))


def _mount_target(address: str, access: OciAccess) -> str:
    """Return the mount target that has the newest resource of this address."""
    holders = sorted(_search(address, access), key=lambda item: str(item.time_created))
    if not holders:
        raise _not_found(f"no resource has the address {address}")
    return _only("MountTarget", address, _search(holders[-1].identifier, access))


def _only(kind: str, text: str, found: list[Any]) -> str:
    ids = [str(item.identifier) for item in found if item.resource_type == kind]
    if len(ids) != 1:
        raise _not_found(f"{len(ids) or 'no'} resources of type {kind} are found for {text}")
    return ids[0]


def _not_found(what: str) -> BackendError:
    return BackendError(
        f"looking for what is to be mounted: {what}; write <mount target's OCID>:<export's OCID> as its source",
        cause=Cause.CONFIG,
    )


def _search(text: str, access: OciAccess) -> list[Any]:
    details = {"type": "FreeText", "text": text, "matchingContextType": "NONE"}
    with oci_errors(f"looking for {text}"):
        found: list[Any] = list(clients.client(access, "search").search_resources(details).data.items)
        return found


def _log_group(log_id: str, compartment_id: str, access: OciAccess) -> str:
    """Return which of the compartment's log groups holds a log."""
    client = clients.client(access, "logging")
    with oci_errors("listing the log groups"):
        groups = [str(group.id) for group in pages(client.list_log_groups, compartment_id)]

    def holds(group: str) -> bool:
        with oci_errors("listing the logs of a group"):
            return any(log.id == log_id for log in pages(client.list_logs, group))

    found = [group for group, here in zip(groups, in_parallel(holds, groups), strict=True) if here]
    if not found:
        raise BackendError(
            f"{log_id} is in no log group of {compartment_id}: name the group, logGroupId or backend.log_group_id",
            cause=Cause.CONFIG,
        )
    return found[0]
