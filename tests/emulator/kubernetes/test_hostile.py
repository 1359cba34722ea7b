"""The API server under hostile hands: refused as a `Status`, at once, and nothing is broken for the others."""

import json
import socket
import ssl
import time
from urllib.parse import urlsplit

import httpx
import pytest

from airflow_provider_ocidist.emulator import control_rules
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.replicas import by_index
from airflow_provider_ocidist.emulator.kubernetes.quantities import amount
from tests.emulator.kubernetes.gangs import Gangs
from tests.emulator.kubernetes.waiting import until
from tests.emulator.other_user import only_as_root, status_for_another_user

YAML = {"content-type": "application/yaml"}
JSON = {"content-type": "application/json"}


@pytest.fixture
def http(kube):
    """A client of the API server that sends what it is given, as the administrator."""
    with httpx.Client(
        base_url=kube.client.configuration.host,
        verify=ssl.create_default_context(cafile=kube.client.configuration.ssl_ca_cert),
        headers=kube.headers,
        trust_env=False,
        timeout=60,
    ) as client:
        yield client


@pytest.fixture
def place(kube):
    return f"/api/v1/namespaces/{kube.namespace}"


def refused(answer, *codes):
    """Return why a request is refused, in the form of Kubernetes."""
    assert answer.status_code in (codes or (400,)), answer.text[:1000]
    status = answer.json()
    assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", answer.status_code)
    return status["message"]


def used_s(kube):
    """Return how much of a processor this process has used: the cluster is in it."""
    return time.process_time()


# what it keeps


def test_request_ids_paths_and_names_are_kept_of_a_call_as_far_as_they_are_short(kube, http):
    long = "x" * 60_000
    http.get("/api", headers={"x-request-id": long, "authorization": "Bearer none"})
    http.get(f"/api/{long}", headers={"x-request-id": "mine-1", "impersonate-user": long})
    with httpx.Client(trust_env=False) as client:
        calls = client.get(f"{kube.emulator.url}/_emulator/kubernetes/calls").json()
    assert [call["request_id"] for call in calls[-2:]] == ["", "mine-1"]
    assert all(len(json.dumps(call)) < 20_000 for call in calls)


@pytest.mark.parametrize(
    "where, rule",
    [("faults", {"path": "/none", "status": 503}), ("pods", {"name": "none", "effect": "kill"})],
)
def test_rules_are_not_taken_without_end(kube, monkeypatch, where, rule):
    monkeypatch.setattr(control_rules, "MAX_RULES", 3)
    url = f"{kube.emulator.url}/_emulator/kubernetes/{where}"
    with httpx.Client(trust_env=False) as client:
        answers = [client.post(url, json=rule).status_code for _ in range(4)]
    assert answers == [200, 200, 200, 400]


def test_a_thousand_rules_of_pods_hold_up_others_for_a_moment_only(kube):
    from airflow_provider_ocidist.emulator.kubernetes.kubelet.pod_faults import PodFaults, PodRule

    faults = PodFaults(kube.emulator.kubernetes.cluster, kube.emulator.kubernetes.settings)
    for number in range(1000):
        # As `add`, which would look at the pods of the cluster each time.
        faults._note(PodRule(name=f"(?:a?|.*){{100}}{number}", effect="kill"))
    pod = {"metadata": {"name": "a" * 253, "namespace": "b", "uid": "1"}, "status": {"phase": "Running"}}
    began = time.thread_time()
    faults._see(pod)
    assert time.thread_time() - began < 2


@only_as_root
def test_other_users_of_the_machine_do_not_control_the_cluster(kube):
    assert status_for_another_user(kube.emulator.url, "/_emulator/kubernetes/cut", "POST") == 403


@pytest.mark.parametrize("value", ["x", -1, 10**400, [], True, 1e308])
@pytest.mark.parametrize("where", ["away", "users"])
def test_seconds_are_a_number_that_a_clock_takes(kube, value, where):
    name = "seconds" if where == "away" else "lifetime_s"
    body = {name: value, **({"name": "ann"} if where == "users" else {})}
    url = f"{kube.emulator.url}/_emulator/kubernetes/{where}"
    signed = kube.emulator.access
    answer = post_signed(signed, url, body)
    assert (answer.status_code < 300) == (value == 1e308), answer.text
    with httpx.Client(trust_env=False) as client:
        client.delete(f"{kube.emulator.url}/_emulator/kubernetes/faults")


def post_signed(access, url, body):
    import oci
    from oci._vendor import requests

    config = oci.config.from_file(access.config_file, access.profile)
    signer = oci.signer.Signer(config["tenancy"], config["user"], config["fingerprint"], config["key_file"])
    return requests.post(url, data=json.dumps(body).encode(), auth=signer)


# bodies that grow, or are nested


