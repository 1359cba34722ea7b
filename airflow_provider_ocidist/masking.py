"""What may be shown of a job or a request: secrets masked by the names that they bear. No Airflow."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

MASK = "***"
SHORTEST = 5
"""Characters; a shorter value is masked under its own name, but not wherever else it occurs. As Airflow does it."""
REFERENCES = ("ocid1.", "{{", "oci://")
"""How a value begins that only names a secret, as an OCID of Vault does, or is none yet."""
_TELLING = re.compile(
    r"passw|pass_?phrase|passcode|secret|credential|auth_?header|key_content"
    r"|(api|access|account|encryption|private|signing|ssh|storage)_?key"
)
_WORDS = frozenset({"auth", "bearer", "dsn", "jwt", "pat", "pwd", "pw", "sig", "signature", "token"})
_FLAG = re.compile(r"^--?([A-Za-z][\w.-]*)(=(.*))?$", re.DOTALL)
_PREAUTHENTICATED = re.compile(r"/p/([^/]+)/n/")
"""As Object Storage writes the address of a pre-authenticated request: /p/TOKEN/n/NAMESPACE/b/BUCKET/o/NAME."""


def is_secret_name(name: str) -> bool:
    """Return whether what bears this name is probably a secret: `DB_PASSWORD`, `--hf-token`, `apiKey`."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name.rpartition(".")[2]).replace("-", "_").lower()
    return bool(_TELLING.search(words)) or not _WORDS.isdisjoint(words.split("_"))


def masked(value: Any) -> Any:
    """Return the same tree of mappings and lists with its secrets masked, also where they occur a second time."""
    return without(_masked(value), secrets_in(value))


def secrets_in(value: Any) -> set[str]:
    """Return the secrets themselves that a tree of mappings and lists holds, for whoever keeps them from logs."""
    return {secret for secret in _secrets(value) if len(secret) >= SHORTEST}


def _masked(value: Any) -> Any:
    match value:
        case Mapping():
            return {name: MASK if _is_secret(name, item) else _masked(item) for name, item in value.items()}
        case list() | tuple():
            return [MASK if hidden else _masked(item) for item, hidden in _arguments(value)]
        case str():
            return _masked_text(value)
    return value


def _masked_text(text: str) -> str:
    held = _json_in(text)
    if held is not None:
        return json.dumps(_masked(held), separators=(",", ":"), ensure_ascii=False)
    for secret in _secrets_of_text(text):
        text = text.replace(secret, MASK)
    return text


def without(value: Any, secrets: Collection[str]) -> Any:
    """Return the same tree with these secrets masked wherever they occur."""
    return _without(value, sorted(secrets, key=len, reverse=True)) if secrets else value


def _without(value: Any, secrets: Sequence[str]) -> Any:
    match value:
        case Mapping():
            return {name: _without(item, secrets) for name, item in value.items()}
        case list():
            return [_without(item, secrets) for item in value]
        case str():
            for secret in secrets:
                # JSON inside a text writes some characters in its own way.
                value = value.replace(secret, MASK).replace(json.dumps(secret)[1:-1], MASK)
    return value


def _secrets(value: Any) -> Iterator[str]:
    match value:
        case Mapping():
            for name, item in value.items():
                if _is_secret(name, item):
                    yield str(item)
                else:
                    yield from _secrets(item)
        case list() | tuple():
            for item, hidden in _arguments(value):
                yield from (str(item),) if hidden else _secrets(item)
        case str():
            yield from _secrets_of_text(value)


def _is_secret(name: Any, item: Any) -> bool:
    holds_text = isinstance(item, str) and item not in ("", MASK) and not item.startswith(REFERENCES)
    return holds_text and is_secret_name(str(name))


def _arguments(values: Sequence[Any]) -> Iterator[tuple[Any, bool]]:
    """Go through a list; say of each item whether it is the value of a flag that is named like a secret."""
    flag = None
    for item in values:
        match = _FLAG.match(item) if isinstance(item, str) else None
        yield item, flag is not None and match is None and _is_secret(flag, item)
        flag = match[1] if match and not match[2] else None


def _secrets_of_text(text: str) -> Iterator[str]:
    held = _json_in(text)
    if held is not None:
        yield from _secrets(held)
    elif (flag := _FLAG.match(text)) and flag[2] and _is_secret(flag[1], flag[3]):
        yield flag[3]
    elif "://" in text:
        yield from _secrets_of_url(text)


def _json_in(text: str) -> Any:
    """Return what a text holds as JSON; None where it holds no object or list."""
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _secrets_of_url(text: str) -> Iterator[str]:
    try:
        url = urlsplit(text)
    except ValueError:
        return
    # What is before the @ is the bucket in an address of OCI; alone, it may as well be a token.
    if url.scheme != "oci" and (secret := url.netloc.rpartition("@")[0].rpartition(":")[2]) not in (
        "",
        "git",
    ):
        yield secret
    if url.scheme in ("http", "https") and (found := _PREAUTHENTICATED.match(url.path)):
        yield found[1]
    # A query often is a signature; the whole of it goes, since its parts have many names.
    if url.query and url.scheme in ("http", "https"):
        yield url.query
