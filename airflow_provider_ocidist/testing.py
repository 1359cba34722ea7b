"""A pytest plugin: the fixture `oci_emulator`, a local OCI for the tests of this package's users."""

from __future__ import annotations

import importlib
import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

if TYPE_CHECKING:
    from airflow_provider_ocidist.emulator.access import Access
    from airflow_provider_ocidist.emulator.context import Options
    from airflow_provider_ocidist.emulator.recorded_calls import RecordedCall
    from airflow_provider_ocidist.emulator.server import Emulator

# pytest loads this module in every environment with the package: heavy imports are made by the fixture.


class OciEmulator:
    """A running emulator, and its controls for tests."""

    def __init__(self, access: Access) -> None:
        self.access = access
        """Addresses and initial resources: identifiers, bucket, config file."""

    @property
    def url(self) -> str:
        return self.access.url

    @property
    def config(self) -> dict[str, Any]:
        """The configuration for clients of the SDK."""
        import oci

        config: dict[str, Any] = oci.config.from_file(self.access.config_file, self.access.profile)
        return config

    def client(self, service: str, **options: Any) -> Any:
        """Return a client of the SDK, for `object_storage`, `data_science`, or `core.VirtualNetworkClient`.

        It has no circuit breaker, so that the faults of one test do not stop the next.
        """
        import oci

        options = {
            "service_endpoint": self.url,
            "circuit_breaker_strategy": oci.circuit_breaker.NoCircuitBreakerStrategy(),
            **options,
        }
        return _client_class(service)(self.config, **options)

    def env(self) -> dict[str, str]:
        """Return environment variables that point the unmodified SDK, CLI, ocifs and ADS here."""
        config = self.access.config_file
        return {
            **self.access.proxy_environment(),
            "OCI_CONFIG_FILE": config,
            "OCI_CLI_CONFIG_FILE": config,
            "OCIFS_CONFIG_LOCATION": config,
        }

    def airflow_connection(self) -> str:
        """Return the value of an `AIRFLOW_CONN_...` variable: a connection of type `oci` to the emulator."""
        from airflow_provider_ocidist.emulator.access import connection

        return connection(self.access)

    def kubernetes_connection(self) -> str:
        """Return the value of an `AIRFLOW_CONN_...` variable: a connection of type `kubernetes` to the cluster.

        The cluster is there with `{"kubernetes": ClusterSettings()}` in `oci_emulator_options`.
        """
        extra = {"kube_config_path": self.access.kubeconfig, "namespace": self.access.kubernetes_namespace}
        return json.dumps({"conn_type": "kubernetes", "extra": extra})

    def cluster_fault(self, **rule: Any) -> None:
        """Add a fault rule for requests to the Kubernetes API, such as `path=".*/pods", status=503, times=2`."""
        self._control("POST", "/kubernetes/faults", rule)

    def pods(self, **rule: Any) -> None:
        """Add a rule for pods, such as `name=".*-worker-0", effect="evict"`."""
        self._control("POST", "/kubernetes/pods", rule)

    def cluster_calls(self, **filters: str) -> list[RecordedCall]:
        """Return the requests to the Kubernetes API so far; `host` is the user's name."""
        from airflow_provider_ocidist.emulator.recorded_calls import RecordedCall

        found = self._control("GET", f"/kubernetes/calls?{urlencode(filters)}")
        return [RecordedCall(**each) for each in found]

    def fault(self, **rule: Any) -> None:
        """Add a fault rule for requests, such as `path="/20190101/jobRuns", status=429, times=2`."""
        self._control("POST", "/faults", rule)

    def nodes(self, **rule: Any) -> None:
        """Add a fault rule for nodes, such as `display_name=".*-1", failure="Out of host capacity."`."""
        self._control("POST", "/nodes", rule)

    def seed(self, number: int) -> None:
        """Reset the random numbers for faults with a `probability`."""
        self._control("POST", "/seed", {"seed": number})

    def calls(self, **filters: str) -> list[RecordedCall]:
        """Return the requests so far that match `method`, `path` and `host` (regular expressions)."""
        from airflow_provider_ocidist.emulator.recorded_calls import RecordedCall

        return [RecordedCall(**each) for each in self._control("GET", f"/calls?{urlencode(filters)}")]

    def reset(self) -> None:
        """Reset to the initial state; identifiers and keys stay. Called before each test."""
        self._control("POST", "/reset")

    def _control(self, method: str, where: str, body: Mapping[str, Any] | None = None) -> Any:
        request = urllib.request.Request(  # noqa: S310 - the emulator's own address
            f"{self.url}/_emulator{where}", data=json.dumps(body or {}).encode(), method=method
        )
        try:
            # Without the environment's proxies: the emulator is on this machine.
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            raise ValueError(json.loads(error.read())["message"]) from None
        return json.loads(content) if content else None


def _client_class(service: str) -> type:
    module, _, name = service.partition(".")
    clients = importlib.import_module(f"oci.{module}")
    names = [name] if name else [each for each in dir(clients) if each.endswith("Client")]
    if len(names) != 1:
        raise ValueError(f"oci.{module} has several clients: name one of {', '.join(names)} after {module}.")
    found: type = getattr(clients, names[0])
    return found


def _import_emulator() -> tuple[type[Emulator], type[Options]]:
    try:
        from airflow_provider_ocidist.emulator.context import Options
        from airflow_provider_ocidist.emulator.server import Emulator
    except ImportError as error:
        pytest.fail(
            f"oci_emulator needs {error.name}: pip install 'airflow-provider-ocidist[emulator]'",
            pytrace=False,
        )
    return Emulator, Options


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP of a lost terminal, end the session with its fixtures; what has a handler keeps it.

    Else the process would end at once, and leave the emulator's folder with its keys.
    """
    own = os.getpid()

    def end(number: int, _: object) -> None:
        if os.getpid() == own:
            pytest.exit(f"{signal.Signals(number).name} received", returncode=128 + number)
        # A process that was forked from this one.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for each in taken:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in taken:
            signal.signal(each, signal.SIG_DFL)


@pytest.fixture(scope="session")
def oci_emulator_options() -> dict[str, Any]:
    """Override this fixture to change the emulator's settings for a session: `{"grace_s": 1, "seed": 7}`."""
    return {}


@pytest.fixture(scope="session")
def oci_emulator_server(oci_emulator_options: dict[str, Any]) -> Iterator[OciEmulator]:
    """One emulator for the session, in the state that earlier tests left."""
    emulator, options = _import_emulator()
    with ended_by_signals(), emulator(options=options(**oci_emulator_options)) as running:
        yield OciEmulator(running.access)


@pytest.fixture
def oci_emulator(oci_emulator_server: OciEmulator) -> OciEmulator:
    """A local OCI in its initial state."""
    oci_emulator_server.reset()
    return oci_emulator_server
