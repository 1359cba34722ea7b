"""ObjectStorageService: the parts of the service, put together."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.object_storage.buckets import Buckets
from airflow_provider_ocidist.emulator.object_storage.catalog import BucketCatalog
from airflow_provider_ocidist.emulator.object_storage.copies import Copies
from airflow_provider_ocidist.emulator.object_storage.listing import ListRoutes
from airflow_provider_ocidist.emulator.object_storage.multipart import Multipart
from airflow_provider_ocidist.emulator.object_storage.objects import ObjectRoutes
from airflow_provider_ocidist.emulator.object_storage.preauthenticated import Preauthenticated
from airflow_provider_ocidist.emulator.object_storage.work_requests import StorageWorkRequests
from airflow_provider_ocidist.emulator.resource_search import FoundResource
from airflow_provider_ocidist.emulator.wire import Route


class ObjectStorageService:
    """Buckets, objects, and all that is done with them."""

    def __init__(self, context: Context, identity: Identity) -> None:
        namespace = context.ids.namespace
        self.catalog = BucketCatalog(context)
        self._multipart = Multipart(context.store, namespace, self.catalog)
        # First, because interrupted work continues as soon as there are copies.
        self.catalog.keep_only_files(self._multipart.files_in_use())
        self._lists = ListRoutes(self.catalog)
        self._objects = ObjectRoutes(self.catalog)
        self._requests = StorageWorkRequests(context)
        self._copies = Copies(namespace, self.catalog, self._requests)
        self._preauthenticated = Preauthenticated(
            context, self.catalog, self._objects, self._lists, self._multipart
        )
        in_use = (self._multipart.in_use, self._preauthenticated.in_use)
        self._buckets = Buckets(context, identity, self.catalog, in_use)

    def routes(self) -> list[Route]:
        # Most asked first: the first route that fits a path answers.
        parts = (
            self._objects,
            self._lists,
            self._multipart,
            self._copies,
            self._requests,
            self._preauthenticated,
            self._buckets,
        )
        return [route for part in parts for route in part.routes()]

    def resources(self) -> Iterator[FoundResource]:
        """Yield what Resource Search finds of this service."""
        for bucket in self.catalog.buckets():
            yield FoundResource(
                kind="Bucket",
                id=bucket.id,
                compartment_id=bucket.compartment_id,
                name=bucket.name,
                time_created=bucket.time_created,
                freeform_tags=bucket.details.get("freeformTags") or {},
                defined_tags=bucket.details.get("definedTags") or {},
            )

    def reset(self) -> None:
        for part in (self._requests, self._preauthenticated, self._multipart, self._buckets, self.catalog):
            part.reset()

    def close(self) -> None:
        self._requests.close()
