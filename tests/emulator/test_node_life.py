"""What nodes live through: tokens that are renewed, an emulator that is killed."""

from __future__ import annotations

import json
import signal
import time

from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import OPTIONS, Cloud
from tests.emulator.test_job_runs import STUBBORN, is_alive
from tests.emulator.test_multi_node import multi_node_job, states
from tests.emulator.test_standalone import standing_alone

ASK_ON = """
import os, time
import oci
signer = oci.auth.signers.get_resource_principals_signer()
options = {"service_endpoint": os.environ["OCI_CLI_ENDPOINT"], "retry_strategy": oci.retry.NoneRetryStrategy()}
client = oci.data_science.DataScienceClient({}, signer=signer, **options)
tokens, end = set(), time.monotonic() + 4
while time.monotonic() < end:
    assert client.get_job_run(os.environ["JOB_RUN_OCID"]).status == 200
    tokens.add(signer.api_key)
    time.sleep(0.2)
print(len(tokens))
"""


def test_a_nodes_token_is_renewed_before_it_expires():
    with Emulator(options=Options(token_lifetime_s=3)) as emulator:
        cloud = Cloud.of(emulator.access)
        run = cloud.run(ASK_ON)
        assert (run.lifecycle_state, run.lifecycle_details) == (
            "SUCCEEDED",
            "Job run artifact execution succeeded.",
        )
        assert int(cloud.messages(run.id)[0]) >= 2
        refused = [call for call in cloud.control("GET", "/calls") if call["status"] == 401]
    assert refused


def test_a_killed_emulator_leaves_no_node_and_no_run_in_progress(folder):
    with standing_alone(folder, "--quiet") as (process, access):
        cloud = Cloud.of(access)
        run_id = cloud.start(multi_node_job(cloud, STUBBORN))
        deadline = time.monotonic() + 10
        while len(messages := cloud.messages(run_id)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        pids = [int(pid) for message in messages for pid in message.split()]
        process.send_signal(signal.SIGKILL)
        process.wait(5)
        deadline = time.monotonic() + 5
        while any(map(is_alive, pids)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    with Emulator(state=folder, options=OPTIONS) as emulator:
        cloud = Cloud.of(emulator.access)
        run = cloud.jobs.get_job_run(run_id).data
        assert (run.lifecycle_state, states(run)) == ("FAILED", {"node-group": "FAILED"})
        assert "emulator stopped" in run.lifecycle_details
        assert list((folder / "runs").iterdir()) == []
        assert len(cloud.messages(run_id)) == 2
        json.dumps(cloud.control("GET", ""))
