"""The runtime `container` of ADS's `kind: job`: the image decides what it starts."""

from __future__ import annotations

from typing import Any

from airflow_provider_ocidist.job_file.dialects.ads.arguments import put_words
from airflow_provider_ocidist.job_file.dialects.base import Draft, Section
from airflow_provider_ocidist.job_file.schema import value_shown

KNOWN = {"image", "entrypoint", "cmd", "imageDigest", "imageSignatureId"}
REFUSED = {
    "scriptPathURI": "is not carried into a container here: put the code into the image, or let it fetch the code"
}
COMPUTED = {"NODE_COUNT", "NODE_RANK", "MAIN_JOB_RUN_OCID"}
"""Variables by which ADS passes nodes their position; it overwrites values set by hand."""


def put(draft: Draft, runtime: Section) -> None:
    """Put the keys that only this runtime has."""
    draft.put_needed("image", runtime, "image")
    pinned = {"imageDigest": "backend.image_digest", "imageSignatureId": "backend.image_signature_id"}
    draft.copy(runtime, pinned)
    draft.mapping["container"] = {}
    for key, ours in (("entrypoint", "container.entrypoint"), ("cmd", "container.command")):
        if (value := _words(draft, runtime, key)) is not None:
            draft.put(ours, runtime.at(key), value)
    put_words(draft, "program.args", runtime, "args")
    if draft.mapping["nodes"] > 1:
        # Several nodes are distinguished by the variables that the service sets on the nodes of one run.
        draft.put("backend.topology", runtime.path, "multi_node")


def _words(draft: Draft, runtime: Section, key: str) -> Any:
    """Return a list as it is, and a text split at its commas, as ADS does."""
    value = runtime.value.get(key)
    if isinstance(value, str):
        return [word.strip() for word in value.split(",")] if value else None
    if value is None or isinstance(value, list | tuple):
        return value
    draft.complain(runtime.at(key), f"must be a list or text, not {value_shown(value)}")
    return None
