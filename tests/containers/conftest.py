"""The image of a node, built once, and podman to run it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import image as image_of
from tests.containers.podman import Podman, why_not


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Podman(tmp_path_factory.mktemp("podman")) as podman:
        yield podman


@pytest.fixture(scope="session")
def image(podman: Podman, pytestconfig: pytest.Config) -> str:
    """The CPU image; its layers stay on the machine, so that only the first build is long."""
    started = time.monotonic()
    plan = image_of.Build(tool="podman", base=image_of.base_from_packages("podman"), name="ocidist-test")
    tag = image_of.build(plan, podman.environ)
    seconds, size = time.monotonic() - started, image_of.size_of("podman", tag)
    pytestconfig.get_terminal_writer().line(f"\n{tag}: {size / 1e6:.0f} MB, built in {seconds:.0f} s")
    return tag


@pytest.fixture(scope="session")
def repository() -> Path:
    return image_of.ROOT
