"""The commented script is ended in the midst, on two nodes, and goes on as if nothing had been."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from airflow_provider_ocidist.job import Checkpoints, Limits
from airflow_provider_ocidist.storage.checkpoints import newest
from tests.agent.gangs import REPOSITORY, Gang, until

pytestmark = [pytest.mark.launchers, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = (REPOSITORY / "dags_examples" / "train" / "resumable.py").read_text()
NEVER = 10**9


def gang_of(root: Path, safe: Path, steps: int) -> Gang:
    options = {
        "checkpoints": Checkpoints(uri=str(safe)),
        "limits": Limits(stop_grace=60.0, join_timeout=120.0),
    }
    args = ("--steps", str(steps), "--save-every", str(NEVER))
    return Gang(root, SCRIPT, nodes=2, args=args, **options)


def weights_in(safe: Path) -> dict:
    import torch

    found = newest(str(safe))
    assert found is not None
    (file,) = Path(found.uri).glob("*.pt")
    return torch.load(file, weights_only=True)["model"]


def test_a_training_that_was_ended_in_the_midst_reaches_the_weights_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    import torch

    seed = random.randrange(10**6)
    print(f"seed {seed}")
    wanted = 10 * random.Random(seed).randint(1, 20)

    ended, alone = tmp_path / "ended", tmp_path / "alone"
    with gang_of(tmp_path / "first", ended, NEVER) as gang:
        gang.start()
        until(lambda: step_of(gang) >= wanted)
        for agent in gang.agents:
            agent.signal(signal.SIGTERM)
        assert [agent.wait() for agent in gang.agents] == [143, 143]
    stopped = newest(str(ended))
    assert stopped is not None
    assert stopped.step is not None
    assert stopped.step >= wanted

    print(f"stopped at {stopped.step}, wanted {wanted}")
    last = stopped.step + 30
    with gang_of(tmp_path / "second", ended, last) as gang:
        assert gang.run() == [0, 0], gang.agents[0].stderr.read_text()
        assert f"after step {stopped.step}" in gang.agents[1].stdout.read_text()
    with gang_of(tmp_path / "third", alone, last) as gang:
        assert gang.run() == [0, 0], gang.agents[0].stderr.read_text()
        progress = gang.agents[0].report.progress
    assert progress is not None
    assert (progress.step, progress.steps) == (last, last)
    resumed, whole = weights_in(ended), weights_in(alone)
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


def step_of(gang: Gang) -> int:
    if not (gang.run_dir / "nodes" / "0.json").exists():
        return 0
    progress = gang.agents[0].report.progress
    return (progress and progress.step) or 0
