"""A person's program with ADS: a container on two nodes, as today's ADS starts it, and as that of 2024 did."""

import json
import sys
import time

from ads.jobs import ContainerRuntime, DataScienceJob, Job
from ads.jobs.builders.infrastructure import dsc_job

place, image, work_dir, code = json.loads(sys.argv[1]), *sys.argv[2:]
jobs = {}
for mode, command in (("one run", "torchrun training.py"), ("a run each", "python training.py")):
    infrastructure = (
        DataScienceJob()
        .with_compartment_id(place["compartment_id"])
        .with_project_id(place["project_id"])
        .with_subnet_id(place["subnet_id"])
        .with_log_group_id(place["log_group_id"])
        .with_log_id(place["log_id"])
        .with_shape_name("VM.Standard.E4.Flex")
        .with_shape_config_details(ocpus=1, memory_in_gbs=8)
        .with_block_storage_size(50)
    )
    # False is what an SDK without models for many nodes in one run makes of it.
    dsc_job.MULTI_NODE_JOB_SUPPORT = mode == "one run"
    runtime = (
        ContainerRuntime()
        .with_image(image, cmd=command)
        .with_environment_variable(
            OCIDIST_WORK_DIR=work_dir, OCI__RUNTIME_TYPE="remote", OCI__RUNTIME_URI=code
        )
        .with_replica(2)
    )
    jobs[mode] = Job(name=mode).with_infrastructure(infrastructure).with_runtime(runtime).create()
    jobs[mode].run()

deadline = time.monotonic() + 150
while True:
    states = {mode: [run.status for run in job.run_list()] for mode, job in jobs.items()}
    ended = [state in ("SUCCEEDED", "FAILED", "CANCELED") for found in states.values() for state in found]
    if all(ended) or time.monotonic() > deadline:
        break
    time.sleep(0.5)
print(json.dumps({mode: [job.id, states[mode]] for mode, job in jobs.items()}))