def aliases(levels):
    lines = ["apiVersion: v1", "kind: ConfigMap", "metadata:", "  name: bomb", "  managedFields:"]
    lines += ["  - fieldsV1:", "      a0: &a0 [x]"]
    lines += [f"      a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines).encode()


@pytest.mark.parametrize("levels", [2, 10])
def test_yaml_with_aliases_is_refused_before_it_grows(kube, http, place, levels):
    began = used_s(kube)
    message = refused(http.post(f"{place}/configmaps", content=aliases(levels), headers=YAML))
    assert "alias" in message
    assert used_s(kube) - began < 2


@pytest.mark.parametrize(
    "body, headers",
    [
        (b'{"a":' * 900 + b"1" + b"}" * 900, JSON),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, JSON),
        (b"{a: " * 900 + b"1" + b"}" * 900, YAML),
        (b"[" * 100_000, YAML),
        (b"- " * 20_000 + b"1", YAML),
    ],
    ids=["json", "deep json", "yaml", "open yaml", "lists"],
)
def test_what_is_nested_too_deep_is_refused(kube, http, place, body, headers):
    refused(http.post(f"{place}/configmaps", content=body, headers=headers))


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "copy", "from": "/metadata/annotations", "path": "/metadata/annotations/a"}] * 40,
        [{"op": "add", "path": "/metadata/labels/a", "value": "b"}] * 10_001,
        [{"op": "add", "path": "/metadata/labels/" + "/a" * 50_000, "value": "b"}],
    ],
    ids=["copies", "many", "deep"],
)
def test_a_patch_that_grows_without_end_is_refused(kube, http, place, operations):
    metadata = {"name": "c", "annotations": {"a": "x" * 1000}}
    assert http.post(f"{place}/configmaps", json={"metadata": metadata}).status_code == 201
    began = used_s(kube)
    headers = {"content-type": patches_form("json")}
    answer = http.patch(f"{place}/configmaps/c", content=json.dumps(operations).encode(), headers=headers)
    refused(answer, 400, 413, 422)
    assert used_s(kube) - began < 2
    assert http.get(f"{place}/configmaps/c").json()["metadata"]["annotations"] == {"a": "x" * 1000}


def patches_form(name):
    return f"application/{name}-patch+json"


# another type


REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
ODD = [
    *(
        ("POST", path, body)
        for path in (REVIEWS, REVIEWS.replace("access", "rules"), "{place}/pods/x/eviction")
        for body in ([], "x", 1)
    ),
    ("POST", REVIEWS, {"spec": []}),
    ("POST", REVIEWS, {"spec": {"resourceAttributes": "x"}}),
    ("POST", REVIEWS, {"spec": {"resourceAttributes": {"verb": []}}}),
    ("POST", REVIEWS.replace("access", "rules"), {"spec": {"namespace": {}}}),
    ("DELETE", "{place}/configmaps/none", []),
    ("DELETE", "{place}/configmaps", []),
    ("DELETE", "{place}/configmaps/here", {"gracePeriodSeconds": "x"}),
    ("DELETE", "{place}/configmaps/here", {"preconditions": []}),
    ("DELETE", "{place}/configmaps/here", {"propagationPolicy": {}}),
    ("POST", "{place}/pods/x/eviction", {"deleteOptions": []}),
    *(
        ("POST", "{place}/serviceaccounts/default/token", {"spec": {"expirationSeconds": value}})
        for value in ("x", 1e308, 10**400, [], -1, True)
    ),
    ("POST", "{place}/serviceaccounts/default/token", {"spec": []}),
    ("POST", "{place}/configmaps", {"metadata": []}),
    ("POST", "{place}/configmaps", {"metadata": {"name": 1}}),
    ("POST", "{place}/configmaps", {"metadata": {"name": "a", "namespace": 1}}),
    ("POST", "{place}/configmaps", {"metadata": {"name": "a", "ownerReferences": [{}]}}),
    ("POST", "{place}/configmaps", {"metadata": {"name": "a", "ownerReferences": [None]}}),
    ("POST", "{place}/configmaps", {"metadata": {"name": "a"}, "data": {"a": 1}}),
    ("POST", "{place}/pods", {"metadata": {"name": "a"}, "spec": {"containers": [None]}}),
    ("POST", "{place}/pods", {"metadata": {"name": "a"}, "spec": None}),
    ("POST", "{place}/pods", {"metadata": {"name": "a"}, "spec": {"containers": [{"resources": None}]}}),
    ("PUT", "{place}/configmaps/here", {"metadata": None, "data": []}),
    ("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", {"metadata": {"name": 5}}),
    ("POST", "{jobsets}", {"metadata": {"name": "a"}, "spec": {"replicatedJobs": [1]}}),
    ("POST", "{jobsets}", {"metadata": {"name": "a"}, "spec": {"network": None, "replicatedJobs": [{}]}}),
    ("POST", "{jobsets}", {"metadata": {"name": "a"}}),
    ("POST", "{rbac}/rolebindings", {"metadata": {"name": "a"}, "subjects": [{}]}),
    ("POST", "{rbac}/rolebindings", {"metadata": {"name": "a"}, "roleRef": {"kind": "Role"}}),
    ("POST", "{rbac}/roles", {"metadata": {"name": "a"}, "rules": [None]}),
]


