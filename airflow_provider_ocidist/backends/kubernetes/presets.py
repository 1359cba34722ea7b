"""What a node on one of OKE's shapes with an RDMA network needs of its pod. Pure.

Source: github.com/oracle-quickstart/oci-hpc-oke, its manifests for NCCL tests and PyTorch; not tried on such machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.backends.kubernetes.merging import merged_manifest

NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the folder of a pod


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape of OCI."""

    gpus: int
    resource: str = NVIDIA

    def parameters(self, name: str) -> str:
        """Return the ConfigMap in which Oracle keeps the library's parameters for the shape."""
        library = "nccl" if self.resource == NVIDIA else "rccl"
        return f"oci-{library}-parameters-{name.lower().replace('.', '-')}"


SHAPES = {
    "BM.GPU4.8": Shape(8),
    "BM.GPU.B4.8": Shape(8),
    "BM.GPU.A100-v2.8": Shape(8),
    "BM.GPU.H100.8": Shape(8),
    "BM.GPU.H200.8": Shape(8),
    "BM.GPU.B200.8": Shape(8),
    "BM.GPU.MI300X.8": Shape(8, AMD),
}


def pod_of(name: str, template: dict[str, Any], container: str) -> dict[str, Any]:
    """Return a pod's template with what the shape needs laid over it."""
    shape = SHAPES[name]
    return merged_manifest(
        template,
        {
            "spec": {
                "hostNetwork": True,
                "dnsPolicy": "ClusterFirstWithHostNet",
                "nodeSelector": {"node.kubernetes.io/instance-type": name},
                "tolerations": [{"key": shape.resource, "operator": "Exists", "effect": "NoSchedule"}],
                "volumes": [
                    {"name": "infiniband", "hostPath": {"path": "/dev/infiniband"}},
                    {"name": "shm", "emptyDir": {"medium": "Memory"}},
                ],
                "containers": [
                    {
                        "name": container,
                        "envFrom": [{"configMapRef": {"name": shape.parameters(name)}}],
                        "securityContext": {"privileged": True, "capabilities": {"add": ["IPC_LOCK"]}},
                        "volumeMounts": [
                            {"name": "infiniband", "mountPath": "/dev/infiniband"},
                            {"name": "shm", "mountPath": SHARED_MEMORY},
                        ],
                    }
                ],
            }
        },
    )
