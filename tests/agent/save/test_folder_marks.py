"""By which marks nodes find out which of them share a checkpoint folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save.folder_marks import hide_folder, nodes_apart, show_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("sharing, apart", [([0, 1, 2], ()), ([0, 2], (1,)), ([0], (1, 2)), ([1, 2], (1, 2))])
def test_the_main_node_sees_which_have_a_folder_of_their_own_and_no_mark_is_left(
    tmp_path: Path, sharing: Sequence[int], apart: tuple[int, ...]
) -> None:
    folders = [tmp_path / "deep" / ("shared" if rank in sharing else f"own-{rank}") for rank in range(3)]
    for rank, folder in enumerate(folders):
        show_folder(folder, "run", rank)
        assert f".run-{rank}" in names(folder)
    assert nodes_apart(folders[0], "run", 0, (1, 2)) == apart
    assert names(folders[0]) == []
    for rank in (1, 2):
        hide_folder(folders[rank], "run", rank, 0)
    assert [names(folder) for folder in folders] == [[]] * 3


def test_a_node_whose_folder_is_shared_leaves_its_mark_to_the_main_node(tmp_path: Path) -> None:
    """The main node may not have looked yet."""
    for rank in (0, 1):
        show_folder(tmp_path, "run", rank)
    hide_folder(tmp_path, "run", 1, 0)
    assert nodes_apart(tmp_path, "run", 0, (1,)) == ()


def test_marks_of_another_run_and_other_files_are_left_alone(tmp_path: Path) -> None:
    show_folder(tmp_path, "other", 1)
    (tmp_path / "step-1.pt").write_text("weights")
    show_folder(tmp_path, "run", 0)
    show_folder(tmp_path, "run", 0)
    assert nodes_apart(tmp_path, "run", 0, (1,)) == (1,)
    assert names(tmp_path) == [".other-1", "step-1.pt"]


def test_a_folder_that_cannot_be_written_is_said_and_is_one_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "checkpoints"
    show_folder(folder, "run", 1)
    assert f"the checkpoint folder {folder} cannot be written: [Errno" in caplog.text
    assert nodes_apart(folder, "run", 1, (0,)) == (0,)
    hide_folder(folder, "run", 1, 0)
