"""Locations are told apart by their text alone."""

from __future__ import annotations

import pytest

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage import locations


@pytest.mark.parametrize(
    "uri, bucket, namespace, path, is_folder",
    [
        ("oci://b@ns/a/x.bin", "b", "ns", "a/x.bin", False),
        ("oci://b@ns/a/", "b", "ns", "a", True),
        ("oci://b/a", "b", None, "a", False),
        ("oci://b@ns", "b", "ns", "", True),
        ("oci://b@ns/", "b", "ns", "", True),
        ("oci://b@ns//a", "b", "ns", "a", False),
    ],
)
def test_oci_uris_name_bucket_namespace_and_path(uri, bucket, namespace, path, is_folder):
    place = locations.parse(uri)
    assert (place.kind, place.bucket, place.namespace, place.path, place.is_folder) == (
        "oci",
        bucket,
        namespace,
        path,
        is_folder,
    )


@pytest.mark.parametrize(
    "uri, kind, path, is_folder",
    [
        ("/data/x", "local", "/data/x", False),
        ("data/", "local", "data", True),
        ("file:///data/x", "local", "/data/x", False),
        ("/", "local", "/", True),
        (".", "local", ".", True),
        ("memory://a/b/", "fsspec", "memory://a/b", True),
        ("https://host/x.zip", "fsspec", "https://host/x.zip", False),
    ],
)
def test_other_places_are_distinguished(uri, kind, path, is_folder):
    place = locations.parse(uri)
    assert (place.kind, place.path, place.is_folder) == (kind, path, is_folder)


@pytest.mark.parametrize("uri", ["", "oci://", "oci:///a", "oci://@ns/a"])
def test_a_uri_that_names_no_place_is_refused(uri):
    with pytest.raises(StorageError):
        locations.parse(uri)


@pytest.mark.parametrize(
    "uri, parts, joined",
    [
        ("oci://b@ns", ("a", "b"), "oci://b@ns/a/b"),
        ("oci://b@ns/x/", ("/a/", "", "b"), "oci://b@ns/x/a/b"),
        ("/x", ("y",), "/x/y"),
        ("/", ("y",), "/y"),
        ("/", (), "/"),
        ("x", (), "x"),
    ],
)
def test_join_puts_one_slash_between_parts(uri, parts, joined):
    assert locations.join(uri, *parts) == joined


def test_the_parent_of_a_file_holds_it():
    for uri in ("oci://b@ns/a/x", "oci://b@ns/x", "/a/x", "/x", "a/x", "memory://a/x"):
        place = locations.parse(uri)
        assert locations.join(place.parent, place.name) == uri
    assert locations.parse("x").parent == "."


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/", "a\0b", ".."])
def test_names_that_leave_their_folder_are_refused(name):
    with pytest.raises(StorageError, match="refused"):
        locations.safe_name(name)


@pytest.mark.parametrize("name", ["a", ".a", "...", "a b/c", "..a/b..", "ü"])
def test_odd_names_that_stay_inside_are_taken(name):
    assert locations.safe_name(name) == name


def test_unfinished_names_are_short_enough_and_recognised():
    for name in ("x", "ü" * 120, ".hidden", "two\nlines"):
        made = locations.unfinished_name(name)
        assert locations.is_partial_file(f"folder/{made}")
        assert len(made.encode()) <= 255
    assert not locations.is_partial_file("x.part")
