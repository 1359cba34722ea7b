"""The API server as the official clients see it: lists, watches, patches, validation, users, faults."""

import asyncio
import random
import ssl
import threading

import httpx
import kubernetes
import kubernetes_asyncio
import pytest
import urllib3
from kubernetes.client.exceptions import ApiException

from tests.emulator.kubernetes.waiting import until


def refused(code, *words):
    return pytest.raises(
        ApiException,
        check=lambda error: error.status == code and all(word in str(error.body) for word in words),
    )


def config(name, **data):
    return {"metadata": {"name": name, "labels": {"made": "here"}}, "data": data}


@pytest.fixture
def configs(kube):
    """Twelve ConfigMaps, in the order of their names."""
    names = [f"c{index:02}" for index in range(12)]
    for name in names:
        kube.core.create_namespaced_config_map(kube.namespace, config(name, index=name))
    return names


@pytest.mark.parametrize("limit", [1, 5, 11, 12, 13])
def test_pages_of_any_size_make_the_whole_list(kube, configs, limit):
    found, token = [], None
    while token != "":
        page = kube.core.list_namespaced_config_map(
            kube.namespace, limit=limit, label_selector="made=here", **({"_continue": token} if token else {})
        )
        assert len(page.items) <= limit
        found += [each.metadata.name for each in page.items]
        token = page.metadata._continue or ""
    assert found == configs


def test_a_list_that_goes_on_after_a_compaction_begins_anew(kube, configs):
    page = kube.core.list_namespaced_config_map(kube.namespace, limit=3)
    kube.control("/compact")
    with refused(410, "Expired"):
        kube.core.list_namespaced_config_map(kube.namespace, limit=3, _continue=page.metadata._continue)


def test_objects_are_found_by_labels_and_by_fields(kube):
    kube.pod("true", metadata={"labels": {"app": "a"}})
    kube.pod("false", name="other", metadata={"labels": {"app": "b"}})
    kube.in_phase("Succeeded")
    kube.in_phase("Failed", name="other")
    found = kube.core.list_namespaced_pod
    for options, names in (
        ({"label_selector": "app in (a,b)"}, ["other", "pod"]),
        ({"label_selector": "app!=a"}, ["other"]),
        ({"field_selector": "status.phase=Succeeded"}, ["pod"]),
        ({"field_selector": "metadata.name=other,status.phase!=Succeeded"}, ["other"]),
    ):
        assert [each.metadata.name for each in found(kube.namespace, **options).items] == names, options
    assert len(kube.core.list_pod_for_all_namespaces().items) == 2
    with refused(400, "field label not supported"):
        found(kube.namespace, field_selector="spec.hostname=x")


def test_a_watch_hears_of_everything_from_the_list_on_and_of_what_begins_and_ceases_to_fit(kube, configs):
    core, namespace = kube.core, kube.namespace
    listed = core.list_namespaced_config_map(namespace, label_selector="made=here")
    dice, wanted, present = random.Random(5), [], dict.fromkeys(configs, True)
    for _ in range(40):
        name = dice.choice(configs)
        verb = dice.choice(["change", "hide", "show"])
        labels = {"made": "elsewhere" if verb == "hide" else "here"}
        body = {"metadata": {"labels": labels}, "data": {"dice": str(dice.random())}}
        core.patch_namespaced_config_map(name, namespace, body)
        shown = verb != "hide"
        if shown or present[name]:
            wanted.append((("MODIFIED" if present[name] else "ADDED") if shown else "DELETED", name))
        present[name] = shown
    core.delete_collection_namespaced_config_map(namespace, label_selector="made=here")
    wanted += [("DELETED", name) for name in configs if present[name]]
    stream = kubernetes.watch.Watch().stream(
        core.list_namespaced_config_map,
        namespace,
        label_selector="made=here",
        resource_version=listed.metadata.resource_version,
        timeout_seconds=1,
    )
    assert [(event["type"], event["object"].metadata.name) for event in stream] == wanted


def test_a_watch_from_before_a_compaction_is_refused_and_a_cut_one_ends(kube, configs):
    version = kube.core.list_namespaced_config_map(kube.namespace).metadata.resource_version
    kube.core.delete_namespaced_config_map(configs[0], kube.namespace)
    kube.control("/compact")
    watch = kubernetes.watch.Watch()
    late = {"resource_version": version, "timeout_seconds": 5}
    with pytest.raises(ApiException, match="too old resource version") as caught:
        list(watch.stream(kube.core.list_namespaced_config_map, kube.namespace, **late))
    assert caught.value.status == 410

    ended = threading.Event()

    def follow():
        for _ in kubernetes.watch.Watch().stream(
            kube.core.list_namespaced_pod, kube.namespace, timeout_seconds=30
        ):
            pass
        ended.set()

    threading.Thread(target=follow, daemon=True).start()
    until(lambda: kube.control("/cut") or ended.wait(0.05))


def test_bookmarks_come_to_those_who_want_them(kube):
    options = {"timeout_seconds": 1, "allow_watch_bookmarks": True}
    raw = kube.core.list_namespaced_secret(kube.namespace, watch=True, _preload_content=False, **options)
    assert b'"BOOKMARK"' in b"".join(raw.stream())


