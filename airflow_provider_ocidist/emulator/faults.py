"""Faults: injected failures of requests, by rule and by chance."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from airflow_provider_ocidist.emulator import patterns

SEEDS = 2**32
"""Number of seeds that a random one is drawn from."""
RULES_S = 0.2
"""Seconds of a processor that all rules may take to look at one request."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultRule:
    """The faults to inject, and for which requests.

    Delays of all rules that fit add up, and the lowest of their speeds holds. Of the rest, which ends a
    request, only the first rule counts.
    """

    method: str = ".*"
    path: str = ".*"
    """Regular expressions over all of the method and of the path (percent-encoded, without the query)."""
    host: str = ".*"
    """Regular expression over all of the requested host, without the port. Through the proxy it names the service."""
    probability: float = 1.0
    """Share of the matching requests that the rule applies to. Shares of rules that end a request add up: 0.05 and 0.02
    make 7 %."""
    times: int | None = None
    """Number of requests that the rule applies to; None: until reset."""
    latency_s: float = 0.0
    """Seconds to wait first."""
    bytes_per_s: float | None = None
    """Bytes per second of the body of each request, and of its answer."""
    status: int | None = None
    """Status to answer with, without any effect of the request."""
    code: str = "InternalServerError"
    message: str = "Injected by the emulator."
    retry_after_s: int | None = None
    """Value of the header Retry-After, with `status`."""
    drop: Literal["before", "after", "body"] | None = None
    """Moment at which the connection is cut: before the request has any effect, after it had, or inside the answer's
    body."""
    body_bytes: int = 0
    """Number of bytes of the body that are sent, with `drop: body`."""
    stale_s: float | None = None
    """Seconds ago whose state a list shows, but not before this rule. Object Storage is never stale."""

    def __post_init__(self) -> None:
        for pattern in (self.method, self.path, self.host):
            patterns.compiled(pattern)
        if not self.ends and not self.latency_s and self.bytes_per_s is None:
            raise TypeError("A fault needs status, drop, stale_s, latency_s or bytes_per_s.")
        if self.drop not in (None, "before", "after", "body"):
            raise TypeError("drop must be before, after or body.")
        if not 0 < self.probability <= 1:
            raise TypeError("probability must be above 0 and at most 1.")
        if self.bytes_per_s is not None and self.bytes_per_s <= 0:
            raise TypeError("bytes_per_s must be above 0.")
        if self.status is not None and not 400 <= self.status <= 599:
            raise TypeError("status must be from 400 to 599.")

    @property
    def ends(self) -> bool:
        """Whether it decides the outcome of the request."""
        return self.status is not None or self.drop is not None or self.stale_s is not None


@dataclass(frozen=True, slots=True)
class Effect:
    """All that happens to one request."""

    latency_s: float = 0.0
    bytes_per_s: float | None = None
    end: FaultRule | None = None


NOTHING = Effect()


@dataclass(slots=True)
class _Rule:
    fault: FaultRule
    left: int | None

    def fits(self, subject: Sequence[str], budget: patterns.MatchingTime) -> bool:
        fault = self.fault
        return self.left != 0 and patterns.all_fit((fault.method, fault.path, fault.host), subject, budget)

    def use(self) -> None:
        if self.left is not None:
            self.left -= 1


class Faults:
    """The rules in the order given, and the dice. The same seed and the same requests give the same faults."""

    def __init__(self, seed: int | None) -> None:
        self._rules: list[_Rule] = []
        self.sow(random.randrange(SEEDS) if seed is None else seed)

    def sow(self, seed: int) -> None:
        self.seed = seed
        self._dice = random.Random(seed)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def add(self, fault: FaultRule) -> None:
        self._rules.append(_Rule(fault, fault.times))

    def clear(self) -> None:
        """Forget all rules, and restart the random numbers."""
        self._rules.clear()
        self.sow(self.seed)

    def decide(self, method: str, path: str, host: str) -> Effect:
        """Return what happens to a request, and count the rules that it used."""
        fitting = list(self._fitting((method, path, host)))
        if not fitting:
            return NOTHING
        used = [rule for rule in fitting if not rule.fault.ends and self._hits(rule.fault)]
        ending = self._ending([rule for rule in fitting if rule.fault.ends])
        if ending:
            used.append(ending)
        for rule in used:
            rule.use()
        limits = [rule.fault.bytes_per_s for rule in used if rule.fault.bytes_per_s is not None]
        return Effect(
            latency_s=sum(rule.fault.latency_s for rule in used),
            bytes_per_s=min(limits, default=None),
            end=ending.fault if ending else None,
        )

    def _fitting(self, subject: Sequence[str]) -> Iterator[_Rule]:
        """Yield the rules that fit. Those that are not reached in time do not apply."""
        budget = patterns.MatchingTime(RULES_S)
        try:
            for rule in self._rules:
                if rule.fits(subject, budget):
                    yield rule
        except patterns.TooSlow as error:
            logger.warning("not all rules of faults were tried: %s", error)

    def _hits(self, fault: FaultRule) -> bool:
        return fault.probability == 1 or self._dice.random() < fault.probability

    def _ending(self, rules: Sequence[_Rule]) -> _Rule | None:
        """Roll once for all of them: each has its share of the dice's range."""
        rolled = self._dice.random() if rules else 0.0
        for rule in rules:
            if rolled < rule.fault.probability:
                return rule
            rolled -= rule.fault.probability
        return None

    def bodies(self) -> list[dict[str, Any]]:
        return [{**asdict(rule.fault), "left": rule.left} for rule in self._rules]
