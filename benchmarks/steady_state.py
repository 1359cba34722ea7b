"""P3b: steps of four linear layers under our agent, that prints and reports each, and under bare torchrun."""

from __future__ import annotations

from benchmarks.comparison import Comparison, Samples
from benchmarks.nodes import Nodes

TARGET = 1.01
SCRIPT = """
import os, pathlib, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
data = torch.randn(64, 256)
def steps(count):
    for step in range(count):
        loss = model(data).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if dist.get_rank() == 0:
            print(f"step {step}/{count} loss {loss.item():.4f}")
steps(50)
began = time.perf_counter()
steps(1500)
taken = time.perf_counter() - began
pathlib.Path(os.environ["RESULTS"], f"took-{os.environ['RANK']}").write_text(repr(taken))
dist.destroy_process_group()
"""


class SteadyState(Comparison):
    name = "P3b"
    title = "1,500 steps of four linear layers by two processes on CPUs, each step printed"
    peer_name = "bare torchrun"
    unit = "s"
    target = f"at most {TARGET}x"

    def ours(self) -> float:
        with Nodes(SCRIPT, 1, processes=2) as nodes:
            nodes.agent(0)
            nodes.wait()
            return max(nodes.results("took"))

    def peer(self) -> float:
        with Nodes(SCRIPT, 1, processes=2) as nodes:
            nodes.torchrun(0)
            nodes.wait()
            return max(nodes.results("took"))

    def met(self, samples: Samples) -> bool:
        return samples.ratio.low >= 1 / TARGET


ROW = SteadyState()
