"""What becomes of a connection of Airflow's type `kubernetes`: the cluster that Airflow's own hook finds by it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook

from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.hooks import OciHook
from tests.backends.kubernetes.test_names import drawn

TOKENS = {"one": "t0ken-of-the-first", "two": "t0ken-of-the-second"}


def a_kube_config() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [
            {"name": name, "cluster": {"server": f"https://{name}.example:6443"}} for name in TOKENS
        ],
        "users": [{"name": name, "user": {"token": token}} for name, token in TOKENS.items()],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": name, "namespace": f"of-{name}"}}
            for name in TOKENS
        ],
    }


def drawn_extra(draw: random.Random, folder: Path) -> dict[str, Any]:
    """Return the extra of a connection in one of the forms that Airflow's provider reads."""
    path = folder / "config"
    path.write_text(json.dumps(a_kube_config()))
    extra: dict[str, Any] = draw.choice(
        [
            {},
            {"kube_config_path": str(path)},
            {"kube_config": json.dumps(a_kube_config())},
            {"kube_config": a_kube_config()},
        ]
    )
    if draw.random() < 0.5:
        extra["cluster_context"] = draw.choice(sorted(TOKENS))
    if draw.random() < 0.5:
        extra["namespace"] = "mine"
    if draw.random() < 0.3:
        extra["disable_verify_ssl"] = draw.choice([True, False])
    prefixed = draw.random() < 0.3
    return {f"extra__kubernetes__{name}": value for name, value in extra.items()} if prefixed else extra


def test_the_same_fields_lead_to_the_cluster_that_airflows_hook_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = drawn()
    default = tmp_path / "default"
    default.write_text(json.dumps(a_kube_config()))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(default))
    for _ in range(20):
        extra = drawn_extra(draw, tmp_path)
        monkeypatch.setenv("AIRFLOW_CONN_TRIED", json.dumps({"conn_type": "kubernetes", "extra": extra}))
        theirs = KubernetesHook("tried").get_conn().configuration
        api = OciHook("tried").backend("pytorchjob")._api
        ours = api._connected().configuration
        for name in ("host", "api_key", "verify_ssl"):
            assert getattr(ours, name) == getattr(theirs, name), (name, extra)
        if (namespace := KubernetesHook("tried").get_namespace()) is not None:
            assert api.namespace() == namespace


def test_a_connection_that_nobody_made_is_the_cluster_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = tmp_path / "default"
    default.write_text(json.dumps(a_kube_config()))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(default))
    for conn_id in ("kubernetes_default", "oci_default"):
        monkeypatch.delenv(f"AIRFLOW_CONN_{conn_id.upper()}", raising=False)
        backend = OciHook(conn_id, kind="pytorchjob").backend()
        assert backend._api._connected().configuration.host == "https://one.example:6443"
        assert backend._api.namespace() == "of-one"
        # A command that names it would fail: nobody made it.
        assert backend.connections is not None
        assert backend.connections.named is None


def test_a_connection_that_somebody_made_is_named_though_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_TEAM_A", json.dumps({"conn_type": "oci"}))
    backend = OciHook("team_a").backend()
    assert backend.connections is not None
    assert backend.connections.named == "team_a"


def test_another_connection_may_open_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = {
        "auth": "config_file",
        "profile": "STORE",
        "work_dir": "oci://bucket@ns/ocidist",
        "region": "x",
    }
    cluster = {"kube_config": a_kube_config(), "storage_conn_id": "store", "namespace": "mine"}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "oci", "extra": storage}))
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", json.dumps({"conn_type": "kubernetes", "extra": cluster}))
    hook = OciHook("tried", kind="pytorchjob")
    assert hook.access.profile == "STORE"
    assert hook.uri("x") == "oci://bucket@ns/ocidist/x"
    assert hook.backend()._api.namespace() == "mine"


def test_two_sources_of_a_kubeconfig_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"kube_config": a_kube_config(), "kube_config_path": "/x"}
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", json.dumps({"conn_type": "kubernetes", "extra": both}))
    api = OciHook("tried").backend("pytorchjob")._api
    with pytest.raises(BackendError, match="exclude one another"):
        api.ready()


def test_tokens_and_keys_of_a_kubeconfig_are_secrets() -> None:
    from airflow_provider_ocidist.backends.connection_fields import secrets_of

    for form in (a_kube_config(), json.dumps(a_kube_config())):
        assert set(TOKENS.values()) <= set(secrets_of({"kube_config": form}))


def test_a_kubeconfig_that_cannot_be_read_is_a_secret_as_a_whole() -> None:
    from airflow_provider_ocidist.backends.connection_fields import secrets_of

    for odd in ("token: [", "token: !!bool maybe", "at: !!timestamp soon", "x: !!int ''"):
        assert secrets_of({"kube_config": odd}) == [odd]