@pytest.mark.parametrize("method, path, body", ODD, ids=lambda value: str(value)[:50])
def test_what_is_of_another_type_is_refused(kube, http, place, method, path, body):
    http.post(f"{place}/configmaps", json={"metadata": {"name": "here"}})
    jobsets = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{kube.namespace}/jobsets"
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{kube.namespace}"
    path = path.format(place=place, jobsets=jobsets, rbac=rbac)
    answer = http.request(method, path, content=json.dumps(body).encode(), headers=JSON)
    refused(answer, 400, 404, 422)
    assert http.get(f"{place}/configmaps/here").status_code == 200


@pytest.mark.parametrize(
    "query",
    [
        "limit=" + "9" * 5_000,
        "limit=%C2%B2",
        "continue=" + "W1tb" * 10_000,
        "continue=e30=",
        "watch=1&resourceVersion=" + "9" * 5_000,
        "watch=1&timeoutSeconds=" + "9" * 5_000,
        "watch=1&resourceVersion=%C2%B2",
        "labelSelector=" + "(" * 5_000,
        "fieldSelector=%ff",
    ],
    ids=lambda query: query[:30],
)
def test_parameters_that_nobody_has_given_out_are_refused(kube, http, place, query):
    refused(http.get(f"{place}/pods?{query}"))


@pytest.mark.parametrize("name", ["sinceSeconds", "tailLines", "limitBytes"])
@pytest.mark.parametrize("value", ["9" * 5_000, "9" * 18, "%C2%B2", "-1"])
def test_a_log_is_asked_for_by_numbers(kube, http, place, name, value):
    kube.pod("echo line")
    kube.in_phase("Succeeded")
    answer = http.get(f"{place}/pods/pod/log?{name}={value}")
    if value == "9" * 18 and name != "sinceSeconds":
        assert answer.text == "line\n"
    else:
        refused(answer)


def test_what_was_stored_breaks_nothing_that_comes_after(kube, http, place):
    """A table of events, and what another user may do, are made of what anybody has written."""
    event = {"metadata": {"name": "e"}, "involvedObject": {}, "lastTimestamp": "x", "type": None}
    http.post(f"{place}/events", json=event)
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{kube.namespace}"
    for body in (
        {"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User"}]},
        {"roleRef": None},
    ):
        http.post(f"{rbac}/rolebindings", json={"metadata": {"name": "b"}, **body})
    http.post(f"{rbac}/roles", json={"metadata": {"name": "r"}, "rules": [{"verbs": None}, {}]})
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    for path in (f"{place}/events", f"{rbac}/roles", f"{rbac}/rolebindings", f"{place}/pods"):
        assert http.get(path, headers={"accept": table}).status_code == 200
    ann = kube.user("ann").configuration.api_key["authorization"]
    refused(http.get(f"{place}/pods", headers={"authorization": ann}), 403)


# places outside of the state folder


def pod_with(**parts):
    container = {"name": "main", "image": "i", "command": ["true"], **parts.pop("container", {})}
    return {"metadata": {"name": "out"}, "spec": {"containers": [container], **parts}}


OUT = "../" * 12 + "tmp/ocidist-out"
PLACES = [
    pod_with(volumes=[{"name": OUT, "emptyDir": {}}]),
    pod_with(volumes=[{"name": "..", "emptyDir": {}}]),
    pod_with(volumes=[{"emptyDir": {}}]),
    pod_with(container={"name": OUT}),
    pod_with(initContainers=[{"name": "../a", "image": "i"}]),
    pod_with(volumes=[{"name": "v", "configMap": {"name": "c", "items": [{"key": "a", "path": OUT}]}}]),
    pod_with(
        volumes=[{"name": "v", "secret": {"secretName": "c", "items": [{"key": "a", "path": "/tmp/out"}]}}]
    ),
    pod_with(
        volumes=[
            {
                "name": "v",
                "projected": {
                    "sources": [{"configMap": {"name": "c", "items": [{"key": "a", "path": OUT}]}}]
                },
            }
        ]
    ),
    pod_with(
        volumes=[
            {
                "name": "v",
                "downwardAPI": {"items": [{"path": OUT, "fieldRef": {"fieldPath": "metadata.name"}}]},
            }
        ]
    ),
    *(
        pod_with(
            volumes=[{"name": "v", "emptyDir": {}}],
            container={"volumeMounts": [{"name": "v", "mountPath": "/v", **mount}]},
        )
        for mount in ({"subPath": OUT}, {"subPath": "/tmp"}, {"mountPath": f"/{OUT}"}, {"mountPath": "v"})
    ),
]


