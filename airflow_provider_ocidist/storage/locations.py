"""Locations of data: a local path, `oci://bucket@namespace/path`, or any other fsspec URI."""

from __future__ import annotations

import itertools
import os
import re
import secrets
from dataclasses import field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import StorageError, Unopenable


@dataclass(frozen=True, kw_only=True)
class Location:
    """A file or folder somewhere."""

    kind: Literal["local", "oci", "fsspec"]
    uri: str
    """URI as written, without slashes at the end."""
    path: str
    """Local path, object name, or (fsspec) the whole URI; without slashes at the end."""
    is_folder: bool
    """Whether it was written with a slash at the end."""
    bucket: str = ""
    namespace: str | None = None
    """Namespace of the bucket; None: that of the credentials' tenancy."""
    query: str = field(default="", repr=False)
    """Query of a web address, with its `?`; often a secret, so it is no part of `uri`."""

    @property
    def is_web(self) -> bool:
        return self.uri.startswith(("http://", "https://"))

    @property
    def is_local_folder(self) -> bool:
        """Whether a folder of this machine is there now."""
        return self.kind == "local" and Path(self.path).is_dir()

    @property
    def name(self) -> str:
        """The last part of the path; empty for a whole bucket or web server."""
        if self.is_web and "/" not in self.path.partition("://")[2]:
            return ""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> str:
        """The URI of the folder that holds it."""
        return self.uri[: len(self.uri) - len(self.name)] or ("/" if self.uri.startswith("/") else ".")


def parse(uri: str) -> Location:
    """Return the location that a URI or local path names. Raises Unopenable when it names none."""
    text = os.fspath(uri)
    if not text:
        raise Unopenable("an empty string names no place", uri=text)
    if "\0" in text:
        raise Unopenable(f"{text!r} does not name a place: it contains a NUL character", uri=text)
    scheme, separator, rest = text.partition("://")
    if not separator and (misspelt := _MISSPELT.match(text)):
        raise Unopenable(f"{text} names no place: write {misspelt[1]}://", uri=text)
    # fsspec has two names for this machine; its driver would follow links that lead anywhere.
    if not separator or scheme in ("file", "local"):
        return _local(rest if separator else text)
    if scheme == "oci":
        return _oci(text, rest)
    question = len(text)
    if scheme in ("http", "https"):
        _require_address(text)
        question = min(text.find(mark) if mark in text else question for mark in "?#")
    written, query = text[:question], text[question:].partition("#")[0]
    bare = written.rstrip("/")
    return Location(kind="fsspec", uri=bare, path=bare, is_folder=written.endswith("/"), query=query)


def _require_address(text: str) -> None:
    """Raise Unopenable for a web address without a host, or with a port that is none."""
    # The words of Python's errors may contain a password that has a mark of addresses in it.
    what = "it is no address"
    try:
        parts = urlsplit(text)
        what = "its port is no number up to 65535; in a password, write / as %2F, # as %23, ? as %3F"
        _ = parts.port
        what = "it has no host"
        if parts.hostname:
            return
    except ValueError:
        pass
    raise Unopenable(f"{shown(text)} names no place: {what}", uri=text)


def join(uri: str, *parts: str) -> str:
    """Return the URI of something below a folder."""
    pieces = [part.strip("/") for part in parts if part.strip("/")]
    root = uri.rstrip("/") or ("/" if uri.startswith("/") and not pieces else "")
    return "/".join([root, *pieces])


def shown(uri: str) -> str:
    """Return a URI without secrets.

    That is, of a web address: its query, a user before `@`, the token of a pre-authenticated request (`/p/TOKEN/`).
    """
    uri = UNESCAPED_USER.sub(r"\1", uri)
    return (
        WEB_TOKEN.sub(r"\1***", WEB_USER.sub(r"\1", re.split("[?#]", uri)[0])) if WEB_USER.match(uri) else uri
    )


