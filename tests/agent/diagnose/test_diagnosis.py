"""From exit codes and output to causes."""

from __future__ import annotations

import random
import subprocess
import sys
import traceback as python
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.diagnose.diagnosis import TAIL_LENGTH, diagnose, tail_of, tracebacks
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.launchers.base import ProcessFailure

BOOM = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise ValueError("boom")
ValueError: boom
"""
LOST_REASON = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:19863
"""
LOST = """[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 9, in <module>
[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:19863
"""


def ranked(text: str, rank: int) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "code, output, oom_killed, cause, message",
    [
        (1, BOOM, False, Cause.USER, "ValueError: boom"),
        (3, "", False, Cause.USER, "the program ended with exit code 3"),
        (-11, "", False, Cause.USER, "the program was killed by SIGSEGV"),
        (-9, "", True, Cause.OOM, "the program was killed by SIGKILL: out of memory"),
        (-9, "", None, Cause.OOM, "the program was killed by SIGKILL: out of memory"),
        (-9, "", False, Cause.NODE, "the program was killed by SIGKILL"),
        (-15, "", False, Cause.NODE, "the program was killed by SIGTERM"),
        (137, "", True, Cause.OOM, "the program ended with exit code 137"),
        (1, BOOM.replace("ValueError: boom", "MemoryError"), False, Cause.OOM, "MemoryError"),
        (
            1,
            BOOM.replace("ValueError: boom", "torch.OutOfMemoryError: CUDA out of memory."),
            False,
            Cause.OOM,
            "torch.OutOfMemoryError: CUDA out of memory.",
        ),
        (
            1,
            BOOM.replace(
                "ValueError: boom",
                "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp']",
            ),
            False,
            Cause.DATA,
            "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp']",
        ),
        (
            1,
            BOOM.replace("ValueError: boom", "OSError: [Errno 28] No space left on device: 'x'"),
            False,
            Cause.DATA,
            "OSError: [Errno 28] No space left on device: 'x'",
        ),
        (
            1,
            BOOM.replace("ValueError: boom", "torch.distributed.elastic.RendezvousTimeoutError"),
            False,
            Cause.NODE,
            "torch.distributed.elastic.RendezvousTimeoutError",
        ),
    ],
)
def test_the_cause_is_reported(code, output, oom_killed, cause, message) -> None:
    failure = diagnose(code, output, None, oom_killed)
    assert (failure.cause, failure.message, failure.exit_code) == (cause, message, code)


ABORTED = """terminate called without an active exception
Fatal Python error: Aborted

Current thread 0x00007fd88afebb80 (most recent call first):
  <no Python frame>
"""


@pytest.mark.parametrize("code", [-6, -11])
@pytest.mark.parametrize("ending", [ABORTED, ABORTED.partition("\n")[2], ""])
@pytest.mark.parametrize(
    "between", ["", "\n", "[rank1]:[W1122 20:29:06.1 ProcessGroup.cpp:1] not destroyed\n"]
)
@pytest.mark.parametrize("prefixed", [True, False])
def test_an_abort_as_threads_are_torn_down_is_explained_by_the_exception_before_it(
    code: int, ending: str, between: str, prefixed: bool
) -> None:
    output = (ranked(BOOM, 1) if prefixed else BOOM) + between + ending + ranked(LOST_REASON, 0)
    failure = diagnose(code, output, ProcessFailure(exit_code=code, rank=1, local_rank=0), False)
    assert (failure.cause, failure.message, failure.exit_code) == (Cause.USER, "ValueError: boom", code)
    assert "ValueError: boom" in failure.tail


@pytest.mark.parametrize("code, name", [(-6, "SIGABRT"), (-11, "SIGSEGV")])
@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_an_abort_after_an_exception_that_was_handled_is_not_explained_by_it(
    code: int, name: str, prefix: str
) -> None:
    logged = "".join(f"{prefix}{line}\n" for line in [*BOOM.splitlines(), "going on without it"])
    failure = diagnose(code, logged + ABORTED, ProcessFailure(exit_code=code, rank=1, local_rank=0), False)
    assert failure.message == f"the program was killed by {name}"


