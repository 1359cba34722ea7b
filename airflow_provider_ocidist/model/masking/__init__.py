"""What may be shown of a job, a request or a line: secrets masked by name, by form, and where known. No Airflow."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from airflow_provider_ocidist.model.masking.names import Weight, is_secret_name, weight_of
from airflow_provider_ocidist.model.masking.patterns import lazily
from airflow_provider_ocidist.model.masking.texts import flags_of_programs, query_of, spans_in
from airflow_provider_ocidist.model.masking.values import MASK, is_ordinary, is_secret, is_secret_of

__all__ = [
    "MASK",
    "SHORTEST",
    "forms_of",
    "is_secret_name",
    "masked",
    "masked_text",
    "secrets_in",
    "masked_messages",
    "without_secrets",
]

SHORTEST = 5
"""Fewest characters of a value that is masked wherever it occurs, as in Airflow; a shorter one is masked under its own
name only."""
_SHORTEST_LINE = 12
"""Fewest characters of a line of a longer secret, as a key, that is masked by itself, since a log has it line by
line."""
_FLAG = lazily(r"^(?:--?|\+{1,2})([A-Za-z][\w.@/-]*)(=(.*))?$", re.DOTALL)
_PAIR = lazily(r"^([A-Za-z_][\w.@/-]*)=(.*)$", re.DOTALL)
_USER_FLAGS = frozenset({"-u", "--user", "--proxy-user"})
_COMMAND = 200
"""Characters before an argument in which its program is looked for."""
_SHELL_FLAG = lazily(r"^-[a-z]*c$")


def masked(value: Any) -> Any:
    """Return the same tree of mappings and lists with its secrets masked, also where they occur a second time."""
    return without_secrets(_masked(value), secrets_in(value))


def masked_text(text: str, secrets: Collection[str] = ()) -> str:
    """Return a line of a log or an error's message without its secrets: known ones, and those that show."""
    return _cut(without_secrets(text, secrets), of_a_log=True)


def masked_messages(value: Any, secrets: Collection[str] = ()) -> Any:
    """Return a tree whose texts are messages and lines of logs as it may be shown: as `masked_text` does with each."""
    if isinstance(value, Mapping):
        return {
            name: MASK if is_secret(name, item) else masked_messages(item, secrets)
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [masked_messages(item, secrets) for item in value]
    if isinstance(value, str):
        return masked_text(value, secrets)
    return value


def secrets_in(value: Any) -> set[str]:
    """Return the secrets themselves that a tree of mappings and lists holds, for masking in logs."""
    found: set[str] = set()
    for secret in _secrets(value):
        lines = [line.strip() for line in re.split(r"\n|\\n", secret)]
        parts = [line for line in lines if len(line) >= _SHORTEST_LINE and not line.startswith("-----")]
        found |= {secret, unquote(secret), *(parts if len(lines) > 1 else ())}
    return {secret for secret in found if len(secret) >= SHORTEST and not is_ordinary(secret)}


def without_secrets(value: Any, secrets: Collection[str]) -> Any:
    """Return the same tree with these secrets masked wherever they occur."""
    return _without(value, _pattern(frozenset(secrets))) if secrets else value


def _masked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: MASK if hidden else _masked(item) for name, item, hidden in _items(value)}
    if isinstance(value, (list, tuple)):
        return [_masked(item) if instead is None else instead for item, instead in _arguments(value)]
    if isinstance(value, str):
        return _masked_text(value)
    return value


def _masked_text(text: str) -> str:
    held = _json_in(text)
    if held is not None:
        return json.dumps(_masked(held), separators=(",", ":"), ensure_ascii=False)
    if query := query_of(text):
        text = text.replace(query, MASK)
    return _cut(text, of_a_log=False)


def _cut(text: str, *, of_a_log: bool) -> str:
    for start, end in reversed(spans_in(text, of_a_log=of_a_log)):
        text = f"{text[:start]}{MASK}{text[end:]}"
    return text


def forms_of(secrets: Collection[str]) -> list[str]:
    """Return secrets as texts, JSON and web addresses write them, the longest first."""
    return sorted({form for each in secrets if each for form in _written(each)}, key=len, reverse=True)


