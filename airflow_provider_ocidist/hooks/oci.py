"""OciHook: an Airflow connection of type `oci` becomes a connected backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backports import cached_property
from airflow_provider_ocidist.errors import BackendError, Cause, OcidistError
from airflow_provider_ocidist.provider_info import DEFAULT_CONN_ID

# DAG files import this module through the operators: heavy imports are made on first use.
if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.oci_client.credentials import OciAccess
    from airflow_provider_ocidist.storage.stores.base import Store


DEFAULT_CLUSTER = "kubernetes_default"
"""Connection id that Airflow's own hook uses for the cluster of this machine, also if it does not exist."""


class OciHook(BaseHook):
    """Turn a connection into a backend of any kind, or into credentials for storage.

    :param conn_id: an Airflow connection of a type that the backend reads
    """

    conn_name_attr = "conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "oci"
    hook_name = "Oracle Cloud Infrastructure"

    def __init__(
        self,
        conn_id: str = default_conn_name,
        *,
        kind: str | None = None,
        gangs_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        """`kind`: of the backend; one that needs no connection works without the default one.

        `gangs_conn_id`: connection at whose service gangs are created and watched, where `conn_id` is for storage
        alone: of a job's candidate.
        """
        super().__init__(**kwargs)
        self.conn_id = conn_id
        self.gangs_conn_id = gangs_conn_id
        self._kind = kind
        self._is_undefined = False
        """Whether nobody has defined the connection, as far as its fields were read."""

    @cached_property
    def fields(self) -> Mapping[str, Any]:
        """The connection's fields, by the names that backends and storage use.

        Raises BackendError for a secret under a name that Airflow would show, and where a candidate's connection cannot
        be had (now); LookupError as `require_type`.
        """
        from airflow_provider_ocidist.backends.fields import fields_beside

        if self.gangs_conn_id is None:
            return self._own_fields
        other = OciHook(self.gangs_conn_id, kind=self._kind)
        other.require_type()
        return fields_beside(self._own_fields, other.fields, self.gangs_conn_id)

    @cached_property
    def _own_fields(self) -> Mapping[str, Any]:
        return self.fields_below(())

    def fields_below(self, above: tuple[str, ...]) -> Mapping[str, Any]:
        """Return the fields of `conn_id` alone; `above`: connections whose storage it is, the first one first."""
        from airflow.sdk.log import mask_secret

        from airflow_provider_ocidist.backends.connection_fields import fields_of, secrets_of

        given = self._connection()
        self._is_undefined = given is None
        if given is None:
            return {}
        self._refuse_foreign_type(given.conn_type)
        extra = given.extra_dejson
        refuse_shown_secrets(self.conn_id, extra)
        fields = fields_of(given.conn_type, given.host, given.login, given.password, extra)
        # Airflow's masker gets the text of the whole extra, but not the values in it.
        for secret in secrets_of(fields):
            mask_secret(secret)
        storage = fields.get("storage_conn_id")
        if not storage:
            return fields
        above = (*above, self.conn_id)
        if storage in above:
            raise BackendError(
                f"storage_conn_id of the connection {self.conn_id!r} is {storage}, which leads back to itself",
                cause=Cause.CONFIG,
            )
        # The cluster's connection determines where gangs run, the other one gives the credentials for storage.
        return {**OciHook(storage).fields_below(above), **fields}

    def _refuse_foreign_type(self, conn_type: str | None) -> None:
        """Raise BackendError for a connection to another service, of which no field would be read.

        The credentials of the worker's own config file would take their place. A type that says nothing is taken.
        """
        from airflow_provider_ocidist.backends.connection_fields import ANY_TYPE

        known = _backend_class(self.kind).conn_types
        if conn_type in ANY_TYPE or conn_type in known:
            return
        # Imported only now: a connection of another kind of backend may still be right for storage.
        every = {each for kind in kinds.names("backends") for each in _backend_class(kind).conn_types}
        if conn_type not in every:
            raise BackendError(
                f"connection {self.conn_id!r} is of type {conn_type!r}, of which nothing is read: name one of type "
                + " or ".join(map(repr, known)),
                cause=Cause.CONFIG,
            )

    def at(self, kind: str, gangs_conn_id: str) -> OciHook:
        """Return the same connection for gangs that are at another one."""
        return type(self)(self.conn_id, kind=kind, gangs_conn_id=gangs_conn_id)

    @property
    def kind(self) -> str:
        """The kind of its backends."""
        return self._kind or kinds.DEFAULT_BACKEND

    def _connection(self) -> Any:
        """Return the connection; None where the default one is missing, and nothing needs it."""
        from airflow.providers.common.compat.sdk import AirflowNotFoundException

        try:
            return self.get_connection(self.conn_id)
        except AirflowNotFoundException:
            if (
                self.conn_id not in (self.default_conn_name, DEFAULT_CLUSTER)
                or self._kind is None
                or _backend_class(self._kind).needs_connection
            ):
                raise
            return None

    def require_type(self) -> None:
        """Raise LookupError where the kind of backend cannot use its type, BackendError where it is not defined.

        That error may pass: for Airflow 3.3 a connection is not defined either while its secrets backend has an outage.
        """
        from airflow.providers.common.compat.sdk import AirflowNotFoundException

        try:
            given = self.get_connection(self.conn_id)
        except AirflowNotFoundException:
            raise BackendError(
                f"Airflow has no connection {self.conn_id!r}: define it, or correct the name",
                retryable=True,
                cause=Cause.CONFIG,
            ) from None
        kind = self._kind or kinds.DEFAULT_BACKEND
        known = _backend_class(kind).conn_types
        if given.conn_type not in known:
            raise LookupError(
                f"connection {self.conn_id!r} is of type {given.conn_type!r}, and backend {kind} needs one of type "
                + " or ".join(map(repr, known))
            )

    @cached_property
    def access(self) -> OciAccess:
        """Credentials and region, for storage."""
        from airflow_provider_ocidist.oci_client.credentials import access_of

        return access_of(self._own_fields)

    @cached_property
    def service_access(self) -> OciAccess:
        """Credentials and region of the service at which gangs are."""
        from airflow_provider_ocidist.oci_client.credentials import access_of

        return access_of(self.fields)

    def backend(self, kind: str | None = None) -> Backend:
        """Return a backend of a kind; no request is sent yet. Raises LookupError for a kind that does not exist.

        It reaches gangs of the same task at other connections, too.
        """
        from airflow_provider_ocidist.backends.connections import Connections

        self._kind = kind or self._kind or kinds.DEFAULT_BACKEND
        backend = _backend_class(self._kind).connect(self.fields)
        # The default of commands, whatever this class has for its own.
        named = None if self.conn_id == DEFAULT_CONN_ID or self._is_undefined else self.conn_id
        backend.connections = Connections(backend, self._backend_at, named)
        return backend

    def _backend_at(self, conn_id: str | None) -> Backend:
        """Return the backend of another connection beside this one; None: of this one alone."""
        hook = OciHook(self.conn_id, kind=self._kind, gangs_conn_id=conn_id)
        return _backend_class(hook.kind).connect(hook.fields)

    def uri(self, place: str) -> str:
        """Return a place as a URI: a relative path is below the connection's `work_dir`. A `/` at its end stays.

        Raises StorageError when the connection has none.
        """
        from airflow_provider_ocidist.errors import StorageError
        from airflow_provider_ocidist.storage.locations import join

        if "://" in place or place.startswith("/"):
            return place
        if not self._own_fields.get("work_dir"):
            raise StorageError(
                f"{place!r} is relative, and the connection {self.conn_id!r} has no work_dir: name a whole URI"
            )
        return join(self._own_fields["work_dir"], place) + ("/" if place.endswith("/") else "")

    def store(self, place: str) -> Store:
        """Return the folder at a URI, or in `work_dir`, whose files can be read and written. Raises StorageError."""
        from airflow_provider_ocidist.storage.stores.opening import open_store

        uri = self.uri(place)
        return open_store(uri, self.access if uri.startswith("oci://") else None)

    def drill_recovery(self, result: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return how a training went on after the fault of its drill, as its nodes have recorded it by their clocks.

        `result`: what its task has returned. The values are `at_step`, `back_after_s` and `lost_steps`, None where they
        are not known. Return None where no fault happened. Raises StorageError.
        """
        from airflow_provider_ocidist.gangs.drill_measures import recorded_recovery

        found = recorded_recovery(result["run_dir"], len(result["nodes"]), self.store)
        if found is None:
            return None
        return {
            "at_step": found.injected.step,
            "back_after_s": None if found.seconds is None else round(found.seconds, 1),
            "lost_steps": found.lost_steps,
        }

    def get_conn(self) -> OciAccess:
        """Return `access`, under the name by which Airflow's hooks return what they connect with."""
        return self.access

    def test_connection(self) -> tuple[bool, str]:
        """Ask Object Storage for the tenancy's namespace: the cheapest request that needs valid credentials."""
        from airflow_provider_ocidist.backends.connection_fields import unknown_fields
        from airflow_provider_ocidist.oci_client.clients import namespace

        try:
            found = f"connected: Object Storage namespace {namespace(self.access)}"
        except OcidistError as error:
            return False, str(error)
        if unknown := unknown_fields(self.get_connection(self.conn_id).extra_dejson, self.conn_type):
            return False, f"{found}; but a connection has no field {', '.join(unknown)}"
        return True, found


def _backend_class(kind: str) -> type[Backend]:
    backend: type[Backend] = kinds.load("backends", kind).BACKEND
    return backend


def refuse_shown_secrets(conn_id: str, extra: Mapping[str, Any]) -> None:
    """Raise BackendError when a secret has a name that Airflow does not hide: its API would show it to readers."""
    from airflow.providers.common.compat.sdk import redact

    from airflow_provider_ocidist.errors import BackendError, Cause
    from airflow_provider_ocidist.oci_client.credentials import SECRETS

    for ours, oci_name in SECRETS.items():
        if extra.get(oci_name) and redact("shown", oci_name) == "shown":
            raise BackendError(
                f"connection {conn_id!r}: Airflow's API and UI show a field named {oci_name} as it is; name it {ours}, "
                f"or add {oci_name} to the setting [core] sensitive_var_conn_names",
                cause=Cause.CONFIG,
            )