def test_words_like_out_of_memory_in_other_output_mislead_nobody() -> None:
    failure = diagnose(1, f"warning: out of memory is near\n{BOOM}", None, None)
    assert failure.cause is Cause.USER


def test_losing_a_peer_is_a_consequence() -> None:
    failure = diagnose(1, LOST, ProcessFailure(rank=0, exit_code=1), None)
    assert failure.consequence
    assert failure.cause is Cause.NODE


def test_the_rank_that_failed_first_explains_those_that_lost_it() -> None:
    output = ranked(BOOM, 1) + LOST
    failure = diagnose(1, output, ProcessFailure(rank=1, exit_code=1), None)
    assert (failure.message, failure.rank, failure.consequence) == ("ValueError: boom", 1, False)


@pytest.mark.parametrize("mark", ["[rank0]: ", "[default0]:", "[default0]:[rank0]: "])
@pytest.mark.parametrize("is_last", [True, False])
def test_of_tracebacks_none_of_which_is_marked_as_the_failed_process_the_unmarked_one_explains_it(
    mark: str, *, is_last: bool
) -> None:
    """Other marks show that it is another's."""
    other = "".join(f"{mark}{line}\n" for line in BOOM.replace("boom", "of another").splitlines())
    output = other + BOOM if is_last else BOOM + other
    failure = diagnose(1, output, ProcessFailure(rank=5, local_rank=1, exit_code=1), None)
    assert failure.message == "ValueError: boom"


@pytest.mark.parametrize(
    "code, output, oom_killed, killed",
    [
        (-9, "", False, True),
        (-9, "", None, False),
        (-9, "", True, False),
        (-15, "", None, True),
        (-11, "", False, False),
        (1, BOOM, False, False),
        (1, LOST_REASON, False, False),
    ],
)
def test_a_process_was_killed_from_outside_where_nothing_else_shows_a_reason(
    code: int, output: str, oom_killed: bool | None, killed: bool
) -> None:
    assert diagnose(code, output, None, oom_killed).killed is killed


def test_the_code_of_the_process_counts_not_that_of_the_launcher() -> None:
    failure = diagnose(1, "", ProcessFailure(rank=4, exit_code=-11), None)
    assert (failure.exit_code, failure.rank, failure.message) == (-11, 4, "the program was killed by SIGSEGV")


def test_tracebacks_of_several_ranks_may_be_interleaved() -> None:
    first, second = ranked(BOOM, 1).splitlines(), LOST.splitlines()
    mixed = [line for pair in zip(first, [*second, ""]) for line in pair]
    found = {traceback.rank: traceback.message for traceback in tracebacks("\n".join(mixed))}
    assert found[1] == "ValueError: boom"
    assert found[0].startswith("RuntimeError")


def test_an_exception_that_was_handled_before_is_not_the_reason() -> None:
    chained = f"{BOOM.replace('boom', 'first')}\nDuring handling of the above exception:\n\n{BOOM}"
    assert diagnose(1, chained, None, None).message == "ValueError: boom"


ECHOES = (
    (RuntimeError, "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:19863", Cause.NODE),
    (RuntimeError, "[gloo/pair.cc:534] Connection reset by peer", Cause.NODE),
    (RuntimeError, "NCCL error in: x.cpp:1, remote process exited or there was a network error", Cause.NODE),
    (RuntimeError, "Timed out waiting 30000ms for recv operation to complete", Cause.HANG),
)
"""What libraries say once another process is lost, and the cause that it stands for."""
OF_THE_PROGRAM = ("step 812 failed", "", "cannot save\nthe state\n\nof rank 0", "'optimizer'", "boom: 3 of 8")


