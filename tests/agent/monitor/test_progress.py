"""Steps and losses in what programs print."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from random import Random

import pytest

from airflow_provider_ocidist.agent.monitor.metrics import OutputReader, read_record, read_scalars
from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.agent.monitor.steps import CURVE_POINTS, LATE, Unplaced
from airflow_provider_ocidist.agent.monitor.tensorboard import (
    EventFiles,
    event_files_in,
    read_records,
    scalars_of,
)
from tests.agent.gangs import until


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
        (
            b"{'loss': 2.5, 'grad_norm': 1.2, 'learning_rate': 5e-05}",
            {"loss": 2.5, "learning_rate": 5e-05, "record": True},
        ),
        (
            b"{'loss': '2.5', 'learning_rate': '5e-05', 'epoch': '1'}",
            {"loss": 2.5, "learning_rate": 5e-05, "record": True},
        ),
        (b"{'eval_loss': 2.1, 'eval_runtime': 1.0, 'epoch': 1.0}", {"record": True}),
        (b"{'train_runtime': 3.1, 'train_loss': 1.4, 'epoch': 1.0}", {"record": True}),
        (b"{'accuracy': 0.5}", {}),
        (b"iter 100: loss 2.1234, time 12.34ms", {"step": 100, "loss": 2.1234}),
        (b" iteration       10/     500 | lm loss: 1.07E+01 |", {"step": 10, "steps": 500, "loss": 10.7}),
        (
            b"[GPU0] Epoch 1 | Iter 100 | Train Loss 2.10000",
            {"step": 100, "epoch": 1, "loss": 2.1},
        ),
        (b"[GPU0] Epoch 1 | Iter 100 | Eval Loss 2.10000", {}),
        (b"Rank 3: [2,   201] loss: 0.011", {"step": 201, "epoch": 2, "loss": 0.011}),
        (b"[ 1,  2000] loss:  2.123", {"step": 2000, "epoch": 1, "loss": 2.123}),
        (b"[1, 1] loss: 0.002", {"step": 1, "epoch": 1, "loss": 0.002}),
        (
            b"Epoch [3/10], Step [100/600], Loss: 0.5",
            {"step": 100, "epoch": 3, "epochs": 10, "length": 600, "loss": 0.5},
        ),
        (
            b"Epoch: [0][ 10/5005]\tTime  1.2 ( 1.3)\tLoss 6.9e+00 (7.0e+00)",
            {"step": 10, "epoch": 0, "length": 5005, "loss": 6.9},
        ),
        (b"Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.25", {"loss": 2.25}),
        (b"[GPU1] Epoch 0 | Batchsize: 32 | Steps: 64", {}),
        (b"step 1,000/10,000 loss 2.1", {"step": 1000, "steps": 10_000, "loss": 2.1}),
        (b"iter 12,345: loss 2.1, time 12.34ms", {"step": 12_345, "loss": 2.1}),
        (b"Epoch 1 step 1,500/5,000 loss 2.0", {"step": 1500, "epoch": 1, "length": 5000, "loss": 2.0}),
        (b"step 1_234_567 of 2_000_000 loss 2.1", {"step": 1_234_567, "steps": 2_000_000, "loss": 2.1}),
        (b"step 999,loss 2.1", {"step": 999, "loss": 2.1}),
        (b"array [1, 2] lossless", {}),
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
    assert OutputReader().read(line) == ([found] if found else [])


STEP_STYLES = {
    # https://github.com/karpathy/nanoGPT, train.py
    "nanoGPT": "iter {step}: loss 2.1000, time 1,234.56ms, mfu 30.12%",
    "nanoGPT's evaluation": "step {step}: train loss 2.1000, val loss 2.2000",
    # https://github.com/pytorch/torchtitan, components/metrics.py
    "torchtitan": (
        "[rank0]:[titan] 2026-01-01 10:00:00,123 - root - INFO - step: {step}  loss:  2.1000  grad_norm:  1.2000  "
        "memory: 1.18GiB(1.25%)  tps: 1,234  tflops: 1,043.50  mfu: 30.12%"
    ),
    # https://github.com/NVIDIA/Megatron-LM, training/training.py
    "Megatron": (
        " [2026-01-01 10:00:00] iteration {step}/{steps} | consumed samples: 1,600 | elapsed time per iteration (ms): "
        "1234.5 | learning rate: 1.000E-04 | global batch size:    16 | lm loss: 2.100000E+00 | loss scale: 1.0 |"
    ),
    # https://github.com/karpathy/llm.c, train_gpt2.py
    "llm.c": "step {step}/{steps} | train loss 2.100000 | norm 1.2000 | lr 1.00e-04 | (12.34 ms | 123,456 tok/s)",
    # https://github.com/AI-Hypercomputer/maxtext
    "MaxText": "completed step: {step}, seconds: 1.234, Tokens/s/device: 1,234.5, total_weights: 65,536, loss: 2.100",
    "a dictionary": "{{'step': {step}, 'loss': 2.1, 'tokens': [1,200, 3,400]}}",
    "a list": "step {step}, 200 tokens, 1,234 ms, loss 2.1",
    "a list without blanks": "step={step},tokens=200,time=1.234,loss=2.1",
    "key=value": "global_step={step} loss=2.1 tokens=3,276,800",
    "tutorials": "Epoch [1/9], Step [{step}/{steps}], Loss: 2.1000",
}


@pytest.mark.parametrize("style", STEP_STYLES)
@pytest.mark.parametrize("seed", range(5))
def test_each_step_is_read_whole_however_its_thousands_are_parted(style: str, seed: int) -> None:
    dice = Random(f"{style} {seed}")
    print(f"seed {style} {seed}")
    for parted in ("d", ",", "_", ">12", ">12,"):
        for _ in range(20):
            step = dice.randrange(10 ** dice.randint(1, 11))
            steps = step + dice.randrange(10 ** dice.randint(1, 11))
            line = STEP_STYLES[style].format(step=format(step, parted), steps=format(steps, parted))
            (found,) = OutputReader().read(line.encode())
            assert (found["step"], found.get("loss")) == (step, 2.1), line
            if "{steps}" in STEP_STYLES[style]:
                assert steps in (found.get("steps"), found.get("length")), line


@pytest.mark.parametrize(
    "line, step",
    [
        (b"step 5,100,0.25 loss 2", 5),
        (b"step 1,234,5 loss 2", 1),
        (b"step 1,2345 loss 2", 1),
        (b"step 0,512 loss 2", 0),
        (b"step 1, 200 tokens, loss 2", 1),
        (b"step 1500,200 loss 2", 1500),
        (b"iter 1_200,300 loss 2", 1),
        (b"saved to step=100_20260101.ckpt, loss 2", 100),
        (b"iter [12,34] loss 2", 12),
    ],
)
def test_a_list_that_begins_with_a_step_is_no_larger_step(line: bytes, step: int) -> None:
    assert [found["step"] for found in OutputReader().read(line)] == [step]


EPOCH_STYLES = {
    # https://github.com/pytorch/examples, distributed/minGPT-ddp/mingpt/trainer.py; from 1 on
    "minGPT": lambda epoch, count, _, loss: (
        f"[GPU0] Epoch {epoch} | Iter {count - 1} | Train Loss {loss:.5f}"
    ),
    # Oracle ADS's guide to `ads opctl distributed-training init --framework pytorch`
    "ADS's guide": lambda epoch, count, _, loss: f"Rank 0: [{epoch}, {count:5d}] loss: {loss:.3f}",
    # https://github.com/microsoft/DeepSpeedExamples, training/cifar/cifar10_deepspeed.py
    "DeepSpeed's CIFAR": lambda epoch, count, _, loss: f"[{epoch: d}, {count: 5d}] loss: {loss: .3f}",
    # https://github.com/pytorch/examples, imagenet/main.py
    "ImageNet": lambda epoch, count, length, loss: (
        f"Epoch: [{epoch - 1}][{count:4d}/{length}]\tTime  0.5 ( 0.5)\tLoss {loss:.4e} ({loss:.4e})"
    ),
    "tutorials": lambda epoch, count, length, loss: (
        f"Epoch [{epoch}/9], Step [{count}/{length}], Loss: {loss:.4f}"
    ),
    "JSON": lambda epoch, count, _, loss: f'{{"epoch": {epoch}, "batch": {count}, "loss": {loss}}}',
}


@pytest.mark.parametrize("style", EPOCH_STYLES)
@pytest.mark.parametrize("seed", range(10))
def test_steps_grow_over_epochs_that_each_count_anew(tmp_path: Path, style: str, seed: int) -> None:
    random = Random(f"{style} {seed}")
    length, apart = random.randint(1, 500), random.choice([1, 7, 100, 200])
    first = random.choice([1, min(apart, length)])
    processes = random.randint(1, 3)
    meter = ProgressMeter(tmp_path)
    seen: list[int] = []
    for epoch in range(1, random.randint(2, 6)):
        for count in range(first, length + 1, apart):
            lines = [EPOCH_STYLES[style](epoch, count, length, epoch + 1 / count) for _ in range(processes)]
            meter.saw("".join(f"{line}\n" for line in lines).encode())
            step = meter.progress.step
            assert step is not None
            behind = step - ((epoch - 1) * length + count - (style == "minGPT"))
            assert abs(behind) < max(1, apart) * epoch, (epoch, count, step)
            # What is counted line by line is exact, and so is what is logged with the length of an epoch.
            if epoch == 1 or apart == 1 or style in ("ImageNet", "tutorials"):
                assert behind == 0
            assert meter.progress.loss == pytest.approx(epoch + 1 / count, abs=1e-3)
            seen.append(step)
        meter.saw(EPOCH_STYLES["minGPT"](epoch, 1, 1, 9.9).replace("Train", "Eval").encode() + b"\n")
    assert seen == sorted(set(seen))
    if len(seen) <= CURVE_POINTS:
        assert [step for step, _ in meter.progress.losses] == seen
    assert meter.progress.steps == (9 * length if style == "tutorials" else None)


def test_a_line_of_a_process_that_is_behind_turns_nothing_back(tmp_path: Path) -> None:
    meter = ProgressMeter(tmp_path)
    meter.saw(b"Rank 0: [1,   401] loss: 2.0\nRank 0: [2,     1] loss: 1.5\nRank 1: [1,   401] loss: 9.0\n")
    assert (meter.progress.step, meter.progress.loss) == (402, 1.5)


RECORDED_OUTPUT = Path(__file__).with_name("recorded")
"""What Hugging Face's Trainer prints (transformers 5.23.0, tqdm 4.70.1): 20 steps, logging_steps=5, eval_steps=10."""
LOGGED = ((5, 1.651), (10, 2.06), (15, 1.074), (20, 1.191))


