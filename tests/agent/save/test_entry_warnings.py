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