def a_chain(dice: random.Random, first: Exception, *others: Exception) -> str:
    """Return what Python prints of exceptions, each raised from the one before, or while that was handled."""
    try:
        _raise(dice, [first, *others])
    except Exception as error:
        return "".join(python.format_exception(type(error), error, error.__traceback__))
    raise AssertionError


def _raise(dice: random.Random, chain: list[Exception]) -> None:
    *before, last = chain
    if not before:
        raise last
    try:
        _raise(dice, before)
    except Exception as error:
        if dice.random() < 0.5:
            raise last from error
        raise last  # noqa: B904 - Python says so with other words


def wrapped_by(dice: random.Random, depth: int) -> list[Exception]:
    kinds = (ValueError, KeyError, RuntimeError, AssertionError)
    return [dice.choice(kinds)(dice.choice(OF_THE_PROGRAM)) for _ in range(depth)]


def mixed(dice: random.Random, *outputs: str) -> str:
    """Return outputs of several processes, line by line, each in its order."""
    left = [output.splitlines() for output in outputs]
    lines = []
    while any(left):
        lines.append(dice.choice([each for each in left if each]).pop(0))
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("seed", range(40))
def test_an_error_that_wraps_the_loss_of_a_peer_is_a_consequence_too(seed: int) -> None:
    dice = random.Random(seed)
    outputs, expected = {}, {}
    for rank in range(dice.randint(1, 4)):
        kind, text, cause = dice.choice(ECHOES)
        outer = wrapped_by(dice, dice.randint(0, 3))
        outputs[rank] = ranked(a_chain(dice, kind(text), *outer), rank)
        expected[rank] = (cause, text, str(outer[-1]).splitlines()[:1] if outer else [])
    output = mixed(dice, *outputs.values())
    rank = dice.choice(sorted(outputs))
    failure = diagnose(1, output, ProcessFailure(exit_code=1, rank=rank), None)
    cause, text, said = expected[rank]
    assert (failure.cause, failure.consequence) == (cause, True), output
    assert text in failure.message
    assert all(each in failure.message for each in said)
    assert diagnose(1, output, None, None).consequence
    alone = diagnose(1, outputs[rank].replace(f"[rank{rank}]: ", ""), None, None)
    assert (alone.cause, alone.consequence) == (cause, True)


@pytest.mark.parametrize("seed", range(40))
def test_an_error_of_the_programs_own_is_none_whatever_it_wraps(seed: int) -> None:
    dice = random.Random(seed)
    kind, text, _ = dice.choice(ECHOES)
    peer = a_chain(dice, kind(text), *wrapped_by(dice, dice.randint(0, 2)))
    own = dice.choice(
        [
            # Not linked to the loss of a peer, which was reported before.
            peer + a_chain(dice, *wrapped_by(dice, dice.randint(1, 3))),
            # Of another process.
            a_chain(dice, *wrapped_by(dice, dice.randint(1, 3))),
            # Known for what it is.
            a_chain(dice, kind(text), *wrapped_by(dice, 1), FileNotFoundError("data.bin")),
        ]
    )
    output = mixed(dice, ranked(own, 1), ranked(peer, 0))
    failure = diagnose(1, output, ProcessFailure(exit_code=1, rank=1), None)
    assert (failure.cause, failure.consequence) == (Cause.USER, False), output


def test_the_tail_is_short_and_holds_the_traceback() -> None:
    output = BOOM + "noise\n" * 5000
    tail = diagnose(1, output, None, None).tail
    assert "ValueError: boom" in tail
    assert len(tail) <= TAIL_LENGTH
    assert tail_of("x" * 10_000) == "x" * TAIL_LENGTH


WRONG_SYNTAX = {
    "SyntaxError": "print('a')\n\ndef train(\n    x\n):\n    return x\n\ndef broken()\n    return 1\n",
    "IndentationError": "print('a')\nfor x in range(3):\nprint(x)\n",
    "TabError": "if True:\n        x = 1\n\ty = 2\n",
    "a bracket": "x = (1,\nprint('never closed'\n",
    "a quote": "s = 'no end\n",
}
CARETS_OF_39 = """  File "/work/code/broken.py", line 28
    def train(model)
                    ^
SyntaxError: invalid syntax
"""