def pieces(stream: bytes, random: Random) -> list[tuple[bytes, bytes]]:
    """Cut a stream anywhere; return the whole lines of each piece, and what follows them."""
    cuts = sorted(random.sample(range(len(stream)), min(len(stream) - 1, random.randint(0, 40))))
    found, rest = [], b""
    for begin, end in zip([0, *cuts], [*cuts, len(stream)]):
        rest += stream[begin:end]
        at = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
        found.append((rest[:at], rest[at:]))
        rest = rest[at:]
    return found


@pytest.mark.parametrize("seed", range(30))
def test_the_trainers_losses_are_at_their_steps_however_its_streams_arrive(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    meter = ProgressMeter(tmp_path)
    streams = {
        1: pieces((RECORDED_OUTPUT / "trainer.stdout").read_bytes(), random),
        2: pieces((RECORDED_OUTPUT / "trainer.stderr").read_bytes(), random),
    }
    while any(streams.values()):
        stream = random.choice([number for number, left in streams.items() if left])
        whole, rest = streams[stream].pop(0)
        if whole:
            meter.saw(whole, stream)
        meter.saw_beginning(rest, stream)
    meter.close()
    assert meter.progress.losses == LOGGED
    assert [meter.loss_at(step) for step, _ in LOGGED] == [loss for _, loss in LOGGED]
    assert (meter.progress.step, meter.progress.steps) == (20, 20)


def test_a_loss_is_at_its_step_before_the_next_step_is_done(tmp_path: Path) -> None:
    output = (RECORDED_OUTPUT / "trainer.stderr").read_bytes()
    at = output.index(b"5/20 [00:00<00:01,  8.24it/s]") + len(b"5/20 [00:00<00:01,  8.24it/s]")
    begin = output[:at].rfind(b"\r") + 1
    meter = ProgressMeter(tmp_path)
    meter.saw(output[:begin], 2)
    meter.saw((RECORDED_OUTPUT / "trainer.stdout").read_bytes().splitlines(keepends=True)[0], 1)
    meter.saw_beginning(output[begin:at], 2)
    assert (meter.progress.step, meter.progress.losses) == (5, LOGGED[:1])


def test_a_long_evaluation_is_not_taken_for_steps(tmp_path: Path) -> None:
    output = (
        (RECORDED_OUTPUT / "trainer.stderr")
        .read_bytes()
        .replace(b"/3 [", b"/3000 [")
        .replace(b"3/3000", b"3000/3000")
    )
    meter = ProgressMeter(tmp_path)
    for line in output.replace(b"\r", b"\r\0").split(b"\0"):
        meter.saw(line, 2)
        assert (meter.progress.step or 0) <= 20


@pytest.mark.parametrize("seed", range(10))
def test_what_has_no_counterpart_spoils_nothing_for_long(seed: int) -> None:
    random = Random(seed)
    unplaced, now, placed = Unplaced(), 0.0, []
    for step in range(1, 60):
        now += 2 * LATE
        both = random.sample(["bar", "loss"], 2 if random.random() < 0.8 else 1)
        for each in both:
            told = each == "loss"
            placed += unplaced.given(step, step - 1, now) if told else unplaced.shown_again(step, now)
    placed += unplaced.rest()
    assert placed
    for step, loss in placed:
        assert step in (loss, loss - 1)


@pytest.mark.parametrize(
    "line, found",
    [
        (b'{"step": 3, "steps": 9, "loss": 0.5}', {"step": 3, "steps": 9, "loss": 0.5}),
        (b'{"step": 3, "loss": NaN}', {"step": 3}),
        (b'{"step": "many"}', {}),
        (b"[1, 2]", {}),
        (b"not json", {}),
        (b'{"step": 1' + b"0" * 400 + b"}", {}),
        (b'{"step": 1' + b"0" * 5000 + b"}", {}),
        (b"[" * 100_000, {}),
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
    assert event_files_in(tmp_path) == [tmp_path / RECORDED.name]


def test_an_event_file_that_vanishes_as_the_program_starts_does_no_harm(tmp_path: Path) -> None:
    # To a program that clears up first it is listed, and then gone; a link that leads nowhere is both all the time.
    (tmp_path / RECORDED.name).symlink_to("gone")
    files = EventFiles(tmp_path)
    assert list(files.new_scalars()) == []
    (tmp_path / "gone").write_bytes(RECORDED.read_bytes())
    assert len(list(files.new_scalars())) == 12


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
    gaps = {after[0] - before[0] for before, after in zip(points, points[1:])}
    assert points[0] == (1, 1.0)
    assert CURVE_POINTS / 2 < len(points) <= CURVE_POINTS
    assert gaps == {32}
    assert all(loss == pytest.approx(1 / step, rel=1e-4) for step, loss in points)


def test_a_loss_reported_twice_is_one_point(tmp_path: Path) -> None:
    meter = ProgressMeter(tmp_path / "own")
    meter.saw(b"step 1 loss 9\nstep 1 loss 8\nstep 2 loss 7\n")
    assert meter.progress.losses == ((1, 9.0), (2, 7.0))


@pytest.mark.parametrize("seed", range(60))
def test_an_announcement_is_dated_not_later_than_its_line_however_lines_and_reads_alternate(
    tmp_path: Path, seed: int
) -> None:
    dice = Random(seed)
    meter = ProgressMeter(tmp_path)
    said: dict[str, int] = {}
    alone: set[str] = set()
    unread: list[str] = []
    begun = ""
    for at in sorted(dice.sample(range(1, 10_000), 30)):
        what = dice.choice(["announce", "announce", "step", "part", "read", "read"])
        if what == "read":
            dated = meter.announced()
            assert all(found.at_ns <= said[name] * 10**9 for name, found in dated.items())
            alone |= set(unread) if len(unread) == 1 else set()
            unread = []
            continue
        name = f"step-{at}"
        line = f'{{"checkpoint": "{name}"}}' if what == "announce" else f'{{"step": {at}, "rank": 1}}'
        if begun:
            line, what, begun = f"{begun}\n", "", ""
        elif what == "part":
            line, begun = line[:9], line[9:]
        else:
            line = f"{line}\n"
        with meter.file.open("a") as file:
            file.write(line)
        os.utime(meter.file, ns=(at * 10**9, at * 10**9))
        if what == "announce":
            said[name] = at
        unread.append(name if what == "announce" else what)
    dated = meter.announced()
    assert all(found.at_ns <= said[name] * 10**9 for name, found in dated.items())
    assert set(dated) == set(said)
    known = {name for name in alone if name in said}
    assert all(dated[name].at_ns == said[name] * 10**9 for name in known), (
        "a line that is read alone has its time"
    )


def test_a_line_is_read_as_soon_as_it_is_written_though_nobody_asks(tmp_path: Path) -> None:
    meter = ProgressMeter(tmp_path)
    meter.follow()
    meter.follow()
    until(lambda: any(thread.name == "progress" for thread in threading.enumerate()))
    for number in range(3):
        with meter.file.open("a") as file:
            file.write(f'{{"checkpoint": "step-{number}"}}\n')
        until(lambda number=number: f"step-{number}" in meter._announced)
    assert [thread.name for thread in threading.enumerate()].count("progress") == 1
    meter.begin_again()
    meter.file.write_text('{"checkpoint": "anew"}\n')
    until(lambda: "anew" in meter._announced)
    meter.close()
    until(lambda: not any(thread.name == "progress" for thread in threading.enumerate()))


# What a program says of the end of its training


def bar(step: int, total: int, name: str = "") -> bytes:
    return f"\r{name}{100 * step // total:3d}%|####      | {step}/{total} [00:05<01:35,  2.00it/s]".encode()


def shown(folder: Path, *output: bytes, lines: str = "") -> tuple[int | None, int | None, bool, int | None]:
    """Return first step, number of steps, whether the file goes on, and the total of a bar that stands at 0."""
    meter = ProgressMeter(folder)
    folder.mkdir(exist_ok=True)
    if lines:
        meter.file.write_text(lines)
        meter.read()
    for piece in output:
        meter.saw(piece)
    found = meter.progress
    return found.first_step, found.own_steps, found.goes_on, found.idle_bar


def test_only_the_programs_own_words_say_where_a_launch_began_and_where_the_training_ends(
    tmp_path: Path,
) -> None:
    documents = [bar(step, 200) + b"\n" for step in range(0, 200, 5)]
    assert shown(tmp_path, *documents) == (None, None, False, None)
    assert shown(tmp_path, bar(0, 1000) + b"\n", *documents) == (None, None, False, 1000)
    assert shown(tmp_path, *documents, bar(0, 1000) + b"\n") == (None, None, False, None)
    # One that had advanced before this node has read it.
    assert shown(tmp_path, bar(3, 200) + b"\n", bar(0, 200) + b"\n") == (None, None, False, None)
    assert shown(tmp_path, bar(0, 400, "Epoch 2: ") + b"\n") == (None, None, False, None)
    words = [f"step {step}/100 loss 0.5\n".encode() for step in range(51, 101)]
    assert shown(tmp_path, *words) == (51, 100, False, None)
    assert shown(tmp_path, *words, b"eval step 1/20 loss 0.5\n") == (51, 100, False, None)
    assert shown(tmp_path, b"step 100 of 100\n") == (100, 100, False, None)
    epoch = [f"Epoch [3/10], Step [{step}/600], Loss: 0.5\n".encode() for step in (100, 200)]
    assert shown(tmp_path, *epoch)[0] == 100


def test_a_progress_file_goes_on_when_it_names_a_further_step_and_not_when_it_repeats_one(
    tmp_path: Path,
) -> None:
    at_end = '{"complete": true, "step": 9, "steps": 9}\n'
    assert shown(tmp_path, lines=at_end) == (9, 9, False, None)
    assert shown(tmp_path, lines='{"step": 9, "rank": 1, "seconds": 0.5}\n' * 3 + at_end) == (
        9,
        9,
        False,
        None,
    )
    assert shown(tmp_path, lines='{"step": 8, "steps": 9}\n' + at_end) == (8, 9, True, None)
    assert shown(tmp_path, b"step 1/4\n", b"step 2/4\n", lines=at_end) == (9, 9, False, None)


def test_each_launch_says_anew_where_it_began(tmp_path: Path) -> None:
    meter = ProgressMeter(tmp_path)
    meter.saw(b"step 3/9 loss 1\n")
    meter.begin_again()
    assert (meter.progress.first_step, meter.progress.own_steps) == (None, None)
    meter.saw(b"step 9/9\n")
    assert meter.progress.first_step == 9
