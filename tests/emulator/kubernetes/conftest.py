"""A cluster in this process, and the official client that speaks to it."""

from dataclasses import dataclass

import httpx
import kubernetes
import pytest

from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.kubernetes.waiting import until
from tests.views import need_views

SETTINGS = ClusterSettings(
    backoff_s=0.2, backoff_max_s=0.4, mount_retry_s=0.05, bookmark_s=0.2, eviction_s=0.3
)


@dataclass(frozen=True)
class Kube:
    """The cluster as a client sees it; `client` is the administrator's."""

    emulator: Emulator
    client: kubernetes.client.ApiClient

    @property
    def namespace(self):
        return self.emulator.access.kubernetes_namespace

    @property
    def core(self):
        return kubernetes.client.CoreV1Api(self.client)

    @property
    def custom(self):
        return kubernetes.client.CustomObjectsApi(self.client)

    def pod(self, script="true", /, *, name="pod", metadata=None, container=None, **spec):
        """Create a pod whose container runs a line of shell, and return it."""
        main = {"name": "main", "image": "python:3.12", "command": ["sh", "-c", script], **(container or {})}
        body = {"metadata": {"name": name, **(metadata or {})}}
        body["spec"] = {"restartPolicy": "Never", "containers": [main], **spec}
        return self.core.create_namespaced_pod(self.namespace, body)

    def read(self, name="pod"):
        return self.core.read_namespaced_pod(name, self.namespace)

    def in_phase(self, *phases, name="pod"):
        """Return a pod once it is in one of the phases; a pod that ended in another fails."""

        def look():
            pod = self.read(name)
            assert pod.status.phase in (*phases, "Pending", "Running"), pod.status
            return pod if pod.status.phase in phases else None

        return until(look)

    def log(self, name="pod", **options):
        # Read as it comes: this client turns the text of a log into `b'...'`.
        raw = self.core.read_namespaced_pod_log(name, self.namespace, _preload_content=False, **options)
        return raw.data.decode()

    def output(self, script, /, **more):
        """Run a line of shell in a pod to its end, and return what it printed."""
        self.pod(script, **more)
        self.in_phase("Succeeded", name=more.get("name", "pod"))
        return self.log(more.get("name", "pod"), **({"container": "main"} if "containers" in more else {}))

    def waiting_reason(self, name="pod"):
        """Return why a pod's first container waits, or why the pod itself does."""
        status = self.read(name).status
        states = [each.state.waiting for each in status.container_statuses or []]
        return states[0].reason if states and states[0] else None

    @property
    def headers(self):
        """The administrator's, for requests that the client has no method for."""
        (token,) = self.client.configuration.api_key.values()
        return {"authorization": token}

    def events(self, name="pod"):
        """Return reasons and messages of what was said of an object."""
        found = self.core.list_namespaced_event(self.namespace, field_selector=f"involvedObject.name={name}")
        return [(event.reason, event.message) for event in found.items]

    def control(self, where, /, **body):
        """Call the control API."""
        url = f"{self.emulator.url}/_emulator/kubernetes{where}"
        with httpx.Client(trust_env=False) as http:
            answer = http.post(url, json=body)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def user(self, name, *groups, lifetime_s=None):
        """Return the API client of a user for whom only bindings count, and their token."""
        token, _ = self.emulator.kubernetes.new_user(kubernetes_user(name, groups), lifetime_s)
        configuration = kubernetes.client.Configuration()
        configuration.host = self.client.configuration.host
        configuration.ssl_ca_cert = self.client.configuration.ssl_ca_cert
        configuration.api_key = {"authorization": f"Bearer {token}"}
        return kubernetes.client.ApiClient(configuration)


def kubernetes_user(name, groups):
    from airflow_provider_ocidist.emulator.kubernetes.users import named

    return named(name, groups)


@pytest.fixture(scope="session")
def kube_emulator():
    need_views()
    with Emulator(options=Options(kubernetes=SETTINGS)) as running:
        yield running


@pytest.fixture
def kube(kube_emulator):
    """The cluster as it is after a fresh start."""
    with httpx.Client(trust_env=False) as http:
        http.post(f"{kube_emulator.url}/_emulator/reset").raise_for_status()
    client = kubernetes.config.new_client_from_config(kube_emulator.access.kubeconfig)
    yield Kube(kube_emulator, client)
    client.close()
