"""The node driver of Oracle ADS, its own code, for the rows P2, echo-ads and end. Runs in the clients' environment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types


def read_metadata(nodes: str) -> None:
    """Wait for the service's file as `Runner.read_metadata` does, and print when that returned."""
    # The driver imports torch to count GPUs, which this part does not need, and the clients do not have.
    torch = sys.modules["torch"] = types.ModuleType("torch")
    vars(torch)["Tensor"] = type("Tensor", (), {})  # what scipy asks every torch for
    from ads.jobs.templates import driver_pytorch

    runners = [cls for cls in vars(driver_pytorch).values() if hasattr(cls, "read_metadata")]
    runner = object.__new__(runners[0])
    runner.node_count, runner.node_rank = int(nodes), 0
    print("waiting", flush=True)
    runner.read_metadata()
    print(time.time(), flush=True)


def run_command(command: str) -> None:
    """Run a command as the driver does."""
    from ads.jobs.templates.driver_utils import JobRunner

    JobRunner.run_command(command)


def end() -> None:
    """Run an empty program as `kind: distributed` does, and print when it was gone."""
    from ads.opctl.distributed.common.abstract_cluster_provider import ClusterProvider
    from ads.opctl.distributed.common.cluster_runner import ClusterRunner

    class Cluster:
        """What is left when addresses and work directory are not needed."""

        sync = ClusterProvider.sync

        def start(self) -> None:
            pass

        def run_code(self) -> None:
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            print(f"gone {time.time()}", flush=True)

        def tearable(self) -> bool:
            return True

        def stop(self) -> None:
            pass

    os.environ["SYNC_ARTIFACTS"] = "0"
    ClusterRunner(cluster_provider=Cluster()).run()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
