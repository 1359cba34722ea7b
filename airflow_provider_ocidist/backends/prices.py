"""The price of a node, from the job or the connection. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.errors import JobFileError, Problem
from airflow_provider_ocidist.model.job import TrainingJob

ANY = "*"
"""Shape that stands for every other."""


def price_of(job: TrainingJob, shape: str | None, of_connection: Any) -> float | None:
    """Return the price of a node of this shape for an hour; None where neither job nor connection names one.

    `of_connection`: the field `prices`, a mapping or JSON. Raises JobFileError where the field is neither, or where
    `limits.max_cost` needs a price that is missing.
    """
    prices = {**_read(of_connection, job.name), **job.prices}
    price = prices.get(str(shape), prices.get(ANY))
    if price is None and job.limits.max_cost is not None:
        wanted = f"for {shape}, or for {ANY!r}" if shape else f"for {ANY!r}"
        problem = (
            f"needs the price of a node for an hour: add one {wanted} to `prices`, here or in the connection"
        )
        raise JobFileError([Problem("limits.max_cost", problem)], job.name)
    return price


def _read(given: Any, name: str) -> Mapping[str, float]:
    if given in (None, ""):
        return {}
    try:
        prices = json.loads(given) if isinstance(given, str) else given
        found = {str(shape): float(price) for shape, price in prices.items()}
    except (ValueError, TypeError, AttributeError):
        found = {"": -1.0}
    if not all(0 < price < float("inf") for price in found.values()):
        problem = (
            'of the connection must be JSON with a number above 0 for each shape, as {"VM.GPU.A10.1": 2.0}'
        )
        raise JobFileError([Problem("prices", problem)], name)
    return found