def shown_in(text: str) -> str:
    """Return a text with every web address in it as `shown` returns one."""
    return WEB_ADDRESS.sub(lambda found: shown(found[0]), text)


WEB_USER = re.compile(r"((?:https?|ftp)://)(?:[^/\s]*@)?")
UNESCAPED_USER = re.compile(r"^((?:https?|ftp)://)[^/?#@\s\[]*:(?!\d*(?:[/?#]|$))\S*@")
"""User whose password may have a mark in it with which a host ends: then the host is what follows the last `@`."""
WEB_TOKEN = re.compile(r"(://[^/\s]+/p/)[^/\s]+")
"""Token in an address of Object Storage: https://HOST/p/TOKEN/n/NAMESPACE/b/BUCKET/o/NAME."""
WEB_ADDRESS = re.compile(r"(?:https?|ftp)://[^\s'\"<>]+")


_OUTSIDE = frozenset({"", ".", ".."})
"""Parts of a name by which it may leave its folder."""


def safe_name(name: str) -> str:
    """Return the relative name if it stays inside its folder on any store, else raise StorageError."""
    if not name or "\0" in name or not _OUTSIDE.isdisjoint(name.split("/")):
        raise StorageError(f"refused the name {name!r}: it is empty, or does not stay inside its folder")
    return name


def text_name(name: str) -> str:
    """Return a name that is text, as all places but local folders need it, else raise StorageError."""
    if not is_text(name):
        raise StorageError(f"refused the name {name!r}: it is not UTF-8, and only a local folder holds it")
    return name


def is_text(name: str) -> bool:
    """Return whether a name can be written as UTF-8; a file may have any bytes for its name."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def unfinished_name(name: str, key: str | None = None) -> str:
    """Return a name in the same folder for an unfinished file; no store lists such names.

    With `key`, eight hexadecimal digits, a later attempt finds it again.
    """
    return f".{name[:40]}.{key or _next_key()}.part"


def finished_name(unfinished: str) -> str:
    """Return an unfinished file's final name; of long names, the beginning."""
    folder, slash, name = unfinished.rpartition("/")
    return folder + slash + name[1:].rpartition(".")[0].rpartition(".")[0]


_numbers = itertools.count(secrets.randbits(32))


def _next_key() -> str:
    """Return eight unique digits, without a system call: each small file needs them."""
    # A forked process continues the same sequence.
    return f"{(next(_numbers) + os.getpid() * 2_654_435_761) % 2**32:08x}"


def is_partial_file(name: str) -> bool:
    return _UNFINISHED.fullmatch(name.rpartition("/")[2]) is not None


_UNFINISHED = re.compile(r"\..*\.[0-9a-f]{8}\.part", re.DOTALL)


_MISSPELT = re.compile(r"(oci|s3a?|gs|gcs|az|abfss?|https?):/?[^/]")
"""Misspelt URIs, which would name a folder of this machine."""


def _local(path: str) -> Location:
    expanded = path
    if path.startswith("~"):
        try:
            expanded = str(Path(path).expanduser())
        except RuntimeError as error:
            raise Unopenable(
                f"{path} names no place: there is no user of that name here; write ./~ for a name that begins so",
                uri=path,
            ) from error
    bare = expanded.rstrip("/") or "/"
    is_folder = path.endswith("/") or bare.rpartition("/")[2] in (".", "..")
    return Location(kind="local", uri=bare, path=bare, is_folder=is_folder)


def _oci(text: str, rest: str) -> Location:
    place, _, path = rest.partition("/")
    bucket, _, namespace = place.partition("@")
    if not bucket:
        raise Unopenable(f"{text} names no bucket: write oci://bucket@namespace/path", uri=text)
    return Location(
        kind="oci",
        uri=text.rstrip("/"),
        path=path.strip("/"),
        is_folder=not path.strip("/") or path.endswith("/"),
        bucket=bucket,
        namespace=namespace or None,
    )
