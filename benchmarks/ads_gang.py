"""P1's peer: Oracle ADS creates a gang, in either of its ways. Runs in the clients' environment, where ADS lives."""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Print how long it took; `sys.argv[1]` is JSON: the emulator's access, number of nodes, entry script, `native`."""
    told = json.loads(sys.argv[1])
    import ads
    from ads.jobs import DataScienceJob, Job, PyTorchDistributedRuntime
    from ads.jobs.builders.infrastructure import dsc_job

    # ADS's default, with an SDK that knows multi-node jobs, is one run of many nodes; without, a run for each node.
    if told["native"] and not dsc_job.MULTI_NODE_JOB_SUPPORT:
        raise SystemExit("this ADS makes no multi-node runs: its OCI SDK is too old")
    dsc_job.MULTI_NODE_JOB_SUPPORT = told["native"]
    ads.set_auth(
        "api_key",
        oci_config_location=told["config_file"],
        profile=told["profile"],
        client_kwargs={"service_endpoint": told["url"]},
    )
    infrastructure = (
        DataScienceJob()
        .with_compartment_id(told["compartment_id"])
        .with_project_id(told["project_id"])
        .with_subnet_id(told["subnet_id"])
        .with_shape_name("VM.Standard2.1")
        .with_block_storage_size(50)
        .with_log_group_id(told["log_group_id"])
        .with_log_id(told["log_id"])
    )
    runtime = (
        PyTorchDistributedRuntime()
        .with_service_conda("pytorch21_p39_gpu_v1")
        .with_source(told["script"])
        .with_command("torchrun steps.py")
        .with_replica(told["nodes"])
    )
    job = Job(name="gang", infrastructure=infrastructure, runtime=runtime)
    began = time.perf_counter()
    job.create()
    job.run()
    print("took", time.perf_counter() - began)


if __name__ == "__main__":
    main()
