"""A plan for display: requests that repeat are shown once, secrets not at all. Pure; no Airflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from airflow_provider_ocidist.model.masking import masked
from airflow_provider_ocidist.model.run import Plan, Request

LONGEST_TEXT = 200
"""Most characters of a text that is shown where the whole plan is too long."""
LEFT_OUT = "left out: `ocidist plan` shows it"


def readable(plan: Plan, room: int, candidates: Sequence[str] = (), cost: str = "") -> str:
    """Return a plan as YAML of at most `room` characters: long texts are left out first, then the request bodies.

    `candidates`: what each of the job's candidates changes; `cost`: what the job can use at most.
    """
    import yaml

    text = ""
    for shorten in (lambda body: body, _with_short_texts, lambda _: LEFT_OUT):
        view = masked(
            {
                "summary": f"{plan.key.name} on {plan.backend}, {plan.nodes} {'node' if plan.nodes == 1 else 'nodes'}",
                "names": naming(plan),
                **({"candidates": list(candidates)} if candidates else {}),
                **({"cost": cost} if cost else {}),
                "topology": plan.topology,
                "reason": plan.reason,
                "code": plan.code,
                "run_dir": plan.run_dir,
                "checkpoints_uri": plan.checkpoints_uri,
                "requests": [
                    {"verb": request.verb, "count": count, "body": shorten(request.body)}
                    for request, count in _merged(plan.requests)
                ],
            }
        )
        text = yaml.safe_dump(view, sort_keys=False, allow_unicode=True, width=110)
        if len(text) <= room:
            break
    return text


def naming(plan: Plan) -> str:
    """Return how to read the names in a plan: the service has not been asked yet which attempts exist."""
    return f"end in -a{plan.key.attempt} here; the number of the attempt is determined at submission"


def _merged(requests: Sequence[Request]) -> Iterator[tuple[Request, int]]:
    """Yield the requests, adjacent ones of one kind merged: the nodes differ by their rank alone."""
    for _, group in groupby(requests, key=lambda request: request.verb):
        first, *others = group
        yield first, first.count + sum(request.count for request in others)


def _with_short_texts(body: Any) -> Any:
    return with_texts(body, lambda text: f"<{len(text)} characters>" if len(text) > LONGEST_TEXT else text)


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a request's body with each of its texts changed; the names stay."""
    match value:
        case Mapping():
            return {name: with_texts(item, change) for name, item in value.items()}
        case list() | tuple():
            return [with_texts(item, change) for item in value]
        case str():
            return change(value)
    return value
