"""Wheels: node 0 shares the wheels it has downloaded or built, in the run directory.

The cache only saves work: where it fails, is late or does not fit, a node runs pip without it.
`manifest.json` is written last and lists every file, so that half a cache is none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_ocidist.agent.prepare.command import Finished
from airflow_provider_ocidist.agent.stopping import Stopped, StopSwitch
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.model.work_dir import WHEELS, WHEELS_MANIFEST
from airflow_provider_ocidist.oci_client.credentials import OciAccess

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5
WAIT_S = 180.0
"""Seconds to wait for node 0's wheels; if it has to build them, that takes as long as on each node."""
FIRST_SIGN_S = 20.0
"""Seconds to wait for node 0 to report its start; a gang's nodes may start minutes apart."""
_PIECE = 1 << 20


class RunsPip(Protocol):
    """Runs pip in the interpreter of the training."""

    def run(self, *arguments: str) -> Finished:
        """Return how it ended."""


@dataclass(kw_only=True)
class WheelCache:
    """One node's view of the cache."""

    run_dir: str
    rank: int
    nodes: int
    access: OciAccess
    switch: StopSwitch
    _place: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False)

    @property
    def _is_source(self) -> bool:
        return self.rank == 0 and self.nodes > 1

    # node 0

    @contextlib.contextmanager
    def noting(self) -> Iterator[Sequence[str]]:
        """Yield options with which pip keeps its downloads and reports what it installed."""
        if not self._is_source or not _has_install_report():
            yield ()
            return
        self._announce({"state": "installing"})
        self._place = tempfile.TemporaryDirectory(prefix="ocidist-pip-")
        yield ("--cache-dir", f"{self._place.name}/cache", "--report", f"{self._place.name}/report.json")

    def offer(self, pip: RunsPip) -> None:
        """Publish what was installed, in a thread."""
        if self._place is not None:
            threading.Thread(target=self._publish, args=(pip,), name="wheels", daemon=True).start()

    def give_up(self) -> None:
        """Announce that no wheels follow."""
        if self._is_source:
            self._announce({"state": "none"})

    def _publish(self, pip: RunsPip) -> None:
        assert self._place is not None
        try:
            with _removed_at_end(self._place) as place:
                manifest = self._gathered(pip, place)
                if manifest["files"]:
                    from airflow_provider_ocidist.storage.transfer import copy

                    copy(f"{place}/wheels/", self._uri, access=self.access, cancel=self.switch.event)
                self._announce(manifest)
        except Stopped:
            return
        except Exception as error:  # the other nodes do not need the wheels
            logger.warning("no wheels for the other nodes: %s", error)
            self.give_up()

    def _gathered(self, pip: RunsPip, place: Path) -> dict[str, Any]:
        """Make wheels of all that was installed; pip takes its downloads and builds from its cache."""
        report = json.loads((place / "report.json").read_text())
        pins = [f"{item['metadata']['name']}=={item['metadata']['version']}" for item in report["install"]]
        folder = place / "wheels"
        folder.mkdir()
        if pins:
            origins = [_origin(item, pin) for item, pin in zip(report["install"], pins)]
            cached = ("--cache-dir", f"{place}/cache")
            done = pip.run(
                "wheel", "--quiet", "--no-deps", *cached, "--wheel-dir", str(folder), "--", *origins
            )
            if done.exit_code:
                raise RuntimeError(done.output[-500:])
        return {
            "state": "ready",
            "pins": pins,
            "files": {path.name: _sha256(path) for path in sorted(folder.iterdir())},
        }

    def _announce(self, manifest: dict[str, Any]) -> None:
        from airflow_provider_ocidist.storage.stores.opening import open_store

        try:
            open_store(self._uri, self.access).write(WHEELS_MANIFEST, json.dumps(manifest).encode())
        except (OcidistError, OSError) as error:
            logger.warning("the wheels cannot be announced to the other nodes: %s", error)

    # the other nodes

    def install(self, pip: RunsPip) -> bool:
        """Install from the cache; return whether it succeeded. Raises Stopped."""
        if self.rank == 0 or self.nodes == 1:
            return False
        manifest = self._awaited()
        if manifest is None:
            return False
        try:
            return self._installed(pip, manifest)
        except (OcidistError, OSError) as error:
            self.switch.check()
            logger.warning("the wheels of node 0 cannot be used: %s", error)
            return False

    def _installed(self, pip: RunsPip, manifest: dict[str, Any]) -> bool:
        if not manifest["pins"]:
            # Node 0 had everything; pip checks this node in a second.
            return False
        from airflow_provider_ocidist.storage.transfer import copy

        with _removed_at_end(tempfile.TemporaryDirectory(prefix="ocidist-wheels-")) as place:
            folder = place / "wheels"
            copy(
                self._uri,
                str(folder),
                access=self.access,
                exclude=[WHEELS_MANIFEST],
                cancel=self.switch.event,
            )
            found = {path.name: _sha256(path) for path in folder.iterdir()}
            if found != manifest["files"]:
                logger.warning("the wheels of node 0 differ from its list")
                return False
            own = ("--no-index", "--find-links", str(folder), "--progress-bar=off")
            done = pip.run("install", *own, "--", *manifest["pins"])
        if done.exit_code:
            logger.warning("the wheels of node 0 do not fit this node")
        return done.exit_code == 0

    def _awaited(self) -> dict[str, Any] | None:
        """Return the manifest once it is complete; None when there is none, or after a timeout."""
        from airflow_provider_ocidist.storage.stores.opening import open_store

        started = time.monotonic()
        store = open_store(self._uri, self.access)
        while True:
            manifest: dict[str, Any] = {}
            try:
                manifest = json.loads(store.read(WHEELS_MANIFEST))
            except FileNotFoundError:
                pass
            except (OcidistError, OSError, ValueError) as error:
                logger.warning("the wheels of node 0 cannot be read: %s", error)
                return None
            if manifest.get("state") in ("ready", "none"):
                return manifest if manifest["state"] == "ready" else None
            if time.monotonic() - started > (WAIT_S if manifest else FIRST_SIGN_S):
                logger.info("node 0 has shared no wheels in time: pip downloads the packages itself")
                return None
            self.switch.pause(LOOK_INTERVAL_S)

    @property
    def _uri(self) -> str:
        from airflow_provider_ocidist.storage.locations import join

        return f"{join(self.run_dir, WHEELS)}/"


def _has_install_report() -> bool:
    """Whether this node's pip has `--report`, which came with 22.2."""
    from importlib.metadata import version

    return tuple(int(part) for part in version("pip").split(".")[:2] if part.isdigit()) >= (22, 2)


def _origin(item: dict[str, Any], pin: str) -> str:
    """Return the requirement that yields the same wheel."""
    info = item["download_info"]
    if not item.get("is_direct"):
        return pin
    name, url = pin.partition("==")[0], info["url"]
    if "vcs_info" in info:
        return f"{name} @ {info['vcs_info']['vcs']}+{url}@{info['vcs_info']['commit_id']}"
    return f"{name} @ {url}"


def _sha256(path: Path) -> str:
    running = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            running.update(piece)
    return running.hexdigest()


@contextlib.contextmanager
def _removed_at_end(place: tempfile.TemporaryDirectory[str]) -> Iterator[Path]:
    try:
        yield Path(place.name)
    finally:
        # A leftover folder is harmless.
        with contextlib.suppress(OSError):
            place.cleanup()
