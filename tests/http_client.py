"""`http`: one client for what tests ask of emulators; a function of httpx reads all certificates for each request."""

from __future__ import annotations

import httpx

http = httpx.Client(
    verify=False,
    trust_env=False,
    # An emulator that was started again must not get what was left of a connection to the last one.
    limits=httpx.Limits(max_keepalive_connections=0),
)
