"""opc-retry-token: the same request twice creates once."""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.emulator.errors import ApiError
from airflow_provider_ocidist.emulator.store import RecordStore, Table
from airflow_provider_ocidist.emulator.wire import Call

LIFETIME_S = 24 * 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """What a token has led to."""

    payload: str
    resource_id: str
    time: float


class RetryTokens:
    """Remembers for 24 hours, as the service does."""

    def __init__(self, store: RecordStore) -> None:
        self._answered: Table[Answered] = Table(store, "retry_token", Answered)
        by_age = sorted(self._answered.items(), key=lambda each: each[1].time)
        self._keys = deque(key for key, _ in by_age)
        """Keys, the oldest first."""

    def find(self, call: Call, details: Mapping[str, Any]) -> str | None:
        """Return what an earlier request with this token created. Raises 409 if it had another payload."""
        self._forget_old()
        earlier = self._answered.get(_key(call))
        if earlier is None:
            return None
        if earlier.payload != _digest(details):
            raise ApiError(
                409, "InvalidatedRetryToken", "The opc-retry-token was used before, with another payload."
            )
        return earlier.resource_id

    def remember(self, call: Call, details: Mapping[str, Any], resource_id: str) -> None:
        if "opc-retry-token" in call.headers:
            answered = Answered(payload=_digest(details), resource_id=resource_id, time=time.time())
            self._answered.put(_key(call), answered)
            self._keys.append(_key(call))

    def _forget_old(self) -> None:
        while self._keys:
            oldest = self._answered.get(self._keys[0])
            if oldest is not None and time.time() - oldest.time <= LIFETIME_S:
                return
            self._answered.delete(self._keys.popleft())

    def reset(self) -> None:
        self._answered.clear()
        self._keys.clear()


def _key(call: Call) -> str:
    return f"{call.raw_path} {call.headers.get('opc-retry-token', '')}"


def _digest(details: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(details, sort_keys=True).encode()).hexdigest()
