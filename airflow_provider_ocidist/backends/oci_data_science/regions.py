"""Regions: which one an OCID names, and what a connection to another one cannot see."""

from __future__ import annotations

from airflow_provider_ocidist.errors import BackendError, Cause


def region_of(ocid: str) -> str | None:
    """Return the region that an OCID names, `us-ashburn-1` for `iad`; None where it names none that the SDK knows."""
    from oci.regions import REGIONS_SHORT_NAMES

    named = ocid.split(".")[3:4]
    return REGIONS_SHORT_NAMES.get(*named) if named else None


def long_name(region: str) -> str:
    from oci.regions import REGIONS_SHORT_NAMES

    return str(REGIONS_SHORT_NAMES.get(region, region))


def refuse_other_region(run_id: str, region: str) -> None:
    """Raise BackendError for a run whose OCID names another region than the one that does not find it."""
    lies_in = region_of(run_id)
    if lies_in is not None and lies_in != long_name(region):
        raise BackendError(
            f"job run {run_id} lies in {lies_in}, and the connection names {region}: set its region back to {lies_in}, "
            "or use another connection for new runs",
            cause=Cause.CONFIG,
        )
