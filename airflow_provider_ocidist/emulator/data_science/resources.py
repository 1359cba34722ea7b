"""What projects, jobs and job runs have in common: created once, shown, listed, changed by id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Generic, TypeVar

from starlette.responses import Response

from airflow_provider_ocidist.emulator.data_science.rules import check_common
from airflow_provider_ocidist.emulator.errors import ApiError, incorrect_state, invalid, not_found
from airflow_provider_ocidist.emulator.fields import required_text
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.resource_search import FoundResource
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.store import RecordStore, Table
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, check_if_match, new_etag, now, page

MAX_PAGE = 100
BASE = "/20190101"
ATTRIBUTES = {"id": "id", "lifecycleState": "state", "createdBy": "created_by", "timeCreated": "time_created"}


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredResource:
    """What every resource of the service has, as stored."""

    id: str
    details: Mapping[str, Any]
    """Details as given to create, with later updates."""
    created_by: str
    time_created: str = field(default_factory=now)
    state: str = "ACTIVE"
    etag: str = field(default_factory=new_etag)


Item = TypeVar("Item", bound=StoredResource)
Listed = TypeVar("Listed")
Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceKind(Generic[Item]):
    """How the resources of one kind are stored, shown and changed."""

    name: str
    decode: Callable[..., Item]
    path: str
    """Path of the collection, below the API's version: `jobs`."""
    states: frozenset[str]
    summary: Callable[[Item], Body]
    """Function that returns what a list shows."""
    body: Callable[[Item], Body]
    filters: tuple[str, ...] = ("id", "displayName", "lifecycleState", "createdBy")
    updatable: tuple[str, ...] = ("displayName", "freeformTags", "definedTags")


class Collection(Generic[Item]):
    """All resources of one kind, and the operations that are the same for all kinds.

    `make` builds a new one from a new request; `check_change` refuses what an update or
    a move may not do: it gets the resource, its new details, and raises ApiError.
    """

    def __init__(
        self,
        store: RecordStore,
        kind: ResourceKind[Item],
        identity: Identity,
        retries: RetryTokens,
        *,
        make: Callable[[Call, Mapping[str, Any]], Item],
        check_change: Callable[[Item, Mapping[str, Any]], None],
    ) -> None:
        self._store = store
        self._kind = kind
        self._identity = identity
        self._retries = retries
        self._make = make
        self._check_change = check_change
        self._items: Table[Item] = Table(store, kind.name, kind.decode)

    def routes(self) -> list[Route]:
        every, one = f"{BASE}/{self._kind.path}", f"{BASE}/{self._kind.path}/{{id}}"
        return [
            Route("POST", every, self.create),
            Route("GET", every, self.list),
            Route("GET", one, self.show),
            Route("PUT", one, self.update),
            Route("POST", f"{one}/actions/changeCompartment", self.change_compartment),
        ]

    def find(self, item_id: str) -> Item | None:
        return self._items.get(item_id)

    def get(self, item_id: str) -> Item:
        """Return a resource, deleted or not. Raises 404."""
        item = self._items.get(item_id)
        if item is None:
            raise not_found()
        return item

    def existing(self, item_id: str) -> Item:
        """Return a resource that can be used or changed. Raises 404, or 409 while it is being deleted."""
        item = self.get(item_id)
        if item.state == "DELETED":
            raise not_found()
        if item.state == "DELETING":
            raise incorrect_state("The resource is being deleted.")
        return item

    def asked(self, call: Call) -> Item:
        """Return the resource that a request wants to change. Raises 404, or 412 when it has changed."""
        item = self.existing(call.params["id"])
        check_if_match(call, item.etag)
        return item

    def values(self) -> list[Item]:
        return self._items.values()

    def put(self, item: Item) -> None:
        self._items.put(item.id, item)

    def change(self, item: Item, **fields: Any) -> Item:
        """Store a resource with other fields, and so with another etag."""
        changed = replace(item, etag=new_etag(), **fields)
        self._items.put(item.id, changed)
        return changed

    def clear(self) -> None:
        self._items.clear()

    async def create(self, call: Call) -> Response:
        details = await call.json()
        known = self._retries.find(call, details)
        item = self._items.get(known) if known else None
        if item is None:
            item = self._make(call, details)
            with self._store.transaction():
                self._items.put(item.id, item)
                self._retries.remember(call, details, item.id)
        elif item.state == "DELETED":
            raise ApiError(409, "InvalidatedRetryToken", "What the opc-retry-token created has been deleted.")
        return self._answer(item)

    def _answer(self, item: Item) -> Response:
        return answer(self._kind.body(item), etag=item.etag)

    async def show(self, call: Call) -> Response:
        return self._answer(self.get(call.params["id"]))

    async def list(self, call: Call) -> Response:
        """Return a page of what the filters let through: newest first, or by name."""
        self._identity.compartment_in(call)
        check_choice(call, "lifecycleState", self._kind.states)
        found = filtered(call, self._items.values(), value_of, self._kind.filters)
        chosen, headers = sorted_page(call, found, value_of, "timeCreated", ("displayName",))
        return answer([self._kind.summary(item) for item in chosen], headers=headers)

    async def update(self, call: Call) -> Response:
        given = await call.json()
        item = self.asked(call)
        check_common(given)
        changes = {name: given[name] for name in self._kind.updatable if given.get(name) is not None}
        return self._changed(item, changes)

    async def change_compartment(self, call: Call) -> Response:
        compartment_id = required_text(await call.json(), "compartmentId")
        item = self.asked(call)
        self._identity.check_compartment(compartment_id)
        self._changed(item, {"compartmentId": compartment_id})
        return answer()

    def _changed(self, item: Item, changes: Mapping[str, Any]) -> Response:
        details = {**item.details, **changes}
        self._check_change(item, details)
        return self._answer(self.change(item, details=details))