def _written(secret: str) -> set[str]:
    quoted = {
        quote(secret, safe="", errors="replace"),
        quote(secret, errors="replace"),
        quote_plus(secret, errors="replace"),
    }
    # Some programs write the digits of %2F in lower case.
    lowered = {re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), each) for each in quoted}
    return {secret, json.dumps(secret)[1:-1], *quoted, *lowered}


@lru_cache(maxsize=64)
def _pattern(secrets: frozenset[str]) -> re.Pattern[str]:
    """Return what finds secrets in the forms in which texts have them: as JSON, and as web addresses, write them."""
    return re.compile("|".join(map(re.escape, forms_of(secrets))) or r"(?!)")


def _without(value: Any, secrets: re.Pattern[str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _without(item, secrets) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without(item, secrets) for item in value]
    if isinstance(value, str):
        return secrets.sub(MASK, value)
    return value


def _secrets(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for _, item, hidden in _items(value):
            yield from _texts(item) if hidden else _secrets(item)
    elif isinstance(value, (list, tuple)):
        for item, instead in _arguments(value):
            if instead is not None:
                yield item.removeprefix(instead.removesuffix(MASK))
            if instead is None or any(map(str.isspace, item)):
                yield from _secrets(item)
    elif isinstance(value, str):
        yield from _secrets_of_text(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
    else:
        yield str(value)
        # A web address with a password may well occur without its scheme.
        yield from _secrets_of_text(str(value))


def _secrets_of_text(text: str) -> Iterator[str]:
    held = _json_in(text)
    if held is not None:
        yield from _secrets(held)
        return
    if query := query_of(text):
        yield query
    for start, end in spans_in(text, of_a_log=False):
        yield text[start:end]


def _items(value: Mapping[Any, Any]) -> Iterator[tuple[Any, Any, bool]]:
    """Yield each item of a mapping and whether it is a secret, by its own name or by the `name` beside it."""
    title = value.get("name")
    for name, item in value.items():
        bears = title if name == "value" and isinstance(title, str) else name
        yield name, item, is_secret(bears, item) or _holds_secrets(bears, item)


def _holds_secrets(name: Any, item: Any) -> bool:
    """Return whether it is a list of secrets, as `passwords` is."""
    return (
        isinstance(item, (list, tuple))
        and bool(item)
        and weight_of(str(name)) is Weight.SURE
        and all(isinstance(each, str) and not is_ordinary(each) for each in item)
    )


def _arguments(values: Sequence[Any]) -> Iterator[tuple[Any, str | None]]:
    """Yield each item of a list with its replacement, if it is an argument that is, or holds, a secret by name."""
    before, command = "", ""
    for item in values:
        hidden = _hidden(before, item) if isinstance(item, str) else None
        if hidden is None and isinstance(item, str) and item.strip():
            hidden = _hidden_by_command(command, item)
        yield item, hidden
        before = item if isinstance(item, str) else ""
        # As a shell would have it: what a flag means depends on the program.
        command = f"{command[-_COMMAND:]} {before}" if before else ""


def _hidden_by_command(command: str, item: str) -> str | None:
    """Return what to show of an argument that is a password with the program before it, as `sshpass -p` has one."""
    if not command or any(map(str.isspace, item)):
        return None
    line = f"{command} {item}"
    start = len(line) - len(item)
    found = [span for span in flags_of_programs(line) if span[0] >= start]
    return f"{line[start : found[0][0]]}{MASK}" if found else None


def _hidden(before: str, item: str) -> str | None:
    """Return what to show of an argument, after the one before it; None where these two do not decide it."""
    if _SHELL_FLAG().match(before):
        return None
    flag = _FLAG().match(before)
    if flag and not flag[2] and not item.startswith("--") and is_secret(flag[1], item):
        return MASK
    user, colon, password = item.partition(":")
    if before in _USER_FLAGS and colon and "/" not in user and not password.isdigit():
        return f"{user}:{MASK}"
    own = _FLAG().match(item)
    name, value = (
        (own[1], own[3])
        if own and own[2]
        else (pair[1], pair[2])
        if (pair := _PAIR().match(item))
        else ("", "")
    )
    # A web address and JSON are masked in part only.
    if name and is_secret_of(weight_of(name), value) and "://" not in value and _json_in(value) is None:
        return item[: len(item) - len(value)] + MASK
    return None


def _json_in(text: str) -> Any:
    """Return what a text holds as JSON; None where it holds no object or list."""
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None
