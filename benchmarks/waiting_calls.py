"""P5: requests for each gang that waits, in a minute, beside Oracle ADS that watches one run."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import quote, urlsplit

from airflow_provider_ocidist.gangs.leases import RENEWALS
from benchmarks.comparison import Comparison, Samples
from benchmarks.http_load import request_bytes, send
from benchmarks.waiting import (
    GANGS,
    INTERVAL_S,
    LEASE_S,
    MEASURED_S,
    NODES,
    Measure,
    ads_watch,
    waiting_gangs,
    waiting_program,
)
from scripts.idle_gangs import IdleGangs, IdleNodes

TARGET = 100.0
ADS_S = 30.0
"""For which ADS is counted: ten of its looks."""
RENEWED_A_MINUTE = 60 * RENEWALS / LEASE_S
"""Of each gang's lease, calculated: all were just renewed when the counting begins."""
LISTED_S = 3.0
"""After which a list of the run directories is over."""
PAGE = 100
"""Job runs in a list."""


class WaitingCalls(Comparison):
    """Both wait all the time, so that only what they ask while they wait is counted."""

    name = "P5"
    title = f"requests a minute for each of {GANGS:,} gangs of two nodes that wait"
    peer_name = "ADS's watch of one run"
    unit = "requests"
    target = f"at least {TARGET:.0f} times fewer"
    pairs = 6

    gangs: IdleGangs
    _measure: Measure

    @contextmanager
    def setting(self) -> Iterator[None]:
        with (
            waiting_gangs() as self.gangs,
            beating(self.gangs),
            waiting_program(self.gangs, "triggerer") as self._measure,
            ads_watch(self.gangs),
        ):
            yield

    def ours(self) -> float:
        self.gangs.forget_calls()
        assert self._measure()["alive"] == GANGS
        asked = self.gangs.calls(host=urlsplit(self.gangs.emulator.url).netloc)
        return len(asked) / GANGS * 60 / MEASURED_S + RENEWED_A_MINUTE

    def peer(self) -> float:
        self.gangs.forget_calls()
        time.sleep(ADS_S)
        return len(self.gangs.calls(host=r".*\.oraclecloud\.com.*")) * 60 / ADS_S

    def floor(self) -> float:
        """Return what the lists of job runs alone take, by the service's pages."""
        return -(-GANGS * NODES // PAGE) / GANGS * 60 / INTERVAL_S

    def met(self, samples: Samples) -> bool:
        return samples.ratio.low >= TARGET


@contextmanager
def beating(gangs: IdleNodes) -> Iterator[None]:
    """Let the first node of every gang write its report between two looks, in requests that name a host of their own.

    A thousand nodes that write every two seconds, as they do, were more than the emulator could take. To who looks it
    is the same: all were written a moment ago, and have changed since.
    """
    url = urlsplit(gangs.emulator.url)
    assert url.hostname
    assert url.port
    address = url.hostname, url.port
    stop = threading.Event()

    def beat() -> None:
        answered = 0.0
        step = 1
        while not stop.wait(0.5):
            lists = [float(str(call["time"])) for call in gangs.calls(r".*/o\?prefix=.*")]
            if answered < (newest := max(lists, default=0.0)) < time.time() - LISTED_S:
                answered, step = newest, step + 1
                reports = itertools.islice(gangs.reports(gangs.records, step), 0, None, NODES)
                requests = [_request(gangs, name, text) for name, text in reports]
                send(address, requests, count=len(requests), connections=2)

    with ThreadPoolExecutor(1) as pool:
        beats = pool.submit(beat)
        try:
            yield
        finally:
            stop.set()
            beats.result()


def _request(gangs: IdleNodes, name: str, text: bytes) -> bytes:
    emulator = gangs.emulator
    _, _, prefix = gangs.store.uri.partition(f"{emulator.namespace}/")
    path = f"/n/{emulator.namespace}/b/{emulator.bucket}/o/{quote(f'{prefix}/{name}', safe='')}"
    return request_bytes("PUT", path, {"host": "nodes", "content-length": str(len(text))}, text)


ROW = WaitingCalls()
