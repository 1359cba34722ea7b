"""Requests to the API server of one connection, as plain JSON: models of a thousand pods would take seconds."""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from airflow_provider_ocidist.backends.fields import truth
from airflow_provider_ocidist.backends.kubernetes.errors import is_of_nobody, kubernetes_errors
from airflow_provider_ocidist.backends.kubernetes.options import ClusterFields
from airflow_provider_ocidist.backends.service_clock import ServiceClock
from airflow_provider_ocidist.errors import BackendError, Cause

PAGE = 500
"""Objects of one answer to a list; the API server's own clients ask for as many."""
CHANGES_WITHIN = 1
"""Seconds, the fewest that a server takes, for which it is asked to send changes: those of before come at once."""
CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 60.0
"""Seconds for a connection, and for each piece of an answer."""
URGENT_TIMEOUT = 2.5
"""Seconds for a connection and the answer to a cancel: a killed task has five in all."""
LOOK_TIMEOUT = 1.5
"""Seconds for the same of what a cancel asks first, and can do without."""
RETRIES = 3
"""Most repetitions of a request; a cancel has none."""
BUSY = 429
"""Status of a request that the server has not begun, so that any may be sent again."""
RETRIED = (BUSY, 502, 503, 504)
"""Statuses after which a request that may be repeated is sent again."""
CONFLICT = "Conflict"
"""Reason of a request that has met another change of the same object."""
CONFLICT_PAUSES = (0.2, 0.4, 0.8)
"""Most seconds before each repetition of a create that has met another one at a quota."""
EXPIRED = 410
"""Status of a list that is too old to go on with its next page."""
LONGEST_PAUSE = 8.0
"""Most seconds between two requests, whatever `Retry-After` says: all gangs of a connection wait for one answer."""
Found = TypeVar("Found")
NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
"""File with the namespace of the pod that this process runs in."""


