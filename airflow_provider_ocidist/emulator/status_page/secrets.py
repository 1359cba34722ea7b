"""What the page hides: values that are named like secrets, tokens that show their form, passwords in addresses."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from airflow_provider_ocidist.emulator.recorded_calls import hide_par

HIDDEN = "(hidden)"
SHORTEST = 5
"""Fewest characters of a secret that is hidden wherever it occurs, and not under its own name alone."""
_PARTS = (
    r"secret|passw|passphrase|credential|private|cookie|conn(?:ection)?_?str|webhook_url|authorization|apikey"
    r"|(?:api|access|account|auth|encryption|service|signing|ssh|storage|wandb|comet|neptune|client)[_-]?key"
)
_WORDS = r"token|pass|passwd|pwd|pw|pat|auth|creds?|dsn|jwt|bearer|sas|sig|signature"
_NAME = re.compile(
    rf"{_PARTS}|(?:^|[_.-])(?:{_WORDS})(?:$|[_.-](?:read|write|prod|dev|test|value)$|\d+$)", re.IGNORECASE
)
_CAPITAL_KEY = re.compile(r"[A-Z][A-Z0-9]*_KEY")
_NOT = re.compile(
    r"(?:^|[_.-])(?:pad|eos|bos|unk|mask|sep|cls|image|special|next|per|max|min|num|first|last)[_.-]token$"
    r"|(?:forward|backward|first|second|num)_pass$|ocidist_key$|(?:sort|primary|cache|public|foreign)_key$"
    r"|[_.-](?:file|path|dir|url|uri|name|type|mode|endpoint|host|user|sock|id)$",
    re.IGNORECASE,
)
_ORDINARY = re.compile(
    r"|true|false|none|null|yes|no|on|off|auto|\d{1,3}|(?:ocid1\.|oci://|\$|\{\{|<|/).*"
    r"|(?:api_key|basic|bearer|digest|(?:resource|instance|user|workload)_principal|session_token)",
    re.IGNORECASE | re.DOTALL,
)
"""Values that are no secrets under any name: references, paths, kinds of authentication."""
_ASSIGNED = re.compile(
    r"""(?<![\w.-])(?P<flag>--?|\+{1,2})?(?P<name>[A-Za-z_][\w.-]{0,80})(?:\\*["'])?(?P<sign>\s{0,2}[=:]\s{0,2}|\s{1,2})"""
    r"""(?:(?P<quote>\\*["'])(?P<quoted>.*?)(?P=quote)|(?P<bare>[^\s;&|<>()"'`]+))"""
)
_FORMATS = re.compile(
    r"(?<![A-Za-z0-9_-])(?:(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|hf_[A-Za-z0-9]{20,}|wandb_v\d_\w{20,}|sk-(?=[\w-]*\d)[\w-]{20,}|xox[abeoprs]-[\w-]{10,}|AIza[\w-]{35}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}|npm_[A-Za-z0-9]{30,}|dapi[0-9a-f]{32}|hvs\.[\w-]{20,})"
)
_KEY = re.compile(r"(?<=PRIVATE KEY-----).+?(?=-----END|$)", re.DOTALL)
_HEADER = re.compile(r"(?<=\b)((?:bearer|basic)\s+)(?=\S*\d)[\w.~+/=-]{8,}", re.IGNORECASE)
_CURL = re.compile(r"((?<!\S)(?:-u|--user)[ =][\"']?[^\s:\"']+:)(?!\d+\b)[^\s\"']+")
# What is before the @ is the bucket in an address of OCI. Looked back at its end, as a search finds `ci://` there, too.
_SCHEME = r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}(?<!(?<![A-Za-z])oci)://)"
_USER = re.compile(_SCHEME + r"(?P<user>[^\s/\"'<>?#]+)@")
_PASSWORD = re.compile(_SCHEME + r"(?P<user>[^\s/:@\"'\[]+:)(?!\d+/)(?P<rest>[^\s@\"']+)@")
_QUERY = re.compile(r"(https?://[^\s?\"'<>]+\?)[^\s\"'<>]+")


