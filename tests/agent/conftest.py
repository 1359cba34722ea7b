"""Leaves the log as it was: an agent's part that runs in pytest's process masks secrets in all its handlers."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _formatters_are_put_back() -> Iterator[None]:
    before = [(handler, handler.formatter) for handler in logging.getLogger().handlers]
    yield
    for handler, formatter in before:
        handler.setFormatter(formatter)
