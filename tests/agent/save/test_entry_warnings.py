"""What is logged of entries that are not published: each once, while the training runs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save.entry_warnings import EntryWarnings
from airflow_provider_ocidist.agent.save.proofs import remedy

NAME = (
    "{} in the checkpoint folder is not published: its name is not that of a checkpoint; "
    "set checkpoints.pattern to match it"
)


def test_a_name_is_warned_of_once_though_it_goes_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warnings = EntryWarnings(tmp_path, r"run-\d+")
    paths = [tmp_path / name for name in ("b.pt", "a.pt", "run-1", "config.json")]
    for look in range(3):
        for path in paths:
            path.unlink() if look == 1 else path.write_text("x")
        warnings.warn_of_names()
    assert caplog.messages == [NAME.format("a.pt"), NAME.format("b.pt")]
    (tmp_path / "c.pt").write_text("x")
    warnings.warn_of_names()
    assert caplog.messages[2:] == [NAME.format("c.pt")]


def test_without_a_pattern_the_name_of_a_checkpoint_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "step-1.pt").write_text("x")
    EntryWarnings(tmp_path, None).warn_of_names()
    EntryWarnings(tmp_path / "is not there yet", None).warn_of_names()
    assert caplog.messages == []


def make(folder: Path, name: str) -> None:
    """Make a file, or a folder with one where the name ends so."""
    path = folder / (f"{name}x" if name.endswith("/") else name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")


USUAL = ["model.json", "state.json", "args.yaml", "latest", "logs/", "runs/", "checkpoint"]
"""What is usual beside checkpoints, and may be one where there is no other."""


@pytest.mark.parametrize("name", USUAL)
@pytest.mark.parametrize("pattern", [None, r"run-\d+"])
def test_where_nothing_is_a_checkpoint_what_lies_there_is_named_at_the_first_look(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, pattern: str | None
) -> None:
    warnings = EntryWarnings(tmp_path, pattern)
    warnings.warn_of_names()
    make(tmp_path, name)
    for _ in range(3):
        warnings.warn_of_names()
    (message,) = caplog.messages
    assert message == (
        f"{name.strip('/')} in the checkpoint folder: not published, and no entry there has the name of a "
        "checkpoint yet; if it is a checkpoint, set checkpoints.pattern to match it"
    )


@pytest.mark.parametrize("name", USUAL)
@pytest.mark.parametrize("other", ["step-1.pt", "step-1/", "step-1.pt.tmp", "tmp-checkpoint-1/"])
def test_beside_a_checkpoint_also_an_unfinished_one_the_usual_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, other: str
) -> None:
    warnings = EntryWarnings(tmp_path, None)
    for each in (name, other):
        make(tmp_path, each)
    warnings.warn_of_names()
    assert caplog.messages == []


@pytest.mark.parametrize(
    "name", ["train.log", "metrics.csv", "events.out.tfevents.1.x", ".hidden", "unproved/"]
)
def test_what_is_never_a_checkpoint_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    make(tmp_path, name)
    EntryWarnings(tmp_path, None).warn_of_names()
    assert caplog.messages == []


def test_checkpoints_in_a_folder_of_a_tracker_are_named_at_their_first_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, "step-1.pt")
    make(tmp_path, "lightning_logs/version_0/hparams.yaml")
    warnings = EntryWarnings(tmp_path, None)
    warnings.warn_of_names()
    assert caplog.messages == []
    make(tmp_path, "lightning_logs/version_0/checkpoints/epoch=0-step=5.ckpt")
    for _ in range(3):
        warnings.warn_of_names()
    (message,) = caplog.messages
    assert message == (
        "lightning_logs in the checkpoint folder is not published, though it contains "
        "version_0/checkpoints/epoch=0-step=5.ckpt: its name is not that of a checkpoint; save beside it, or set "
        "checkpoints.pattern to match it"
    )


def test_a_mixture_of_two_saves_is_warned_of_once_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warnings = EntryWarnings(tmp_path, None)
    for name in ("step-1", "step-2", "step-1"):
        warnings.warn_of_mixture(name, "it is mixed")
    assert caplog.messages == [
        f"{name} is not published yet: it is mixed. Remedy: {remedy(name)}" for name in ("step-1", "step-2")
    ]


def test_an_error_that_nobody_has_foreseen_is_logged_once_with_its_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warnings = EntryWarnings(tmp_path, None)
    errors = [RuntimeError("odd"), RuntimeError("odd"), ValueError("odd")]
    for error in errors:
        warnings.warn_of_error(error)
    assert [(each.levelno, each.exc_info and each.exc_info[1]) for each in caplog.records] == [
        (logging.ERROR, errors[0]),
        (logging.ERROR, errors[2]),
    ]
    assert set(caplog.messages) == {"unexpected error in the scan for checkpoints: it will be repeated"}
