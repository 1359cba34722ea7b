"""Steps and losses in what programs print."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.metrics import read_lines, read_record, read_scalars
from airflow_provider_ocidist.agent.progress import CURVE_POINTS, ProgressMeter
from airflow_provider_ocidist.agent.tensorboard import EventFiles, find, read_records, scalars_of


@pytest.mark.parametrize(
    "line, found",
    [
        (
            b"step 10/300 loss 2.34 val 2.41 tokens/s 18000",
            {"step": 10, "steps": 300, "loss": 2.34, "throughput": 18000},
        ),
        (b"Step: 10, loss=2.34", {"step": 10, "loss": 2.34}),
        (b"{'step': 10, 'loss': 2.5e-3}", {"step": 10, "loss": 0.0025}),
        (b"STEP=10 of 300 | train_loss: .5", {"step": 10, "steps": 300, "loss": 0.5}),
        (b"step 7 val_loss 1.5", {"step": 7}),
        (b"step 7 loss nan", {"step": 7}),
        (b"footstep 12", {}),
        (b"stepping 12 times", {}),
        (b"no progress here", {}),
        (b"{'loss': 2.5, 'grad_norm': 1.2, 'learning_rate': 5e-05}", {"loss": 2.5, "learning_rate": 5e-05}),
        (b"{'loss': '2.5', 'learning_rate': '5e-05', 'epoch': '0.1'}", {"loss": 2.5, "learning_rate": 5e-05}),
        (b"{'eval_loss': 2.1, 'eval_runtime': 1.0, 'epoch': 1.0}", {}),
        (b'{"step": 4, "loss": 1.25, "lr": 0.001}', {"step": 4, "loss": 1.25, "learning_rate": 0.001}),
        (
            b"[titan] 2026-01-01 - root - INFO - \x1b[31mstep:  5  \x1b[32mloss:  5.03  \x1b[36mtps: 1,234  \x1b[39m",
            {"step": 5, "loss": 5.03, "throughput": 1234},
        ),
        (
            "  5%|▌         | 10/200 [00:05<01:35,  2.00it/s]".encode(),
            {"step": 10, "steps": 200, "throughput": 2.0, "of_bar": True},
        ),
        (
            "Epoch 2:  45%|████▌     | 90/200 [00:10<00:12,  4.00s/it, v_num=0, train_loss=2.300]".encode(),
            {"step": 490, "loss": 2.3, "throughput": 0.25, "of_bar": True},
        ),
        (
            "Epoch 0/9  ━━━━━━━━━━━━ 90/200 0:00:10 • 0:00:12 8.5it/s v_num: 0.000 train_loss: 2.300".encode(),
            {"step": 90, "loss": 2.3, "throughput": 8.5, "of_bar": True},
        ),
        ("Validation DataLoader 0:  50%|█████     | 5/10 [00:00<00:00, 90it/s]".encode(), {}),
        ("Map: 100%|██████████| 1000/1000 [00:01<00:00, 900 examples/s]".encode(), {}),
    ],
)
def test_lines_are_read(line, found) -> None:
    assert read_lines(line) == ([found] if found else [])


@pytest.mark.parametrize(
    "line, found",
    [
        (b'{"step": 3, "steps": 9, "loss": 0.5}', {"step": 3, "steps": 9, "loss": 0.5}),
        (b'{"step": 3, "loss": NaN}', {"step": 3}),
        (b'{"step": "many"}', {}),
        (b"[1, 2]", {}),
        (b"not json", {}),
    ],
)
def test_records_are_read(line, found) -> None:
    assert read_record(line) == found


def test_the_loss_of_each_step_is_remembered(tmp_path: Path) -> None:
    meter = ProgressMeter(tmp_path)
    meter.saw(b"step 1 loss 3.5\nstep 2 loss 2.5\n")
    assert (meter.loss_at(1), meter.loss_at(2), meter.loss_at(3)) == (3.5, 2.5, None)
    assert meter.progress.step == 2


def test_any_output_is_a_sign_of_life(tmp_path: Path) -> None:
    meter = ProgressMeter(tmp_path)
    before = meter.progress.updated_at
    meter.saw(b"tokenizing\n")
    assert meter.progress.updated_at > before


def test_the_file_is_read_line_by_line_as_it_grows(tmp_path: Path) -> None:
    meter = ProgressMeter(tmp_path)
    with meter.file.open("a") as file:
        file.write('{"step": 1}\n{"st')
        file.flush()
        meter.read()
        assert meter.progress.step == 1
        file.write('ep": 2}\n')
        file.flush()
    meter.read()
    assert meter.progress.step == 2


def test_a_progress_bar_of_an_evaluation_does_not_turn_the_clock_back(tmp_path: Path) -> None:
    meter = ProgressMeter(tmp_path)
    meter.saw("  5%|▌  | 10/200 [00:05<01:35, 2.00it/s]\r".encode())
    meter.saw(b"{'loss': 2.5, 'learning_rate': 5e-05}\n")
    meter.saw("  20%|▌  | 1/5 [00:01<00:04, 1.00it/s]\r".encode())
    assert (meter.progress.step, meter.progress.steps, meter.loss_at(10)) == (10, 200, 2.5)
    assert meter.progress.printed


RECORDED = Path(__file__).with_name("recorded") / "events.out.tfevents.recorded"
"""Three steps, with a text and a histogram beside the scalars; written by torch.utils.tensorboard (torch 2.13)."""


def test_tensorboards_files_are_read_as_they_grow(tmp_path: Path) -> None:
    files = EventFiles(tmp_path)
    content = RECORDED.read_bytes()
    place = tmp_path / "runs" / "today" / "events.out.tfevents.1.node"
    place.parent.mkdir(parents=True)
    place.write_bytes(content[:500])
    first = list(files.new_scalars())
    place.write_bytes(content)
    scalars = [*first, *files.new_scalars()]
    assert 0 < len(first) < len(scalars) == 12
    assert scalars[:3] == [
        (1, "train/loss", 3.0),
        (1, "lr", pytest.approx(0.001)),
        (1, "throughput(tps)", 1000.0),
    ]
    merged: dict[str, float] = {}
    for found in read_scalars(iter(scalars)):
        merged |= found
    assert merged == {"step": 3, "loss": 1.0, "learning_rate": pytest.approx(0.001), "throughput": 3000.0}


def test_tensorboards_files_of_an_earlier_run_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / RECORDED.name).write_bytes(RECORDED.read_bytes())
    assert list(EventFiles(tmp_path).new_scalars()) == []
    assert find(tmp_path) == [tmp_path / RECORDED.name]


def test_what_is_no_event_file_does_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "tfevents"
    for content in (b"", b"\xff" * 100, b"\0" * 100, RECORDED.read_bytes()[3:]):
        file.write_bytes(content)
        records, _ = read_records(file, 0)
        assert [scalar for record in records for scalar in scalars_of(record)] == []


def test_events_count_only_where_the_program_says_nothing_simpler(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    meter = ProgressMeter(tmp_path / "own")
    meter.look_for_events_in(tmp_path)
    (tmp_path / RECORDED.name).write_bytes(RECORDED.read_bytes())
    meter.read()
    assert (meter.progress.step, meter.progress.printed) == (3, False)
    meter.saw(b"step 1 loss 9.0\n")
    meter.read()
    assert (meter.progress.step, meter.progress.loss) == (1, 9.0)


def test_the_losses_of_a_long_training_are_thinned_evenly(tmp_path: Path) -> None:
    meter = ProgressMeter(tmp_path / "own")
    for step in range(1, 2_501):
        meter.saw(f"step {step}/2500 loss {1 / step}\n".encode())
    points = meter.progress.losses
    gaps = {after[0] - before[0] for before, after in itertools.pairwise(points)}
    assert points[0] == (1, 1.0)
    assert CURVE_POINTS / 2 < len(points) <= CURVE_POINTS
    assert gaps == {32}
    assert all(loss == pytest.approx(1 / step, rel=1e-4) for step, loss in points)


def test_a_loss_told_twice_is_one_point(tmp_path: Path) -> None:
    meter = ProgressMeter(tmp_path / "own")
    meter.saw(b"step 1 loss 9\nstep 1 loss 8\nstep 2 loss 7\n")
    assert meter.progress.losses == ((1, 9.0), (2, 7.0))
