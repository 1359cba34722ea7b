"""Progress in words."""

from __future__ import annotations

import logging

from airflow_provider_ocidist.storage.progress import describe, progress_lines, terminal_progress
from airflow_provider_ocidist.storage.transfer import TransferProgress, copy
from tests.storage.trees import make_tree


def progress(**changes):
    values = {"files_done": 12, "files_total": 40, "bytes_done": 120_000_000, "bytes_total": 400_000_000}
    return TransferProgress(**{**values, "seconds": 3.0, **changes})


def test_one_line_has_files_bytes_rate_and_time_left():
    assert (
        describe("stage data", progress()) == "stage data: 12/40 files, 120 MB of 400 MB, 40 MB/s, 7 s left"
    )
    assert describe("x", progress(bytes_done=0)) == "x: 12/40 files, 0 B of 400 MB, 0 B/s"
    done = progress(files_done=40, bytes_done=400_000_000, seconds=300.0)
    assert describe("x", done) == "x: 40/40 files, 400 MB of 400 MB, 1.33 MB/s, done in 5 min"


def test_the_log_gets_one_line_every_so_many_seconds_and_one_at_the_end(caplog):
    caplog.set_level(logging.INFO)
    report = progress_lines(logging.getLogger("task").info, "stage", every=1000)
    for done in range(41):
        report(progress(files_done=done))
    assert len(caplog.records) == 1
    report = progress_lines(logging.getLogger("task").info, "stage", every=0)
    for done in range(5):
        report(progress(files_done=done))
    assert len(caplog.records) == 6


def test_without_a_terminal_plain_lines_go_to_stderr(tmp_path, capsys):
    make_tree(tmp_path / "s", {"a": 1000})
    copy(str(tmp_path / "s"), str(tmp_path / "t"), on_progress=terminal_progress("fetch"))
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("fetch: 1/1 files, 1 kB of 1 kB")


def test_on_a_terminal_a_bar_is_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    make_tree(tmp_path / "s", {"a": 1000})
    copy(str(tmp_path / "s"), str(tmp_path / "t"), on_progress=terminal_progress("fetch"))
    assert "1/1 files" in capsys.readouterr().err