def shared_body(item: StoredResource) -> Body:
    """Return the fields that every summary and every resource shows."""
    details = item.details
    return {
        "id": item.id,
        "createdBy": item.created_by,
        "compartmentId": details["compartmentId"],
        "displayName": details["displayName"],
        "lifecycleState": item.state,
        "freeformTags": details.get("freeformTags") or {},
        "definedTags": details.get("definedTags") or {},
    }


def found(item: StoredResource, kind: str) -> FoundResource:
    """Return the Resource Search result for a resource."""
    body = shared_body(item)
    return FoundResource(
        kind=kind,
        id=item.id,
        compartment_id=body["compartmentId"],
        name=body["displayName"],
        time_created=item.time_created,
        state=item.state,
        freeform_tags=body["freeformTags"],
        defined_tags=body["definedTags"],
    )


def value_of(item: StoredResource, name: str) -> Any:
    """Return the field that a filter or an order names, without making a body of the resource."""
    attribute = ATTRIBUTES.get(name)
    return item.details.get(name) if attribute is None else getattr(item, attribute)


def named(details: Mapping[str, Any], kind: str) -> Body:
    """Return the details with a name: without one the service generates it, as in `jobrun20210808222435`."""
    name = details.get("displayName") or f"{kind}{datetime.now(timezone.utc):%Y%m%d%H%M%S}"
    return {**details, "displayName": name}


def check_choice(call: Call, name: str, choices: frozenset[str]) -> None:
    """Raise 400 when a query parameter has a value that does not exist."""
    if name in call.query and call.query[name] not in choices:
        raise invalid(f"{name} must be one of {', '.join(sorted(choices))}.")


def filtered(
    call: Call, items: Iterable[Listed], value: Callable[[Listed, str], Any], names: tuple[str, ...]
) -> list[Listed]:
    """Keep what fits the query's filters, `compartmentId` always; `value` returns a field of an item."""
    compartment_id = call.required_query("compartmentId")
    found = list(items)
    for name in names:
        if name in call.query:
            text = call.query[name]
            found = [item for item in found if value(item, name) == text]
    return [item for item in found if value(item, "compartmentId") == compartment_id]


def sorted_page(
    call: Call,
    items: list[Listed],
    value: Callable[[Listed, str], Any],
    time_name: str,
    others: tuple[str, ...],
) -> tuple[list[Listed], dict[str, str]]:
    """Return a page in the order of `sortBy`: by time newest first, by another field ascending."""
    call.number("limit", MAX_PAGE, 1, MAX_PAGE)
    check_choice(call, "sortBy", frozenset({time_name, *others}))
    name = call.query.get("sortBy", time_name)
    default = "DESC" if name == time_name else "ASC"
    return page(call, items, lambda item: (value(item, name), value(item, "id")), default=default)
