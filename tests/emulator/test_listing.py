"""Lists of objects: against a plain model of what the reference says, and at size."""

from __future__ import annotations

import random
import time

import oci
import pytest

from airflow_provider_ocidist.emulator.object_storage.index import ListParameters, NameIndex
from tests.emulator.test_object_storage import refusal

LETTERS = "ab/é\U0010ffff"
"""With the last that there is."""
NAMES = sorted({"".join(random.Random(seed).choices(LETTERS, k=seed % 6 + 1)) for seed in range(400)})


def expected(wanted: ListParameters) -> tuple[list[str], list[str]]:
    """Return all names and prefixes, by looking at each name."""
    fitting = [
        name
        for name in NAMES
        if name.startswith(wanted.prefix)
        and name >= wanted.start
        and (wanted.end is None or name < wanted.end)
        and (wanted.start_after is None or name > wanted.start_after)
    ]
    if wanted.delimiter is None:
        return fitting, []
    deeper = [name for name in fitting if "/" in name[len(wanted.prefix) :]]
    cuts = [name[: name.index("/", len(wanted.prefix)) + 1] for name in deeper]
    return [name for name in fitting if name not in deeper], sorted(set(cuts))


@pytest.mark.parametrize("prefix", ["", "a", "b/", "é", "zz", "\U0010ffff", "a\U0010ffff", "\U0010ffff/"])
@pytest.mark.parametrize("delimiter", [None, "/"])
@pytest.mark.parametrize(
    "more", [{}, {"start": "ab"}, {"end": "b/a"}, {"start_after": "b"}, {"start": "a/", "end": "é"}]
)
def test_pages_together_are_what_was_asked_for(prefix, delimiter, more):
    index = NameIndex(NAMES)
    names, prefixes = expected(ListParameters(prefix=prefix, delimiter=delimiter, **more))
    found_names, found_prefixes, start = [], [], more.get("start", "")
    while start is not None:
        asked = ListParameters(
            **{**more, "prefix": prefix, "delimiter": delimiter, "limit": 7, "start": start}
        )
        page = index.list(asked)
        assert len(page.names) + len(page.prefixes) <= 7
        found_names += page.names
        found_prefixes += page.prefixes
        assert page.next_start is None or page.next_start > start
        start = page.next_start
    assert (found_names, found_prefixes) == (names, prefixes)


def test_a_late_page_of_a_million_names_is_as_quick_as_the_first():
    index = NameIndex(f"{number:07}" for number in range(1_000_000))
    started = time.process_time()
    for number in range(100):
        assert len(index.list(ListParameters(start=f"{number * 9_000:07}")).names) == 1000
        assert len(index.list(ListParameters(prefix=f"{number:03}", delimiter="/")).names) == 1000
    assert time.process_time() - started < 2


def test_fields_are_named_in_any_case_and_only_known_ones(cloud):
    cloud.objects.put_object(*cloud.place, "o", b"hello")
    entry = cloud.objects.list_objects(*cloud.place, fields="SIZE, timecreated").data.objects[0]
    assert (entry.name, entry.size, entry.etag) == ("o", 5, None)
    assert entry.time_created is not None
    assert refusal(cloud.objects.list_objects, *cloud.place, fields="colour")[0] == 400
    assert refusal(cloud.objects.list_objects, *cloud.place, delimiter="-")[0] == 400


def test_each_object_has_one_version(cloud):
    for name in ("a/1", "a/2", "b"):
        cloud.objects.put_object(*cloud.place, name, b"hello")
    listed = cloud.objects.list_object_versions
    first = listed(*cloud.place, limit=2, fields="size")
    second = listed(*cloud.place, limit=2, page=first.next_page)
    assert [each.name for each in first.data.items + second.data.items] == ["a/1", "a/2", "b"]
    version = first.data.items[0]
    assert (version.size, version.is_delete_marker) == (5, False)
    assert listed(*cloud.place, delimiter="/").data.prefixes == ["a/"]
    got = cloud.objects.get_object(*cloud.place, "a/1", version_id=version.version_id)
    assert got.data.content == b"hello"
    wrong = refusal(cloud.objects.get_object, *cloud.place, "a/1", version_id="other")
    assert wrong == (404, "ObjectNotFound")
    assert refusal(cloud.objects.delete_object, *cloud.place, "a/1", version_id="other")[0] == 404


def test_every_page_is_found_by_the_sdk(cloud):
    for number in range(25):
        cloud.objects.put_object(*cloud.place, f"d{number % 5}/{number:02}", b"")
    listed = oci.pagination.list_call_get_all_results(
        cloud.objects.list_objects, *cloud.place, delimiter="/", limit=2
    )
    assert sorted(listed.data.prefixes) == [f"d{number}/" for number in range(5)]


def test_an_empty_bucket_has_an_empty_list(cloud):
    listed = cloud.objects.list_objects(*cloud.place, delimiter="/").data
    assert (listed.objects, listed.prefixes, listed.next_start_with) == ([], [], None)
