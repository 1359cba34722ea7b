"""Where the links of a task lead: the console of the right realm and region, or the emulator's page."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote

import pytest

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.hooks.links import (
    JobRunLink,
    LogsLink,
    checkpoint_url,
    console,
    job_run_url,
    links_of_run,
    logs_url,
)
from airflow_provider_ocidist.model.run import RunKey, RunRef
from airflow_provider_ocidist.oci_client.credentials import OciAccess

RUN = "ocid1.datasciencejobrun.oc1.{}.aaa{}"


def ref(region: str = "iad", nodes: int = 2, **more: object) -> RunRef:
    return RunRef(
        backend="oci_data_science",
        key=RunKey(dag_id="d", run_id="r", task_id="t"),
        nodes=nodes,
        job_id="ocid1.datasciencejob.oc1.iad.jjj",
        run_ids=tuple(RUN.format(region, rank) for rank in range(nodes)),
        run_dir="oci://b@n/w",
        submitted_at=0.0,
        **{"compartment_id": "comp", "log_group_id": "group", **more},
    )


@pytest.mark.parametrize(
    "region, address",
    [
        ("us-ashburn-1", "https://cloud.oracle.com"),
        ("eu-frankfurt-1", "https://cloud.oracle.com"),
        ("us-langley-1", "https://console.us-langley-1.oraclegovcloud.com"),
        ("uk-gov-london-1", "https://console.uk-gov-london-1.oraclegovcloud.uk"),
        ("a-region-of-tomorrow", "https://cloud.oracle.com"),
    ],
)
def test_each_realm_has_its_console(region, address):
    assert console(region) == address


def test_the_job_run_is_shown_in_its_own_region():
    url = job_run_url(ref("fra"), OciAccess(region="us-ashburn-1"))
    assert (
        url == f"https://cloud.oracle.com/data-science/job-runs/{RUN.format('fra', 0)}?region=eu-frankfurt-1"
    )


def test_the_log_explorer_is_asked_for_all_nodes():
    url = logs_url(ref(log_id="log"), OciAccess())
    assert url is not None
    assert url.startswith(
        "https://cloud.oracle.com/logging/search?searchQuery=search%20%22comp%2Fgroup%2Flog%22"
    )
    assert url.endswith("&regions=us-ashburn-1")
    for rank in range(2):
        assert f"source = '*{RUN.format('iad', rank)}'" in unquote(url)


def test_the_log_explorer_is_asked_where_the_log_group_lies():
    url = links_of_run(ref(), OciAccess(), lambda: "elsewhere/group")[LogsLink.xcom_key]
    assert 'search "elsewhere/group" | where' in unquote(url)
    url = links_of_run(ref(), OciAccess(), lambda: None)[LogsLink.xcom_key]
    assert 'search "comp/group" | where' in unquote(url)


def test_a_run_without_a_log_group_has_no_link_to_logs():
    assert set(links_of_run(ref(log_group_id=None), OciAccess())) == {JobRunLink.xcom_key}


def test_the_address_of_many_nodes_logs_stays_short():
    assert len(logs_url(ref(nodes=500), OciAccess()) or "") < 2000


def test_the_checkpoint_is_shown_in_its_bucket():
    url = checkpoint_url("oci://models@space/gpt/step 8", ref(), OciAccess(region="eu-frankfurt-1"))
    place = "object-storage/buckets/space/models/objects?region=eu-frankfurt-1&prefix=gpt%2Fstep%208%2F"
    assert url == f"https://cloud.oracle.com/{place}"
    assert checkpoint_url("/mnt/models/step-8", ref(), OciAccess()) is None


@pytest.mark.parametrize("kind", [kind for kind in kinds.names("backends") if kind != "oci_data_science"])
def test_a_run_at_another_home_has_no_link_to_oci(kind):
    assert links_of_run(replace(ref(), backend=kind), OciAccess(region="us-ashburn-1")) == {}
    assert links_of_run(replace(ref(), backend=kind), OciAccess(endpoint="http://127.0.0.1:8080")) == {}


def test_the_emulators_runs_are_on_its_own_page():
    access = OciAccess(endpoint="http://127.0.0.1:8080/")
    job = "http://127.0.0.1:8080/#/jobs/ocid1.datasciencejob.oc1.iad.jjj"
    assert links_of_run(ref(), access) == {JobRunLink.xcom_key: job, LogsLink.xcom_key: job}
    assert checkpoint_url("oci://b@n/m/1", ref(), access) == "http://127.0.0.1:8080/#/objects/b/m%2F1%2F"
