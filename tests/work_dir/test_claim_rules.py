"""A claim: which try has a gang, also when another try writes at the same time."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.model.work_dir import CLAIM_FILE
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.claims import claim_gang, claimed_by

PREFIX = "run/"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path.as_uri())


class Busy:
    """A store in which another try writes its own claim before each of ours."""

    def __init__(self, store: Store, others: list[int]) -> None:
        self._store, self._others = store, others
        self.stat, self.read, self.uri_of, self.uri = store.stat, store.read, store.uri_of, store.uri
        self.writes = 0

    def write_if(self, name: str, data: bytes, etag: str | None) -> bool:
        self.writes += 1
        if self._others:
            self._store.write(name, str(self._others.pop(0)).encode())
        return self._store.write_if(name, data, etag)


def test_a_try_that_has_a_gang_already_writes_nothing(store: Store) -> None:
    assert claim_gang(store, PREFIX, 2) == 2
    busy = Busy(store, [])
    assert claim_gang(busy, PREFIX, 2) == 2  # type: ignore[arg-type]  # has what a claim asks of a store
    assert busy.writes == 0


def test_an_earlier_try_learns_who_has_the_gang(store: Store) -> None:
    claim_gang(store, PREFIX, 3)
    assert claim_gang(store, PREFIX, 2) == 3
    assert claimed_by(store, PREFIX) == 3


def test_an_earlier_try_learns_it_also_at_a_place_that_gives_no_etags() -> None:
    """As those of `sftp://` and `webhdfs://`."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    claim_gang(store, PREFIX, 3)
    assert [entry.etag for entry in store.list()] == [None]
    assert claim_gang(store, PREFIX, 2) == 3
    assert claimed_by(store, PREFIX) == 3


def test_a_later_try_takes_the_gang_from_one_that_writes_at_the_same_time(store: Store) -> None:
    assert claim_gang(Busy(store, [2, 3]), PREFIX, 4) == 4  # type: ignore[arg-type]  # has what a claim asks of a store
    assert claimed_by(store, PREFIX) == 4


def test_a_try_that_is_overtaken_as_it_writes_says_so(store: Store) -> None:
    assert claim_gang(Busy(store, [5]), PREFIX, 4) == 5  # type: ignore[arg-type]  # has what a claim asks of a store
    assert claimed_by(store, PREFIX) == 5


def test_a_claim_that_changes_all_the_time_may_be_tried_again(store: Store) -> None:
    busy = Busy(store, list(range(1, 60)))
    with pytest.raises(StorageError) as raised:
        claim_gang(busy, PREFIX, 100)  # type: ignore[arg-type]  # has what a claim asks of a store
    assert busy.writes == 20
    assert raised.value.retryable is True
    assert raised.value.uri == store.uri
    assert str(raised.value).startswith(f"{store.uri_of(PREFIX + CLAIM_FILE)} keeps changing")


def test_the_first_claim_of_a_first_try_is_written_and_reads_no_claim_that_is_not_there(store: Store) -> None:
    busy = Busy(store, [])
    busy.read = lambda name: pytest.fail(f"{name} is read")
    assert claim_gang(busy, PREFIX, 1) == 1  # type: ignore[arg-type]  # has what a claim asks of a store
    assert claimed_by(store, PREFIX) == 1