def is_secret(name: str, value: Any) -> bool:
    """Return whether what bears this name is a secret."""
    is_named_so = _NAME.search(name) or (_CAPITAL_KEY.fullmatch(name) and not _NOT.search(name))
    return (
        isinstance(value, str)
        and bool(is_named_so)
        and not _NOT.search(name)
        and not _ORDINARY.fullmatch(value)
    )


def hide(text: str, secrets: Collection[str] = ()) -> str:
    """Return a text without these secrets, and without secrets of a known form."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN).replace(json.dumps(secret)[1:-1], HIDDEN)
    for start, end in reversed(list(_assignments(text))):
        text = f"{text[:start]}{HIDDEN}{text[end:]}"
    text = _KEY.sub(HIDDEN, _FORMATS.sub(HIDDEN, text))
    text = _CURL.sub(rf"\1{HIDDEN}", _HEADER.sub(rf"\1{HIDDEN}", text))
    return hide_par(_PASSWORD.sub(rf"\g<scheme>\g<user>{HIDDEN}@", _USER.sub(_without_password, text)))


def hide_value(name: str, value: str, secrets: Collection[str] = ()) -> str:
    """Return the value of a setting as it may be shown."""
    return HIDDEN if is_secret(name, value) else hide(_QUERY.sub(rf"\1{HIDDEN}", value), secrets)


def secrets_in(value: Any) -> set[str]:
    """Return the secrets in the settings of a job, which its nodes may print."""
    return {each for each in _secrets(value) if len(each) >= SHORTEST}


def _secrets(value: Any, name: str = "") -> Iterator[str]:
    match value:
        case Mapping():
            for key, item in value.items():
                yield from _secrets(item, str(key))
        case list():
            for before, item in zip(["", *value], value, strict=False):
                if before in ("-u", "--user") and isinstance(item, str) and ":" in item:
                    yield item.partition(":")[2]
                named = isinstance(before, str) and before.startswith("-") and "=" not in before
                yield from _secrets(item, before.lstrip("-") if named else "")
        case str() if is_secret(name, value):
            yield value
        case str():
            yield from _in_text(value)


def _in_text(text: str) -> Iterator[str]:
    if text.startswith(("{", "[")):
        try:
            yield from _secrets(json.loads(text))
        except ValueError:
            pass
        else:
            return
    yield from (text[start:end] for start, end in _assignments(text))
    yield from (match[0] for match in _FORMATS.finditer(text))
    for match in _USER.finditer(text):
        yield match["user"].partition(":")[2] or match["user"]


def _assignments(text: str) -> Iterator[tuple[int, int]]:
    place = 0
    while match := _ASSIGNED.search(text, place):
        place = match.end("name")
        is_flag = (match["flag"] or "").startswith("-")
        if match["sign"].isspace() and not is_flag:
            continue
        part = "bare" if match["bare"] is not None else "quoted"
        value = match[part].rstrip(",.]}") if part == "bare" else match[part]
        if is_secret(match["name"], value) and not _is_prose(match["sign"], value):
            yield match.start(part), match.start(part) + len(value)
            place = match.end(part)


def _is_prose(sign: str, value: str) -> bool:
    return "=" not in sign and bool(re.fullmatch(r"[A-Za-z]?[a-z]+[.,:;]?", value))


def _without_password(match: re.Match[str]) -> str:
    name, colon, _ = match["user"].partition(":")
    is_web = match["scheme"].lower().endswith(("http://", "https://", "ftp://"))
    if colon and name and _ != "x-oauth-basic":
        return f"{match['scheme']}{name}:{HIDDEN}@"
    return f"{match['scheme']}{HIDDEN}@" if colon or (is_web and name != "git") else match[0]
