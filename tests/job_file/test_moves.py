"""The documented move of a job from one home to another: both sides of the difference are jobs."""

from __future__ import annotations

import dataclasses

from airflow_provider_ocidist.job_file import parsing
from tests.documents import blocks


def side(text: str, sign: str) -> str:
    """Return one side of a difference."""
    return "\n".join(line[1:] for line in text.splitlines() if line[:1] in (" ", sign))


def test_what_differs_is_the_section_and_the_image(tmp_path):
    (difference,) = [
        block.text
        for block in blocks("text")
        if block.document == "docs/homes.md" and "kind: pytorchjob" in block.text
    ]
    source = tmp_path / "train"
    source.mkdir()
    (source / "demand.py").touch()
    (tmp_path / "jobs").mkdir()
    old, new = (parsing.parse(side(difference, sign), base_dir=tmp_path / "jobs") for sign in "-+")
    assert (old.backend.kind, new.backend.kind) == ("oci_data_science", "pytorchjob")
    assert dataclasses.replace(new, backend=old.backend, image=old.image) == old
