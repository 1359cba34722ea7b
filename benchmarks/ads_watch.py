"""P4's and P5's peer: Oracle ADS watches one job run. Runs in the clients' environment, where ADS lives."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Watch for ever, by ADS's own interval of 3 s; `sys.argv[1]` is JSON: the emulator's access, and a run."""
    told = json.loads(sys.argv[1])
    import ads
    from ads.jobs import DataScienceJobRun

    ads.set_auth(
        "api_key",
        oci_config_location=told["config_file"],
        profile=told["profile"],
        client_kwargs={"service_endpoint": told["url"]},
    )
    print("watching", flush=True)
    DataScienceJobRun.from_ocid(told["run"]).watch()


if __name__ == "__main__":
    main()