def test_of_two_who_change_what_they_read_one_is_refused(kube, configs):
    read = kube.core.read_namespaced_config_map(configs[0], kube.namespace)
    read.data = {"by": "first"}
    kube.core.replace_namespaced_config_map(configs[0], kube.namespace, read)
    read.data = {"by": "second"}
    with refused(409, "Conflict", "the object has been modified"):
        kube.core.replace_namespaced_config_map(configs[0], kube.namespace, read)
    with refused(409, "AlreadyExists"):
        kube.core.create_namespaced_config_map(kube.namespace, config(configs[0]))
    with refused(404, "NotFound", 'configmaps \\"none\\" not found'):
        kube.core.read_namespaced_config_map("none", kube.namespace)


def test_patches_of_each_form_do_what_their_standards_say(kube):
    kube.pod("sleep 60", metadata={"labels": {"a": "1", "b": "2"}, "finalizers": ["x.y/z"]})
    patch = kube.core.patch_namespaced_pod
    merged = patch("pod", kube.namespace, {"metadata": {"labels": {"a": None, "c": "3"}}})
    assert merged.metadata.labels == {"b": "2", "c": "3"}
    strategic = {"spec": {"containers": [{"name": "main", "image": "python:3.13"}]}}
    assert patch("pod", kube.namespace, strategic).spec.containers[0].command == ["sh", "-c", "sleep 60"]
    operations = [{"op": "test", "path": "/metadata/labels/b", "value": "2"}]
    operations += [{"op": "remove", "path": "/metadata/finalizers/0"}]
    assert not patch("pod", kube.namespace, operations).metadata.finalizers
    with refused(422):
        patch("pod", kube.namespace, [{"op": "replace", "path": "/metadata/labels/zz", "value": "2"}])
    with refused(422, "pod updates may not change fields other than"):
        patch("pod", kube.namespace, {"spec": {"restartPolicy": "Always"}})


def test_unknown_fields_are_refused_where_the_client_is_strict_and_pruned_elsewhere(kube):
    body = {"metadata": {"name": "s"}, "data": {}, "dta": {}}
    with refused(400, "strict decoding error: unknown field", "dta"):
        kube.core.create_namespaced_secret(kube.namespace, body, field_validation="Strict")
    assert not kube.core.list_namespaced_secret(kube.namespace).items
    kube.core.create_namespaced_secret(kube.namespace, body)
    raw = kube.core.read_namespaced_secret("s", kube.namespace, _preload_content=False).data
    assert b"dta" not in raw


@pytest.mark.parametrize(
    "change, code, words",
    [
        ({"containers": []}, 422, "spec.containers: Required value"),
        ({"restartPolicy": "Sometimes"}, 422, 'Unsupported value: \\\\"Sometimes\\\\"'),
        ({"hostNetwork": "yes"}, 400, "of type bool"),
        ({"containers": [{"name": "c"}]}, 422, "spec.containers[0].image: Required value"),
    ],
)
def test_an_object_that_cannot_be_is_refused_with_its_field(kube, change, code, words):
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **change}}
    with pytest.raises(ApiException) as caught:
        kube.core.create_namespaced_pod(kube.namespace, body)
    assert caught.value.status == code
    assert words.replace("\\\\", "\\") in caught.value.body


def test_a_dry_run_checks_and_writes_nothing(kube):
    made = kube.core.create_namespaced_config_map(kube.namespace, config("c"), dry_run="All")
    assert made.metadata.uid
    with refused(404):
        kube.core.read_namespaced_config_map("c", kube.namespace)


def test_a_user_may_do_what_roles_say_and_nothing_else(kube):
    rbac = kubernetes.client.RbacAuthorizationV1Api(kube.client)
    rules = [{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}]
    rbac.create_namespaced_role(kube.namespace, {"metadata": {"name": "reader"}, "rules": rules})
    binding = {
        "metadata": {"name": "reader"},
        "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "Role", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"},
    }
    rbac.create_namespaced_role_binding(kube.namespace, binding)
    kube.pod("echo seen")
    kube.in_phase("Succeeded")
    client = kube.user("ann")
    ann = kubernetes.client.CoreV1Api(client)
    assert ann.read_namespaced_pod_log("pod", kube.namespace, _preload_content=False).data == b"seen\n"
    assert len(ann.list_namespaced_pod(kube.namespace).items) == 1
    sentence = (
        'pods \\"pod\\" is forbidden: User \\"ann\\" cannot delete resource \\"pods\\" in API group \\"\\"'
    )
    with refused(403, sentence, f'in the namespace \\"{kube.namespace}\\"'):
        ann.delete_namespaced_pod("pod", kube.namespace)
    with refused(403, "at the cluster scope"):
        ann.list_pod_for_all_namespaces()
    with refused(403):
        ann.list_namespaced_pod("default")
    with refused(403):
        kubernetes.client.CoreV1Api(kube.user("bob")).list_namespaced_pod(kube.namespace)
    review = kubernetes.client.AuthorizationV1Api(client).create_self_subject_access_review
    for verb, allowed in (("list", True), ("create", False)):
        asked = {
            "spec": {"resourceAttributes": {"namespace": kube.namespace, "verb": verb, "resource": "pods"}}
        }
        assert review(asked).status.allowed is allowed


