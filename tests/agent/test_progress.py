"""Steps and losses in what programs print."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.progress import ProgressMeter, read_lines, read_record


@pytest.mark.parametrize(
    "line, found",
    [
        (b"step 10/300 loss 2.34 val 2.41 tokens/s 18000", {"step": 10, "steps": 300, "loss": 2.34}),
        (b"Step: 10, loss=2.34", {"step": 10, "loss": 2.34}),
        (b"{'step': 10, 'loss': 2.5e-3}", {}),
        (b"STEP=10 of 300 | train_loss: .5", {"step": 10, "steps": 300, "loss": 0.5}),
        (b"step 7 val_loss 1.5", {"step": 7}),
        (b"step 7 loss nan", {"step": 7}),
        (b"footstep 12", {}),
        (b"stepping 12 times", {}),
        (b"no progress here", {}),
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
    before = meter.updated_at
    meter.saw(b"tokenizing\n")
    assert meter.updated_at > before


def test_the_file_is_read_line_by_line_as_it_grows(tmp_path: Path) -> None:
    meter = ProgressMeter(tmp_path)
    with meter.file.open("a") as file:
        file.write('{"step": 1}\n{"st')
        file.flush()
        meter.read_file()
        assert meter.progress.step == 1
        file.write('ep": 2}\n')
        file.flush()
    meter.read_file()
    assert meter.progress.step == 2
