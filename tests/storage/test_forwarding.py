"""A store that leaves everything to another: nothing that the other has is answered by `Store` itself."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.share.shared_store import SharedStore
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.forwarding import ForwardingStore
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.work_dir.bounded_store import BoundedStore, UnansweredCalls

OWN = {"as_source"}
"""What a forwarding store answers itself: it is the source already."""


def methods(of: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")}


def test_every_method_of_a_store_is_forwarded() -> None:
    forwarded = {name for name in vars(ForwardingStore) if not name.startswith("_")}
    assert methods(Store) - forwarded == OWN


class Noted(Store):
    """Notes each call that reaches it, and answers each with something of its own."""

    uri, streams, skipped, folder = "x://there", True, ("link",), Path("/there")

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.answers: list[object] = []


def _noting(name: str) -> Any:
    def call(store: Noted, *given: Any) -> object:
        store.calls.append((name, given))
        store.answers.append(object())
        return store.answers[-1]

    return call


for _name in methods(Store) - OWN:
    setattr(Noted, _name, _noting(_name))
Noted.__abstractmethods__ = frozenset()


@pytest.mark.parametrize("kept", ["all", "what is required"])
@pytest.mark.parametrize("name", sorted(methods(Store) - OWN))
def test_each_call_reaches_the_other_store_as_it_was_made_and_its_answer_comes_back(
    name: str, kept: str
) -> None:
    there = Noted()
    store = ForwardingStore(there)
    assert (store.uri, store.streams, store.skipped, store.folder) == (
        there.uri,
        there.streams,
        there.skipped,
        there.folder,
    )
    _, *parameters = inspect.signature(getattr(Store, name)).parameters.values()
    given = [object() for each in parameters if kept == "all" or each.default is each.empty]
    answer = getattr(store, name)(*given)
    defaults = [each.default for each in parameters[len(given) :]]
    assert there.calls == [(name, (*given, *defaults))]
    # Some have nothing to answer.
    assert answer is (
        there.answers[0] if inspect.signature(getattr(Store, name)).return_annotation != "None" else None
    )


def test_whatever_waits_for_an_answer_ends_at_a_silent_place() -> None:
    # Large files are read and written without a limit, and nothing else may be.
    without_limit = {"upload", "download", "chunks", "checksum_by_reading", "take"}
    without_a_call = {"uri_of", "checksum", "part_size_for", "takes_from"}
    bounded = {name for name in vars(BoundedStore) if not name.startswith("_")}
    assert methods(Store) - bounded == OWN | without_limit | without_a_call


def test_what_the_last_list_left_out_is_known_behind_a_forwarding_store(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "link").symlink_to("/")
    for store in (
        ForwardingStore(LocalStore(tmp_path)),
        BoundedStore(LocalStore(tmp_path), UnansweredCalls()),
    ):
        assert [entry.name for entry in store.list()] == ["a"]
        assert store.skipped == ("link",)


def test_a_condition_of_a_write_holds_behind_a_forwarding_store(tmp_path: Path) -> None:
    store = ForwardingStore(LocalStore(tmp_path))
    assert store.write_if("a", b"1", None)
    assert not store.write_if("a", b"2", None)
    assert store.read("a") == b"1"
    assert store.exists("a")


def test_the_shared_store_is_one() -> None:
    assert issubclass(SharedStore, ForwardingStore)
