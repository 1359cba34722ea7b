"""P4's and P5's peer: Oracle ADS watches one job run. Runs in the clients' environment, where ADS lives."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Watch for ever, by ADS's own interval of 3 s; `sys.argv[1]` is JSON: credentials and a run.

    The emulator must be reached by its proxy: to ask for logs, ADS drops the endpoint that it was given.
    """
    settings = json.loads(sys.argv[1])
    import ads
    from ads.jobs import DataScienceJobRun

    ads.set_auth("api_key", oci_config_location=settings["config_file"], profile=settings["profile"])
    print("watching", flush=True)
    DataScienceJobRun.from_ocid(settings["run"]).watch()


if __name__ == "__main__":
    main()
