"""Locations are distinguished by their text alone."""

from __future__ import annotations

import contextlib
import os
from random import Random

import pytest

from airflow_provider_ocidist.errors import StorageError, Unopenable
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
    assert (place.bucket, place.namespace) == ("", None)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "oci://",
        "oci:///a",
        "oci://@ns/a",
        "http:///x",
        "http://",
        "https://host:port/x",
        "http://h:99999/x",
    ],
)
def test_a_uri_that_names_no_place_is_refused(uri):
    with pytest.raises(StorageError):
        locations.parse(uri)


@pytest.mark.parametrize(
    "uri, parts, joined",
    [
        ("oci://b@ns", ("a", "b"), "oci://b@ns/a/b"),
        ("oci://b@ns/x/", ("/a/", "", "b"), "oci://b@ns/x/a/b"),
        ("oci://b@ns/x", ("/", "a"), "oci://b@ns/x/a"),
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


def test_what_no_place_is_says_why_and_names_what_was_written():
    for uri, why in (
        ("", "an empty string names no place"),
        ("a\0b", "'a\\x00b' does not name a place: it contains a NUL character"),
        ("oci:///a", "oci:///a names no bucket: write oci://bucket@namespace/path"),
    ):
        with pytest.raises(Unopenable) as caught:
            locations.parse(uri)
        assert (str(caught.value), caught.value.uri) == (why, uri)


@pytest.mark.parametrize("scheme", ["oci", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "http", "https"])
def test_a_misspelt_uri_is_no_folder_of_this_machine(scheme):
    for misspelt in (f"{scheme}:/bucket/x", f"{scheme}:bucket/x"):
        with pytest.raises(Unopenable, match=f"^{misspelt} names no place: write {scheme}://$") as caught:
            locations.parse(misspelt)
        assert caught.value.uri == misspelt
    for folder in (f"{scheme}", f"{scheme}:", f"x{scheme}:/bucket", f"{scheme}x:/bucket"):
        assert locations.parse(folder).kind == "local"


def test_the_uri_is_as_written_without_slashes_at_its_end():
    for uri in ("oci://b@ns/a/", "oci://b@ns/X/X", "oci://b@ns", "/data/x/", "data//", "memory://a/b/"):
        assert locations.parse(uri).uri == uri.rstrip("/")
    assert locations.parse("file:///data/x/").uri == "/data/x"


def test_the_home_folder_is_written_out(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    place = locations.parse("~/x/")
    assert (place.uri, place.path, place.is_folder) == (f"{tmp_path}/x", f"{tmp_path}/x", True)
    assert locations.parse("a/~/x").path == "a/~/x"


@pytest.mark.parametrize("uri", ["..", "a/..", "a/.", "./"])
def test_dots_at_the_end_name_a_folder(uri):
    assert locations.parse(uri).is_folder
    assert not locations.parse("a/...").is_folder


def test_a_local_folder_is_there_or_not(tmp_path):
    (tmp_path / "x").write_text("a file")
    assert locations.parse(str(tmp_path)).is_local_folder
    assert not locations.parse(str(tmp_path / "x")).is_local_folder
    assert not locations.parse(str(tmp_path / "missing")).is_local_folder
    assert not locations.parse("oci://b@ns/").is_local_folder


@pytest.mark.parametrize(
    "uri, path, query, name, parent",
    [
        (
            "https://host/a/x.zip?key=secret",
            "https://host/a/x.zip",
            "?key=secret",
            "x.zip",
            "https://host/a/",
        ),
        ("http://host/x#part", "http://host/x", "", "x", "http://host/"),
        ("https://host/x?a=1#part?b", "https://host/x", "?a=1", "x", "https://host/"),
        ("https://host/x#part?b", "https://host/x", "", "x", "https://host/"),
        ("https://host", "https://host", "", "", "https://host"),
        ("https://host/?a=1", "https://host", "?a=1", "", "https://host"),
    ],
)
def test_a_web_address_is_read_without_its_query_which_may_be_a_secret(uri, path, query, name, parent):
    place = locations.parse(uri)
    assert (place.kind, place.uri, place.path, place.query) == ("fsspec", path, path, query)
    assert (place.name, place.parent) == (name, parent)
    assert place.is_web
    assert "secret" not in repr(place)


@pytest.mark.parametrize("uri", ["memory://a/x?y", "s3://bucket/x#y"])
def test_in_other_stores_marks_of_a_query_belong_to_the_name(uri):
    place = locations.parse(uri)
    assert (place.path, place.query, place.is_web) == (uri, "", False)


def test_of_a_bucket_or_of_the_root_there_is_no_name():
    assert [locations.parse(uri).name for uri in ("oci://b@ns", "/", "memory://a")] == ["", "", "a"]
    assert locations.parse("oci://b@ns").parent == "oci://b@ns"
    assert locations.parse("/").parent == "/"


@pytest.mark.parametrize(
    "uri, shown",
    [
        ("https://user:pw@host/x", "https://host/x"),
        ("http://host/x?key=secret#more", "http://host/x"),
        ("http://host/x#secret", "http://host/x"),
        ("ftp://user@host/x", "ftp://host/x"),
        ("https://host/p/TOKEN/n/ns/b/bucket/o/x", "https://host/p/***/n/ns/b/bucket/o/x"),
        ("https://user@host/p/TOKEN/n", "https://host/p/***/n"),
        ("https://host/x/p/y", "https://host/x/p/y"),
        ("oci://b@ns/a?b", "oci://b@ns/a?b"),
        ("/data/x?y#z", "/data/x?y#z"),
    ],
)
def test_what_is_shown_of_a_place_holds_no_secret(uri, shown):
    assert locations.shown(uri) == shown
    text = f"cannot read '{uri}', nor <{uri}>: see {uri}"
    if "://" in shown and not shown.startswith("oci:"):
        assert locations.shown_in(text) == f"cannot read '{shown}', nor <{shown}>: see {shown}"
    else:
        assert locations.shown_in(text) == text


def test_a_name_that_is_refused_is_named():
    with pytest.raises(
        StorageError, match=r"refused the name '\.\./x': it is empty, or does not stay inside"
    ):
        locations.safe_name("../x")
    odd = os.fsdecode(b"a-\xff")
    assert not locations.is_text(odd)
    with pytest.raises(StorageError, match=r"refused the name .*: it is not UTF-8, and only a local folder"):
        locations.text_name(odd)
    for name in ("a", "ü", "名"):
        assert locations.is_text(name)
        assert locations.text_name(name) == name


def test_an_unfinished_name_may_be_found_again_and_contains_the_final_one():
    assert locations.unfinished_name("x.bin", "0a1b2c3d") == ".x.bin.0a1b2c3d.part"
    assert locations.finished_name("folder/.x.bin.0a1b2c3d.part") == "folder/x.bin"
    assert locations.finished_name(".x.bin.0a1b2c3d.part") == "x.bin"
    made = [locations.unfinished_name("y" * 60) for _ in range(100)]
    assert len({*made}) == 100
    assert {locations.finished_name(each) for each in made} == {"y" * 40}


@pytest.mark.parametrize(
    "name", ["x.0a1b2c3d.part", ".x.0a1b2c3.part", ".x.0a1b2c3g.part", ".x.0a1b2c3d.part.bin", ".x.part"]
)
def test_names_that_programs_give_are_not_taken_for_unfinished_ones(name):
    assert not locations.is_partial_file(name)
    assert not locations.is_partial_file(f".x.0a1b2c3d.part/{name}")


@pytest.mark.parametrize("text", ["~nobody-here/x", "~nobody-here", "http://[::1/x", "file://~nobody-here"])
def test_a_place_that_can_never_be_is_named_as_such(text: str) -> None:
    with pytest.raises(Unopenable, match="names no place: "):
        locations.parse(text)


@pytest.mark.parametrize("seed", range(40))
def test_no_password_in_a_web_address_is_shown_that_has_marks_of_addresses_in_it(seed: int) -> None:
    chance = Random(seed)
    marks = [chance.choice(["/", "#", "?", ":", "%2F", "@", "-"]) for _ in range(chance.randint(1, 4))]
    words = [f"word{number}x" for number in range(len(marks) + 1)]
    password = "".join(word + mark for word, mark in zip(words, [*marks, ""], strict=True))
    address = (
        f"{chance.choice(['https', 'http'])}://user:{password}@host/{chance.choice(['data', 'a@b', ''])}"
    )
    shown = locations.shown(address)
    with contextlib.suppress(Unopenable):
        locations.parse(address)
        address = ""
    said = ""
    if address:
        with pytest.raises(Unopenable) as caught:
            locations.parse(address)
        said = str(caught.value)
    assert not [word for word in words if word in shown + said], f"{address}: {shown}, {said}"


@pytest.mark.parametrize(
    "address", ["https://host:8080/a@b", "http://[::1]:80/a@b", "https://host/p@q/x:y@z", "https://host"]
)
def test_an_address_without_a_password_is_shown_whole(address: str) -> None:
    assert locations.shown(address) == address


def test_a_user_without_a_password_ends_before_the_host_whatever_the_path_has() -> None:
    assert locations.shown("https://me@host/data@v1/file") == "https://host/data@v1/file"
    assert locations.shown("https://me@host:80/a:b@c") == "https://host:80/a:b@c"
