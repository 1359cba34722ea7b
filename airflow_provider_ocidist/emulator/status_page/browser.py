"""What a browser may do here: nothing for pages other than ours, nothing under a name that others can point at us."""

from __future__ import annotations

import ipaddress
from contextlib import suppress

from starlette.responses import Response

from airflow_provider_ocidist.emulator.control import BASE
from airflow_provider_ocidist.emulator.errors import ApiError
from airflow_provider_ocidist.emulator.listening import is_own_user
from airflow_provider_ocidist.emulator.wire import Call

PAGE = "/"
METADATA = "/opc/"
"""Path of the instance metadata service, which gives keys to any local caller, and a browser is one."""
PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        # The browser itself then refuses innerHTML: names of objects and lines of logs are hostile.
        " require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-cache",
}
OBJECT_HEADERS = {
    **PAGE_HEADERS,
    # An object of any content type, opened by itself, runs nothing and reads nothing of ours.
    "content-security-policy": "sandbox; default-src 'none'; img-src 'self'; style-src 'unsafe-inline'",
    "cache-control": "no-store",
}


def check_user(call: Call) -> None:
    """Raise 403 for a request of another user of the machine to the emulator itself."""
    if is_ours(call.raw_path) and not is_own_user(call.request.scope):
        raise ApiError(403, "Forbidden", "Only programs of the user who runs the emulator may control it.")


def check(call: Call) -> None:
    """Raise 403 for an unsigned request that a foreign page makes the browser send."""
    headers, ours = call.headers, is_ours(call.raw_path)
    if (ours or call.raw_path.startswith(METADATA)) and not is_local(headers.get("host", "")):
        raise ApiError(403, "Forbidden", "Open this page at its address (127.0.0.1) or at localhost.")
    if "origin" in headers and not (ours and headers["origin"] == f"http://{headers['host']}"):
        raise ApiError(403, "Forbidden", "Pages in a browser may not control the emulator.")
    # Browsers name the requesting site also where they send no Origin. A link on any page may lead to ours.
    if call.raw_path != PAGE and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise ApiError(403, "Forbidden", "Pages of other sites may not read from the emulator.")


def confine(call: Call, response: Response) -> None:
    """Keep what a client has stored, such as a web page, from acting as ours when a browser opens it."""
    if "sec-fetch-mode" in call.headers and not is_ours(call.raw_path):
        response.headers["content-security-policy"] = "sandbox"


def is_ours(raw_path: str) -> bool:
    return raw_path == PAGE or raw_path.startswith(BASE)


def is_local(host: str) -> bool:
    """Return whether a Host header cannot be a name that its owner has pointed at this machine (DNS rebinding)."""
    name = host.removeprefix("[").partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(name) is not None
    return False
