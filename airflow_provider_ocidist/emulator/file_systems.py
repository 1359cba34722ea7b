"""File Storage, as far as jobs mount it: the exports that can be found by address and path."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.installation import derived_ocid
from airflow_provider_ocidist.emulator.resource_search import FoundResource
from airflow_provider_ocidist.emulator.wire import now

ALWAYS = "10.0.0.1:/export"
"""File system of the documents' examples."""


class FileSystems:
    """The exports that `--file-system ADDRESS:PATH` names. `storage_mounts` makes their folders."""

    def __init__(self, context: Context) -> None:
        self._ids = context.ids
        named = dict.fromkeys((ALWAYS, *context.options.file_systems))
        self._exports = [tuple(each.split(":", 1)) for each in named]
        self._time_created = now()

    def addresses(self) -> dict[str, str]:
        """Return the addresses of the mount targets, by the OCIDs of those addresses."""
        return {self._ocid("privateip", address): address for address, _ in self._exports}

    def resources(self) -> Iterator[FoundResource]:
        """Yield what Resource Search finds of them: addresses, mount targets, exports."""
        for ocid, address in self.addresses().items():
            yield self._resource("PrivateIp", ocid, address)
            mount_target = self._ocid("mounttarget", address)
            yield self._resource("MountTarget", mount_target, f"mount-target-{address}", ocid)
        for address, path in self._exports:
            yield self._resource("Export", self._ocid("export", address, path), path)

    def _ocid(self, kind: str, *names: str) -> str:
        return derived_ocid(kind, self._ids.tenancy_id, *names)

    def _resource(self, kind: str, ocid: str, name: str, *mentions: str) -> FoundResource:
        return FoundResource(
            kind=kind,
            id=ocid,
            compartment_id=self._ids.compartment_id,
            name=name,
            time_created=self._time_created,
            mentions=mentions,
        )
