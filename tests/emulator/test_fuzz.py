"""A few hundred requests of `make fuzz-emulator`, and that it notices what it looks for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator.fuzz import campaign, kubernetes, oci, runai
from tests.emulator.fuzz.__main__ import APIS
from tests.emulator.fuzz.api import Answer, Broken, Request
from tests.emulator.fuzz.campaign import Campaign, Watched
from tests.views import need_views

CASES = int(os.environ.get("FUZZ_CASES", "300"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
"""The same in every run: what is not yet known is for `make fuzz-emulator` to find, which rolls its own."""
ID = ("opc-request-id", "x")
JSON = ("content-type", "application/json")


@pytest.mark.slow
@pytest.mark.parametrize("door", APIS)
def test_what_nobody_should_send_is_answered_and_leaves_no_trace(tmp_path: Path, door: str) -> None:
    if door != "oci":
        need_views()
    print(f"seed {SEED}")
    api = APIS[door]()
    with Watched(tmp_path / "watched", api.options) as emulator:
        run = Campaign(emulator, api, SEED)
        run.run(CASES)
    assert {200, 400, 401, 404} <= run.statuses.keys()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, [ID, JSON], b'{"code": "InternalServerError", "message": "x"}'),
        Answer(400, [JSON], b'{"code": "a", "message": "x"}'),
        Answer(400, [ID, ID, JSON], b'{"code": "a", "message": "x"}'),
        Answer(400, [ID], b"Bad Request"),
        Answer(400, [ID], b""),
        Answer(404, [ID, JSON], b'{"code": 1, "message": "x"}'),
        Answer(404, [ID, JSON], b"[]"),
        Answer(200, [ID, JSON], b'{"a": NaN}'),
        Answer(200, [ID, JSON], b'{"a": "\xff"}'),
        Answer(200, [], b""),
    ],
)
def test_an_answer_that_no_client_understands_is_noticed(answer: Answer) -> None:
    with pytest.raises(Broken):
        oci.check_shape(Request("GET", "/n", b"", framed=True), answer)


STATUS = b'{"kind": "Status", "status": "Failure", "code": 400, "message": "x"}'
OK_STATUS = Answer(400, [JSON], STATUS)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, [JSON], STATUS),
        Answer(404, [JSON], STATUS),
        Answer(400, [JSON], b'{"code": "a", "message": "x"}'),
        Answer(400, [("content-type", "text/plain")], b"Bad Request"),
        Answer(400, [], b""),
        Answer(200, [JSON], b'{"a": NaN}'),
    ],
)
def test_an_answer_that_no_client_of_kubernetes_understands_is_noticed(answer: Answer) -> None:
    request = Request("GET", "/api", b"", framed=True, to="kubernetes")
    with pytest.raises(Broken):
        kubernetes.check_shape(request, answer)
    kubernetes.check_shape(request, OK_STATUS)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, [JSON], b'{"code": 500, "message": "x"}'),
        Answer(404, [JSON], b'{"code": 400, "message": "x"}'),
        Answer(400, [JSON], b'{"error": "invalid_client"}'),
        Answer(404, [], b"Not Found"),
        Answer(404, [], b""),
        Answer(200, [JSON], b"{"),
    ],
)
def test_an_answer_that_no_client_of_runai_understands_is_noticed(answer: Answer) -> None:
    request = Request("GET", "/api/v1/workloads", b"", framed=True, to="runai")
    with pytest.raises(Broken):
        runai.check_shape(request, answer)
    runai.check_shape(request, Answer(400, [JSON], b'{"code": 400, "message": "x"}'))


PROGRAM = """
import os, pathlib, shutil, sys
from tests.emulator.fuzz.watched_emulator import watch
notes, state, outside = sys.argv[1:]
watch(os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND), state)
state, outside = pathlib.Path(state), pathlib.Path(outside)
(state / "inside").write_text("x")
(state / "folder").mkdir()
(state / "inside").rename(state / "other")
outside.read_text()
"""
CHANGES = [
    "outside.write_text('x')",
    "outside.unlink()",
    "outside.rename(state / 'a')",
    "(state / 'other').rename(outside)",
    "(state / '..' / 'a').mkdir()",
    "(outside.parent / 'link').symlink_to(state)",
    "shutil.rmtree(outside.parent / 'none', ignore_errors=True)",
    "os.open('../a', os.O_CREAT | os.O_WRONLY, dir_fd=os.open(state, os.O_RDONLY))",
]


@pytest.mark.parametrize("change", ["pass", *CHANGES])
def test_a_change_outside_of_the_state_folder_is_noticed(tmp_path: Path, change: str) -> None:
    for name in ("state", "elsewhere"):
        (tmp_path / name).mkdir()
    outside, notes = tmp_path / "elsewhere" / "file", tmp_path / "notes"
    outside.write_text("")
    command = [sys.executable, "-c", PROGRAM + change, str(notes), str(tmp_path / "state"), str(outside)]
    subprocess.run(command, check=True, cwd=campaign.ROOT)
    assert (notes.read_text() != "") == (change != "pass"), notes.read_text()
