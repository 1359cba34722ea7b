"""The clients whose transfers are compared, each run as a process of its own: `transfer_clients.py CLIENT ORDER`."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Order = dict[str, Any]
"""`action` (down, up), `uri`, `local` (a folder), `url`, `config_file`, `namespace`, `bucket`, `prefix`."""


def ours(order: Order) -> Callable[[], None]:
    import oci.object_storage  # noqa: F401 - the others import their libraries beforehand, too

    from airflow_provider_ocidist.oci_client.credentials import OciAccess
    from airflow_provider_ocidist.storage.transfer import copy

    access = OciAccess(config_file=order["config_file"], endpoint=order["url"])
    remote, local = f"{order['uri']}/", f"{order['local']}/"
    source, target = (remote, local) if order["action"] == "down" else (local, remote)

    return lambda: print(json.dumps({"resumed": copy(source, target, access=access).resumed_bytes}))


def ocifs(order: Order) -> Callable[[], None]:
    from ocifs import OCIFileSystem

    files = OCIFileSystem(
        config=order["config_file"],
        config_kwargs={"service_endpoint": order["url"]},
        skip_instance_cache=True,
    )
    place = order["uri"].removeprefix("oci://")
    if order["action"] == "up":
        return lambda: files.put(f"{order['local']}/", f"{place}/", recursive=True)
    return lambda: files.get(f"{place}/", f"{order['local']}/", recursive=True)


def floor(order: Order) -> Callable[[], None]:
    from benchmarks.bare_http import BareHttp

    bucket = f"{order['url']}/n/{order['namespace']}/b/{order['bucket']}"
    client = BareHttp(bucket_url=bucket, prefix=order["prefix"], local=Path(order["local"]))
    return client.down if order["action"] == "down" else client.up


def peak_mb() -> int:
    """Return the most memory that this process has had, since it began: not `ru_maxrss`, which is inherited."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) // 1000 if found else 0


def main() -> None:
    client, order = sys.argv[1], json.loads(sys.argv[2])
    run = {"ours": ours, "ocifs": ocifs, "floor": floor}[client](order)
    began = time.perf_counter()
    run()
    taken = time.perf_counter() - began
    print(json.dumps({"seconds": taken, "peak_mb": peak_mb(), "cpu_s": time.process_time()}))


if __name__ == "__main__":
    main()
