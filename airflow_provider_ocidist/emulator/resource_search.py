"""Resource Search: finds resources of all services, by text or by a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.errors import invalid
from airflow_provider_ocidist.emulator.fields import required_text
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, page

BASE = "/20180409"
MAX_CHARS = 10_000
"""Most characters of a text or a query."""
TOKEN = re.compile(r"\s*('[^']*'|&&|=~|!=|=|,|[\w.-]+)")
FIELDS = {
    "identifier": "identifier",
    "displayname": "displayName",
    "compartmentid": "compartmentId",
    "lifecyclestate": "lifecycleState",
    "resourcetype": "resourceType",
    "timecreated": "timeCreated",
}
"""Fields that a query may name, in any case."""
COMPARISONS: Mapping[str, Callable[[str, str], bool]] = {
    "=": lambda found, wanted: found == wanted,
    "!=": lambda found, wanted: found != wanted,
    "=~": lambda found, wanted: wanted in found,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundResource:
    """What a search finds of one thing."""

    kind: str
    """Kind of the resource at the service: `DataScienceJob`."""
    id: str
    compartment_id: str
    name: str
    time_created: str
    state: str = "ACTIVE"
    freeform_tags: Mapping[str, str] = field(default_factory=dict)
    defined_tags: Mapping[str, Any] = field(default_factory=dict)
    mentions: Sequence[str] = ()
    """Other texts by which it is found."""


Source = Callable[[], Iterable[FoundResource]]


class ResourceSearch:
    """Answers /resources from what each service reports."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def routes(self) -> list[Route]:
        return [Route("POST", f"{BASE}/resources", self.search)]

    async def search(self, call: Call) -> Response:
        details = await call.json()
        if details.get("type") == "FreeText":
            bodies = self._with_text(_checked(required_text(details, "text")))
        elif details.get("type") == "Structured":
            bodies = _selected(self._bodies(), _checked(required_text(details, "query")))
        else:
            raise invalid("type must be FreeText or Structured.")
        chosen, headers = page(
            call, list(bodies), lambda body: (body["timeCreated"], body["identifier"]), default="DESC"
        )
        return answer({"items": chosen}, headers=headers)

    def _all(self) -> Iterator[FoundResource]:
        for source in self._sources:
            yield from source()

    def _bodies(self) -> Iterator[dict[str, Any]]:
        return map(_body, self._all())

    def _with_text(self, text: str) -> Iterator[dict[str, Any]]:
        """Yield what has a text as its identifier, its name, a word of its name, or a tag's value."""
        wanted = text.strip().casefold()
        for each in self._all():
            texts = (each.id, each.name, *each.name.split(), *each.freeform_tags.values(), *each.mentions)
            if any(found.casefold() == wanted for found in texts):
                yield _body(each)


def _checked(text: str) -> str:
    if len(text) > MAX_CHARS:
        raise invalid(f"A search may have at most {MAX_CHARS} characters.")
    return text


def _selected(bodies: Iterable[dict[str, Any]], query: str) -> Iterator[dict[str, Any]]:
    """Yield the results of `query KINDS resources where FIELD = 'VALUE' && ...`. Raises 400 for any other query."""
    tokens = list(_tokens(query))
    words = [token.lower() for token in tokens]
    if words[:1] != ["query"] or "resources" not in words:
        raise invalid("query must be of the form: query KINDS resources where FIELD = 'VALUE' && ...")
    end = words.index("resources")
    kinds = set(words[1:end]) - {","}
    conditions = list(_conditions(tokens[end + 1 :]))
    for body in bodies:
        if not kinds.isdisjoint({"all", body["resourceType"].lower()}) and all(
            COMPARISONS[sign](str(body[name]).casefold(), value.casefold())
            for name, sign, value in conditions
        ):
            yield body


def _tokens(query: str) -> Iterator[str]:
    text, place = query.rstrip(), 0
    while place < len(text):
        match = TOKEN.match(text, place)
        if match is None:
            raise invalid(f"query: the emulator does not understand it from character {place} on.")
        yield match[1]
        place = match.end()


def _conditions(tokens: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield field, sign and value of each condition."""
    if not tokens:
        return
    first, *rest = tokens
    if first.lower() != "where" or len(rest) % 4 != 3:
        raise invalid("query: after resources the emulator understands: where FIELD = 'VALUE' && ...")
    for start in range(0, len(rest), 4):
        name, sign, value = rest[start : start + 3]
        joined = start + 3 == len(rest) or rest[start + 3] == "&&"
        if name.lower() not in FIELDS or sign not in COMPARISONS or value[:1] != "'" or not joined:
            raise invalid(
                f"query: the emulator does not understand {f'{name} {sign} {value}'[:200]}; it knows the"
                f" fields {', '.join(FIELDS.values())}, the signs {' '.join(COMPARISONS)} and &&."
            )
        yield FIELDS[name.lower()], sign, value[1:-1]


def _body(found: FoundResource) -> dict[str, Any]:
    return {
        "resourceType": found.kind,
        "identifier": found.id,
        "compartmentId": found.compartment_id,
        "displayName": found.name,
        "timeCreated": found.time_created,
        "lifecycleState": found.state,
        "availabilityDomain": None,
        "freeformTags": found.freeform_tags,
        "definedTags": found.defined_tags,
        "systemTags": {},
        "searchContext": None,
        "identityContext": {},
        "additionalDetails": {},
    }