def test_a_token_that_is_wrong_or_over_is_refused(kube):
    soon = kubernetes.client.CoreV1Api(kube.user("ann", "system:masters", lifetime_s=0.3))
    until(lambda: _status_of(lambda: soon.list_namespaced_pod(kube.namespace)) == 401)
    account = kube.core.create_namespaced_service_account_token("default", kube.namespace, {"spec": {}})
    assert account.status.token
    wrong = kube.user("ann")
    wrong.configuration.api_key = {"authorization": "Bearer nobody"}
    with refused(401, "Unauthorized"):
        kubernetes.client.CoreV1Api(wrong).list_namespaced_pod(kube.namespace)


def _status_of(call):
    try:
        call()
    except ApiException as error:
        return error.status
    return 200


def test_a_program_in_a_pod_reaches_the_api_as_its_service_account(kube):
    rbac = kubernetes.client.RbacAuthorizationV1Api(kube.client)
    binding = {
        "metadata": {"name": "default-views"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": kube.namespace}],
        "roleRef": {"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"},
    }
    rbac.create_namespaced_role_binding(kube.namespace, binding)
    script = (
        "from kubernetes import client, config; config.load_incluster_config();"
        " print([p.metadata.name for p in client.CoreV1Api().list_namespaced_pod('training').items])"
    )
    assert kube.output(f'python -c "{script}"') == "['pod']\n"


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_faults_are_answered_as_the_api_server_would(kube, status):
    kube.control("/faults", path=".*/configmaps", status=status, retry_after_s=7, times=1)
    access = kube.client.configuration
    url = f"{access.host}/api/v1/namespaces/{kube.namespace}/configmaps"
    # Not by the client, which asks again by itself.
    with httpx.Client(trust_env=False, verify=ssl.create_default_context(cafile=access.ssl_ca_cert)) as http:
        answers = [http.get(url, headers=kube.headers) for _ in range(2)]
    assert [each.status_code for each in answers] == [status, 200]
    assert (answers[0].json()["kind"], answers[0].json()["code"]) == ("Status", status)
    assert answers[0].headers["retry-after"] == "7"


def test_an_api_server_that_is_away_comes_back(kube):
    client = kubernetes.config.new_client_from_config(kube.emulator.access.kubeconfig)
    client.configuration.retries = 0
    core = kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(client.configuration))

    def works():
        try:
            return core.list_namespaced_pod(kube.namespace)
        except urllib3.exceptions.HTTPError:
            return None

    assert works()
    kube.control("/away", seconds=3600)
    assert not works()
    assert not works()
    kube.control("/away", seconds=0.1)
    until(works)


def test_what_the_asynchronous_client_asks_is_answered_alike(kube):
    async def ask():
        loaded = kubernetes_asyncio.client.Configuration()
        await kubernetes_asyncio.config.load_kube_config(
            kube.emulator.access.kubeconfig, client_configuration=loaded
        )
        async with kubernetes_asyncio.client.ApiClient(loaded) as client:
            core = kubernetes_asyncio.client.CoreV1Api(client)
            await core.create_namespaced_config_map(kube.namespace, config("c", a="b"))
            seen = []
            async with kubernetes_asyncio.watch.Watch() as watch:
                async for event in watch.stream(
                    core.list_namespaced_config_map, kube.namespace, timeout_seconds=5
                ):
                    seen.append((event["type"], event["object"].metadata.name))
                    if len(seen) == 2:
                        break
                    await core.delete_namespaced_config_map("c", kube.namespace)
            return seen

    assert asyncio.run(ask()) == [("ADDED", "c"), ("DELETED", "c")]


def test_each_request_is_recorded_with_its_user_and_its_status(kube):
    core = kubernetes.client.CoreV1Api(kube.user("ann"))
    with refused(403):
        core.list_namespaced_pod(kube.namespace, limit=3)
    kube.core.list_namespaced_pod(kube.namespace)
    url = f"{kube.emulator.url}/_emulator/kubernetes/calls"
    with httpx.Client(trust_env=False) as http:
        found = http.get(url, params={"host": "ann", "path": ".*/pods.*"}).json()
        assert len(http.get(url).json()) == 2
        assert http.get(url, params={"path": "("}).status_code == 400
    path = f"/api/v1/namespaces/{kube.namespace}/pods?limit=3"
    assert [(each["method"], each["path"], each["status"]) for each in found] == [("GET", path, 403)]


def test_what_is_installed_can_be_listed(kube):
    extensions = kubernetes.client.ApiextensionsV1Api(kube.client)
    names = {each.metadata.name for each in extensions.list_custom_resource_definition().items}
    assert {"pytorchjobs.kubeflow.org", "trainjobs.trainer.kubeflow.org"} <= names
    groups = {group.name for group in kubernetes.client.ApisApi(kube.client).get_api_versions().groups}
    assert {"kubeflow.org", "trainer.kubeflow.org", "batch"} <= groups