@pytest.mark.parametrize("pod", PLACES, ids=lambda pod: json.dumps(pod["spec"])[:90])
def test_a_pod_that_names_a_place_outside_of_its_own_is_refused(kube, http, place, pod):
    refused(http.post(f"{place}/pods", json=pod), 422)


@pytest.mark.parametrize("key", [OUT, "..", ".", "a/b", "", "x" * 254])
def test_a_key_that_is_no_name_of_a_file_is_refused(kube, http, place, key):
    for kind, name in (("configmaps", "data"), ("configmaps", "binaryData"), ("secrets", "data")):
        refused(http.post(f"{place}/{kind}", json={"metadata": {"name": "c"}, name: {key: "YQ=="}}), 422)


def test_a_part_of_a_volume_that_leads_out_of_it_by_a_variable_is_not_mounted(kube, tmp_path):
    mount = {"name": "v", "mountPath": "/v", "subPathExpr": "$(OUT)"}
    variables = [{"name": "OUT", "value": f"../../../../../../../../..{tmp_path}/out"}]
    kube.pod(
        "true", container={"volumeMounts": [mount], "env": variables}, volumes=[{"name": "v", "emptyDir": {}}]
    )
    until(lambda: any("subPath" in message for _, message in kube.events()))
    assert not (tmp_path / "out").exists()


# counts


def test_nothing_asks_for_more_pods_than_a_cluster_has(kube, http, tmp_path):
    job = Gangs(kube, tmp_path).pytorchjob(workers=1_000_000_000)
    answer = http.post(f"/apis/kubeflow.org/v1/namespaces/{kube.namespace}/pytorchjobs", json=job)
    refused(answer, 403, 422)
    template = {"spec": {"containers": [{"name": "a", "image": "b"}], "restartPolicy": "Never"}}
    jobs = f"/apis/batch/v1/namespaces/{kube.namespace}/jobs"
    for count in ({"parallelism": 10**9}, {"completions": 10**9, "completionMode": "Indexed"}):
        body = {"metadata": {"name": "big"}, "spec": {**count, "template": template}}
        refused(http.post(jobs, json=body), 422)
    jobset = {
        "replicatedJobs": [{"name": "a", "replicas": 10**9, "template": {"spec": {"template": template}}}]
    }
    jobsets = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{kube.namespace}/jobsets"
    refused(http.post(jobsets, json={"metadata": {"name": "big"}, "spec": jobset}), 422)


def test_replicas_far_apart_are_not_counted_through():
    far = [{"metadata": {"labels": {"replica-index": text}}} for text in ("0", "9" * 12, "x", "9" * 5_000)]
    assert sorted(by_index(far)) == [0]


@pytest.mark.parametrize("text", ["1e999999999", "1" * 5_000, "1e-999999999", "x", "1..2", ""])
def test_a_quantity_is_no_number_that_takes_long_to_write(text):
    with pytest.raises(ValueError, match="quantit"):
        amount(text)
    assert amount("1e3") == 1000


# the form of refusals


def test_what_is_not_http_is_refused_as_a_status(kube):
    host = urlsplit(kube.client.configuration.host)
    context = ssl.create_default_context(cafile=kube.client.configuration.ssl_ca_cert)
    with (
        socket.create_connection((host.hostname, host.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=host.hostname) as client,
    ):
        client.sendall(b"GET\r\n\r\n")
        received = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["kind"] == "Status"


def test_a_path_that_is_none_is_not_found(kube, http):
    for path in ("/api/v1/%ff", "/", "/apis//v1/a", "/api/v1/none/x/y/z"):
        assert http.get(path).status_code == 404, path


@pytest.mark.parametrize("name", ["ap\x7fVersion", "a\r\nx: y", "\N{ROCKET}", "\0", '"' * 9_000])
def test_a_warning_of_a_field_with_any_name_is_a_header(http, place, name):
    answer = http.post(f"{place}/configmaps", json={"metadata": {"name": "c"}, name: 1})
    assert answer.status_code == 201
    assert answer.headers["warning"].startswith("299 - ")
    assert len(answer.headers["warning"]) < 6_000


def test_speed_is_a_fault_here_too(kube, http, place):
    """bytes_per_s is among the fields of faults that the API server has."""
    http.post(f"{place}/configmaps", json={"metadata": {"name": "c"}, "data": {"a": "x" * 20_000}})
    kube.control("/faults", path=".*/configmaps/c", bytes_per_s=100_000)
    began = time.monotonic()
    assert len(http.get(f"{place}/configmaps/c").content) > 20_000
    assert time.monotonic() - began >= 0.2