def _output_of_python(tmp_path: Path, name: str, script: str) -> str:
    (tmp_path / name).write_text(script)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / name)], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 1, ended.stderr
    return ended.stderr


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", WRONG_SYNTAX)
def test_an_error_of_syntax_is_named_with_its_place_and_how_to_see_it_before_a_run(
    kind: str, seed: int, printed_by_python: dict[str, str]
) -> None:
    dice = random.Random(seed)
    words, number = _as_compiled(WRONG_SYNTAX[kind])
    marks = dice.choice(
        [
            [""],
            ["[rank0]: "],
            [f"[default{rank}]:" for rank in range(4)],
            [f"[rank{rank}]: " for rank in (2, 5)],
        ]
    )
    before = dice.choice(["", "loading\n", f"{BOOM}going on without it\n"])
    lines = [*before.splitlines(), *printed_by_python[kind].splitlines()]
    outputs = ["".join(f"{mark}{line}\n" for line in lines) for mark in marks]
    process = dice.choice([None, ProcessFailure(exit_code=1, rank=0, local_rank=0)])
    found = diagnose(1, mixed(dice, *outputs), process, False)
    assert (found.cause, found.message) == (Cause.USER, f"{words} (broken.py, line {number})")
    assert found.remedy is not None
    assert "`python -m py_compile broken.py`" in found.remedy
    assert words in found.tail


@pytest.fixture(scope="module")
def printed_by_python(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("syntax")
    return {kind: _output_of_python(folder, "broken.py", script) for kind, script in WRONG_SYNTAX.items()}


def _as_compiled(script: str) -> tuple[str, int | None]:
    try:
        compile(script, "broken.py", "exec")
    except SyntaxError as error:
        return f"{type(error).__name__}: {error.msg}", error.lineno
    raise AssertionError


def test_errors_of_syntax_are_distinguished_by_rank() -> None:
    printed = CARETS_OF_39.splitlines()
    outputs = [[f"[default{rank}]:{line}" for line in printed] for rank in (1, 3)]
    found = tracebacks("\n".join(line for lines in zip(*outputs) for line in lines))
    assert [(each.local_rank, each.message) for each in found] == [
        (1, "SyntaxError: invalid syntax (broken.py, line 28)"),
        (3, "SyntaxError: invalid syntax (broken.py, line 28)"),
    ]


def test_an_error_of_syntax_is_read_as_python_3_9_prints_it() -> None:
    found = diagnose(1, CARETS_OF_39, None, False)
    assert found.message == "SyntaxError: invalid syntax (broken.py, line 28)"


def test_an_error_of_syntax_in_a_module_is_placed_in_that_module(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text(WRONG_SYNTAX["IndentationError"])
    printed = _output_of_python(tmp_path, "train.py", "import layers\n")
    found = diagnose(1, printed, None, False)
    assert found.message.startswith("IndentationError: expected an indented block")
    assert found.message.endswith("(layers.py, line 3)")


def test_an_error_of_syntax_far_above_the_end_stays_in_the_tail(tmp_path: Path) -> None:
    printed = _output_of_python(tmp_path, "broken.py", WRONG_SYNTAX["SyntaxError"])
    found = diagnose(1, printed + "W1122 20:29:06.1 elastic.py:1] ends\n" * 400, None, False)
    assert 'broken.py", line 8' in found.tail
    assert "Traceback" not in found.tail
    assert len(found.tail) <= TAIL_LENGTH


@pytest.mark.parametrize(
    "line",
    ['  File "train.py", line 9', '  File "train.py", line 9, in <module>', '  File "a.py", line 9 in f'],
)
def test_a_place_that_no_error_of_syntax_follows_is_no_error(line: str) -> None:
    assert tracebacks(f"profile of\n{line}\n    step()\n12 ms\n") == []
