"""A person's program with ADS: train on three nodes, watch, change one's mind about a second run, clean up."""

import json
import sys

from ads.jobs import DataScienceJob, Job, PyTorchDistributedRuntime

place, source = json.loads(sys.argv[1]), sys.argv[2]
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
runtime = (
    PyTorchDistributedRuntime()
    .with_service_conda(place["conda"])
    .with_source(source)
    .with_command("torchrun training.py")
    .with_output("outputs", f"oci://{place['bucket']}@{place['namespace']}/by-ads")
    .with_replica(3)
)
job = Job(name="by ADS").with_infrastructure(infrastructure).with_runtime(runtime).create()

run = job.run()
run.watch(interval=0.5, wait=1)

canceled = job.run()
canceled.cancel()

again = Job.from_datascience_job(job.id)
told = {
    "run": run.status,
    "groups": [group["lifecycleState"] for group in run.to_dict()["nodeGroupDetailsList"]],
    "canceled": canceled.status,
    "replicas": again.runtime.replica,
    "command": again.runtime.command,
    "runs": len(again.run_list()),
}
again.delete()
print(json.dumps(told))
