"""The files by which nodes of Oracle ADS's `kind: distributed` find their main node, in ADS's format."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_provider_ocidist.agent.join import ads_contract
from airflow_provider_ocidist.agent.join.ads_contract import NodeInstructions
from airflow_provider_ocidist.agent.join.topology import own_address
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.agent.store_retries import cannot_be_used, with_retries_unless_stopped
from airflow_provider_ocidist.errors import AgentError, Cause, OcidistError, TopologyTimeout
from airflow_provider_ocidist.model.work_dir import NODES_FOLDER
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store

logger = logging.getLogger(__name__)

MAIN_FILE = "MAIN_config.json"
GANG_KEY, BEAT_KEY = "OCIDIST_GANG", "OCIDIST_BEAT"
BEAT_S, LOOK_S = 0.4, 0.2
"""Seconds between two writes of the main node's file, and between two looks of a worker at it."""


def instructions_of_ads(
    environ: Mapping[str, str], arguments: Sequence[str], switch: StopSwitch
) -> NodeInstructions:
    """Return this node's settings from ADS, once its gang is known. Raises AgentError, Stopped."""
    if ads_contract.is_cluster(environ):
        gang = with_retries_unless_stopped(lambda: _gang(environ, switch), _timeout(environ), switch)
        instructions = ads_contract.instructions_of_cluster(environ, gang)
    else:
        instructions = ads_contract.instructions_of_job(environ, arguments, str(Path.cwd() / "ocidist-run"))
    for sentence in instructions.not_done:
        logger.warning("%s", sentence)
    return instructions


def _gang(environ: Mapping[str, str], switch: StopSwitch) -> str:
    """Return the key that only this gang's nodes share: the OCID of its main node's job run.

    ADS's own key is the job alone, so that its nodes read the files of an earlier gang of the job.
    """
    place = ads_contract.meeting_point(environ)
    try:
        store = open_store(place, OciAccess.from_environment(environ))
        own_run, address = environ.get("JOB_RUN_OCID", "Undefined"), own_address(environ)
        if ads_contract.is_main(environ):
            nodes = ads_contract.instructions_of_cluster(environ, own_run).config.nodes
            MainNodeFile(store, own_run, address, nodes).start()
            return own_run
        store.write(f"WORKER_{own_run}_config.json", json.dumps({"OCI__WORKER_IP": address}).encode())
        return await_main(store, switch, _timeout(environ))
    except (OcidistError, OSError) as error:
        if isinstance(error, AgentError):
            raise
        raise cannot_be_used("OCI__WORK_DIR", error) from error


def _timeout(environ: Mapping[str, str]) -> float:
    return float(ads_contract.number_in(environ, "OCI__TIMEOUT", ads_contract.TIMEOUT))


class MainNodeFile(threading.Thread):
    """The main node's file, rewritten until all nodes have joined: an unchanging one is an older gang's."""

    def __init__(self, store: Store, gang: str, address: str, nodes: int) -> None:
        super().__init__(name="announcement", daemon=True)
        self.store, self.gang, self.address, self.nodes = store, gang, address, nodes

    def run(self) -> None:
        beat = 0
        while beat == 0 or not self._all_here():
            beat += 1
            instructions = {"MASTER_ADDR": self.address, GANG_KEY: self.gang, BEAT_KEY: str(beat)}
            try:
                self.store.write(MAIN_FILE, json.dumps(instructions).encode())
            except (OcidistError, OSError) as error:
                logger.warning("%s cannot be written: %s", MAIN_FILE, error)
            time.sleep(BEAT_S)

    def _all_here(self) -> bool:
        try:
            return len(self.store.list(f"{self.gang}/{NODES_FOLDER}/")) >= self.nodes
        except (OcidistError, OSError):
            return False


def await_main(store: Store, switch: StopSwitch, timeout: float) -> str:
    """Return the gang that a live main node announces: its file appears, or changes, while we look.

    Raises TopologyTimeout when none does within `timeout` seconds, AgentError when another program has written the
    file, Stopped when this node is to end.
    """
    deadline = time.monotonic() + timeout
    first = _read(store)
    while (found := _read(store)) is None or found == first:
        if time.monotonic() > deadline:
            raise TopologyTimeout(
                f"no main node has announced itself in {store.uri_of(MAIN_FILE)} within {timeout:.0f} s: "
                "see the log of the job run of rank 0, or raise OCI__TIMEOUT"
            )
        switch.pause(LOOK_S)
    try:
        return str(json.loads(found)[GANG_KEY])
    except (ValueError, TypeError, KeyError) as error:
        raise AgentError(
            f"{store.uri_of(MAIN_FILE)} was written by another program: all nodes must run this image",
            cause=Cause.CONFIG,
        ) from error


def _read(store: Store) -> bytes | None:
    try:
        return store.read(MAIN_FILE)
    except FileNotFoundError:
        return None
