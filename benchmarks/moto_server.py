"""moto's server, in an environment of its own, and the requests to it that are most like ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.http_load import Operations, Served, request_bytes, send
from scripts.service import Service

ROOT = Path(__file__).resolve().parent.parent
MOTO = "moto[server]==5.2.1"
MOTO_VENV = ROOT / ".venv-moto"
MOTO_SERVER = """
import sys, time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
open(sys.argv[1], "w").write("http://%s:%d" % server.get_host_and_port())
time.sleep(3600)
"""


@contextmanager
def moto(folder: Path, *, jobs: int, content: bytes) -> Iterator[tuple[Served, Operations]]:
    """Run moto's server with as many training jobs and an object."""
    make_moto_venv()
    folder.mkdir()
    ready = folder / "url"
    command = [str(MOTO_VENV / "bin/python"), "-c", MOTO_SERVER, str(ready)]
    service = Service("moto", command, log=folder / "log", env=os.environ, cwd=folder)
    service.start()
    try:
        while not (ready.exists() and ready.read_text()):
            service.check()
        served = Served(ready.read_text(), service.pid)
        yield served, _operations(served, jobs, content)
    finally:
        service.stop()


def make_moto_venv() -> None:
    """Install moto beside us, in an environment of its own: it brings half of AWS along."""
    if (MOTO_VENV / ".ready").exists():
        return
    print(f"  installing {MOTO} into {MOTO_VENV.name} (once; a minute or two)", flush=True)
    subprocess.run([sys.executable, "-m", "venv", MOTO_VENV], check=True)
    install = [str(MOTO_VENV / "bin/python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*install, MOTO], check=True)
    (MOTO_VENV / ".ready").touch()


def _operations(served: Served, jobs: int, content: bytes) -> Operations:
    """SageMaker's training jobs are what comes closest to job runs. moto checks no signature, so there is none."""
    for number in range(jobs):
        send(
            served.address, [_sagemaker("CreateTrainingJob", **_training_job(number))], count=1, connections=1
        )
    put = _aws("s3", "PUT", "/bucket/object", content)
    send(served.address, [_aws("s3", "PUT", "/bucket", b""), put], count=2, connections=1)
    return {
        "DescribeTrainingJob": [
            _sagemaker("DescribeTrainingJob", TrainingJobName=f"job-{number}") for number in range(jobs)
        ],
        f"ListTrainingJobs of {jobs}": [_sagemaker("ListTrainingJobs", MaxResults=100)],
        "GetObject of 1 KiB": [_aws("s3", "GET", "/bucket/object", b"")],
        "PutObject of 1 KiB": [_aws("s3", "PUT", f"/bucket/put-{number}", content) for number in range(20)],
    }


def _training_job(number: int) -> dict[str, Any]:
    return {
        "TrainingJobName": f"job-{number}",
        "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
        "RoleArn": "arn:aws:iam::123456789012:role/training-role",
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/output"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 50},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    }


def _sagemaker(operation: str, **body: Any) -> bytes:
    return _aws(
        "sagemaker", "POST", "/", json.dumps(body).encode(), {"x-amz-target": f"SageMaker.{operation}"}
    )


def _aws(service: str, method: str, path: str, body: bytes, more: Mapping[str, str] | None = None) -> bytes:
    scope = f"Credential=key/20260101/us-east-1/{service}/aws4_request"
    headers = {
        "host": "127.0.0.1",
        "authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0",
        "content-type": "application/x-amz-json-1.1"
        if service == "sagemaker"
        else "application/octet-stream",
        "content-length": str(len(body)),
        **(more or {}),
    }
    return request_bytes(method, path, headers, body)