class Api:
    """The API server, as the user of one connection. Safe to share between threads; no I/O before the first call."""

    def __init__(self, fields: ClusterFields, *, urgent: bool = False) -> None:
        self._fields = fields
        self._urgent = urgent
        self._lock = threading.Lock()
        self._client: Any = None
        self._service_clock = ServiceClock()

    def now(self) -> float:
        """Return the Unix time by the API server's clock, as far as it has answered; else this machine's."""
        now = self._service_clock.now()
        return time.time() if now is None else now

    def ready(self) -> None:
        """Load the credentials. Raises BackendError."""
        with kubernetes_errors("reading the credentials"):
            self._connected()

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        return self._json("GET", path, query)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object; a field that the server does not know is an error, and not left out in silence.

        A quota refuses some of several creates that come at once: none of those is made, and each is sent again.
        """
        for pause in CONFLICT_PAUSES:
            try:
                return self._create(path, body)
            except BackendError as error:
                if error.code != CONFLICT:
                    raise
            time.sleep(random.uniform(pause / 2, pause))
        return self._create(path, body)

    def _create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._json("POST", path, {"fieldValidation": "Strict"}, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._json("PATCH", path, {}, body, content="application/merge-patch+json")

    def delete(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._json("DELETE", path, {}, body)

    def list(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list."""
        for items in self.whole(path, lambda page: page.get("items") or (), **query):
            yield from items

    def whole(self, path: str, taken: Callable[[Mapping[str, Any]], Found], **query: Any) -> Sequence[Found]:
        """Return what is taken of each page of a list; of a list that has expired meanwhile, of all in one piece."""
        try:
            return [taken(page) for page in self._pages(path, **query)]
        except BackendError as error:
            if error.status_code != EXPIRED:
                raise
        return [taken(page) for page in self._pages(path, **query, limit=None)]

    def _pages(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        asked = {"limit": PAGE, **query}
        while True:
            page = self.get(path, **asked)
            yield page
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            asked["continue"] = token

    def changes(self, path: str, version: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield what has happened to the objects of a list since a version, as events of a watch; takes a second."""
        asked = {"watch": "true", "resourceVersion": version, "timeoutSeconds": CHANGES_WITHIN}
        content = self.text(path, **asked, allowWatchBookmarks="true", **query)
        yield from (_parsed(line, path) for line in content.splitlines() if line)

    def spec_fields(self, api: str, kind: str) -> frozenset[str]:
        """Return the fields that a kind's `spec` may have, as the server publishes them; `api`: as `/apis/group/v1`.

        Raises BackendError with status 404 where the server has nothing of this group.
        """
        found = self.get(f"/openapi/v3{api}")
        schemas = (found.get("components") or {}).get("schemas") or {}
        for schema in schemas.values():
            named = schema.get("x-kubernetes-group-version-kind") or ()
            if any(each.get("kind") == kind for each in named):
                spec = (schema.get("properties") or {}).get("spec") or {}
                return frozenset(spec.get("properties") or ())
        return frozenset()

    def text(self, path: str, **query: Any) -> bytes:
        """Return an answer that is no JSON, as a log."""
        content: bytes = self._send("GET", path, query, None, "application/json")
        return content

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: Any = None,
        content: str = "application/json",
    ) -> dict[str, Any]:
        return _parsed(self._send(method, path, query, body, content) or b"{}", path)

    def _send(self, method: str, path: str, query: Mapping[str, Any], body: Any, content: str) -> Any:
        with kubernetes_errors(f"{method} {path}"):
            client = self._connected()
            try:
                return self._ask(client, method, path, query, body, content)
            except Exception as error:
                if not is_of_nobody(error):
                    raise
            # Tokens of exec plugins and files expire, and a plugin may have failed; those of now may be newer.
            with self._lock:
                if self._client is client:
                    self._client = None
            return self._ask(self._connected(), method, path, query, body, content)

    def _ask(
        self, client: Any, method: str, path: str, query: Mapping[str, Any], body: Any, content: str
    ) -> Any:
        answer = client.call_api(
            path,
            method,
            query_params=[(name, value) for name, value in query.items() if value is not None],
            header_params={"Accept": "application/json", "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _preload_content=False,
            _request_timeout=self._timeout(method),
        )
        self._service_clock.take(answer)
        return answer.data

    def _timeout(self, method: str) -> float | tuple[float, float]:
        """Return the seconds for a request in all, or for the connection and for each piece of the answer."""
        if not self._urgent:
            return CONNECT_TIMEOUT, READ_TIMEOUT
        return LOOK_TIMEOUT if method == "GET" else URGENT_TIMEOUT

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = _client_of(self._fields, urgent=self._urgent)
            return self._client

    def namespace(self) -> str:
        """Return the default namespace: the connection's, the kubeconfig's, or that of this pod."""
        if self._fields.namespace:
            return self._fields.namespace
        return _own_namespace(self._fields)


def _parsed(content: bytes, path: str) -> dict[str, Any]:
    """Return an object of an answer. Raises BackendError for what a proxy has sent instead, or cut off."""
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError) as error:
        raise BackendError(
            f"GET {path}: the answer is not an API server's, or is cut off: a proxy may stand between",
            retryable=True,
        ) from error


def _client_of(fields: ClusterFields, *, urgent: bool) -> Any:
    """Return a client with the credentials that a connection names, as Airflow's KubernetesHook chooses them."""
    from kubernetes import client

    configuration = client.Configuration()
    _load(fields, configuration)
    if truth(fields.disable_verify_ssl):
        configuration.verify_ssl = False
    configuration.connection_pool_maxsize = 32
    configuration.retries = _retries(0 if urgent else RETRIES)
    return client.ApiClient(configuration)


def _retries(total: int) -> Any:
    """Return the rules by which urllib3 sends a request again; its own would wait for hours if a server asks so."""
    from urllib3 import Retry

    class Retries(Retry):
        def is_retry(
            self,
            method: str,
            status_code: int,
            has_retry_after: bool = False,
        ) -> bool:
            refused = status_code == BUSY and bool(self.total)
            return refused or super().is_retry(method, status_code, has_retry_after)

        def get_retry_after(self, response: Any) -> float | None:
            asked = super().get_retry_after(response)
            return None if asked is None else min(asked, LONGEST_PAUSE)

    return Retries(
        total=total,
        backoff_factor=0.2,
        status_forcelist=RETRIED,
        allowed_methods=("GET", "DELETE"),
        raise_on_status=False,
        respect_retry_after_header=True,
    )


def _load(fields: ClusterFields, configuration: Any) -> None:
    from kubernetes import config

    _check_one_source(fields)
    if truth(fields.in_cluster):
        config.load_incluster_config(client_configuration=configuration)
    elif fields.kube_config_path or fields.kube_config:
        _load_file(fields, configuration)
    else:
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            config.load_kube_config(client_configuration=configuration, context=fields.cluster_context)


def _load_file(fields: ClusterFields, configuration: Any) -> None:
    from kubernetes import config

    if fields.kube_config_path:
        config.load_kube_config(
            fields.kube_config_path, context=fields.cluster_context, client_configuration=configuration
        )
        return
    given = fields.kube_config
    with tempfile.NamedTemporaryFile() as file:
        file.write((json.dumps(given) if isinstance(given, Mapping) else str(given)).encode())
        file.flush()
        config.load_kube_config(file.name, context=fields.cluster_context, client_configuration=configuration)


def _check_one_source(fields: ClusterFields) -> None:
    given = {
        "in_cluster": truth(fields.in_cluster),
        "kube_config_path": fields.kube_config_path,
        "kube_config": fields.kube_config,
    }
    chosen = [name for name, value in given.items() if value]
    if len(chosen) > 1:
        raise BackendError(
            f"the connection has {' and '.join(chosen)}: they exclude one another, leave one",
            cause=Cause.CONFIG,
        )


def _own_namespace(fields: ClusterFields) -> str:
    from kubernetes import config

    try:
        if truth(fields.in_cluster):
            return Path(NAMESPACE_FILE).read_text().strip()
        if fields.kube_config:
            return _namespace_in(fields.kube_config, fields.cluster_context)
        contexts, active = config.list_kube_config_contexts(fields.kube_config_path)
    except (OSError, ImportError, yaml.YAMLError, config.ConfigException):
        return "default"
    chosen = {each["name"]: each for each in contexts}.get(fields.cluster_context, active)
    return str(chosen["context"].get("namespace") or "default")


def _namespace_in(kube_config: Any, context: str | None) -> str:
    value = kube_config if isinstance(kube_config, Mapping) else yaml.safe_load(str(kube_config))
    wanted = context or value.get("current-context")
    contexts = {each.get("name"): each.get("context") or {} for each in value.get("contexts") or ()}
    return str(contexts.get(wanted, {}).get("namespace") or "default")
