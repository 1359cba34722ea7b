"""What stands for the program in the image of the seed's manifests: a small model on data of its own, with gloo.

Rank 0 writes what was learned to /opt/pytorch/output, as the image does.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist

OUTPUT = Path("/opt/pytorch/output")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    dist.init_process_group(parser.parse_args().backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 2)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    for step in range(48 // world):
        images = torch.randn(32, 4)
        labels = (images.sum(dim=1) > 0).long()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        model.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            # By hand: torch.optim takes as long to import as all the rest.
            parameter.data -= 0.5 * parameter.grad / world
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    if rank == 0 and OUTPUT.is_dir():
        torch.save(model.state_dict(), OUTPUT / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__" and "RANK" in os.environ:
    main()
