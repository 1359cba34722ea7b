"""P1's peer: Oracle ADS creates a gang, in either of its ways. Runs in the clients' environment, where ADS lives."""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Print how long it took; `sys.argv[1]` is JSON: the emulator's access, number of nodes, entry script, `native`."""
    settings = json.loads(sys.argv[1])
    import ads
    from ads.jobs import DataScienceJob, Job, PyTorchDistributedRuntime
    from ads.jobs.builders.infrastructure import dsc_job

    # ADS's default, with an SDK that knows multi-node jobs, is one run of many nodes; without, a run for each node.
    if settings["native"] and not dsc_job.MULTI_NODE_JOB_SUPPORT:
        raise SystemExit("this ADS makes no multi-node runs: its OCI SDK is too old")
    dsc_job.MULTI_NODE_JOB_SUPPORT = settings["native"]
    ads.set_auth(
        "api_key",
        oci_config_location=settings["config_file"],
        profile=settings["profile"],
        client_kwargs={"service_endpoint": settings["url"]},
    )
    infrastructure = (
        DataScienceJob()
        .with_compartment_id(settings["compartment_id"])
        .with_project_id(settings["project_id"])
        .with_subnet_id(settings["subnet_id"])
        .with_shape_name("VM.Standard2.1")
        .with_block_storage_size(50)
        .with_log_group_id(settings["log_group_id"])
        .with_log_id(settings["log_id"])
    )
    runtime = (
        PyTorchDistributedRuntime()
        .with_service_conda("pytorch21_p39_gpu_v1")
        .with_source(settings["script"])
        .with_command("torchrun steps.py")
        .with_replica(settings["nodes"])
    )
    job = Job(name="gang", infrastructure=infrastructure, runtime=runtime)
    began = time.perf_counter()
    job.create()
    job.run()
    print("took", time.perf_counter() - began)


if __name__ == "__main__":
    main()
