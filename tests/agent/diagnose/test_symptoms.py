"""What real libraries print when they fail, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.diagnose.diagnosis import diagnose
from airflow_provider_ocidist.agent.diagnose.symptoms import SYMPTOMS, symptom_of
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.launchers.base import ProcessFailure

HEADER = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
"""


def recorded() -> Iterator[tuple[str, str, str]]:
    """Yield cause, symptom and text of each error that `errors.txt` holds."""
    for entry in Path(__file__).with_name("errors.txt").read_text().split("\n== ")[1:]:
        head, _, text = entry.partition("\n")
        cause, _, name = head.partition(" ")
        yield cause, name, text.rstrip("\n")


PREFIXES = (
    "",
    "[rank5]: ",
    "[default1]:",
    "[rank1]:",
    "[trainer1]:",
    "[default1]:[rank5]: ",
    "[rank1]:[rank5]: ",
)
"""Of torch, of torchrun with `--tee` and a role of any name, and of both."""


OF_ANOTHER = {
    "other nodes not reached",
    "collective timed out",
    "another process lost",
    "node of mpirun lost",
    "node of mpirun not reached",
}
"""Errors that a process mostly meets since another one has failed."""


def test_each_kind_of_error_has_a_name_and_a_remedy_of_its_own() -> None:
    assert len({symptom.name for symptom in SYMPTOMS}) == len(SYMPTOMS)
    remedies = [symptom.remedy for symptom in SYMPTOMS]
    assert len({*remedies}) == len(SYMPTOMS)
    assert [remedy for remedy in remedies if not remedy or remedy.endswith(".")] == []


@pytest.mark.parametrize("cause, name, error", list(recorded()))
def test_each_error_is_distinguished_from_the_others(cause: str, name: str, error: str) -> None:
    symptom = symptom_of(error.replace("\n", " "))
    assert symptom is not None
    process = ProcessFailure(rank=5, local_rank=1, exit_code=1)
    for prefix in PREFIXES:
        ranked = "".join(f"{prefix}{line}\n" for line in (HEADER + error).splitlines())
        other = "".join(f"{prefix}{line}\n" for line in (HEADER + "ValueError: boom").splitlines())
        other = other.replace("1]", "0]").replace("5]", "4]") if prefix else ""
        failure = diagnose(1, f"{ranked}[W1121 TCPStore.cpp:125] a warning\n{other}", process, None)
        assert failure.cause == cause, prefix
        assert failure.message == error.partition("\n")[0].strip()
        assert (symptom.name, symptom.remedy) == (name, failure.remedy)
        assert failure.consequence is (name in OF_ANOTHER)


def test_last_words_are_read_behind_prefixes() -> None:
    words = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
    for prefix in PREFIXES:
        output = "".join(f"{prefix}{line}\n" for line in words.splitlines())
        assert diagnose(-6, output, None, None).cause is Cause.OOM


@pytest.mark.parametrize(
    "error",
    [
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "requests.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
        "urllib.error.URLError: <urlopen error [Errno 101] Network is unreachable>",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_a_connection_of_the_programs_own_is_no_echo_of_another_node(error: str) -> None:
    failure = diagnose(1, HEADER + error, None, None)
    assert (failure.cause, failure.consequence) == (Cause.USER, False)


WATCHDOG = (
    "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600060 "
    "milliseconds before timing out.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG 1 Rank 0] Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, Timeout(ms)=600000)\n"
)


def test_what_nccls_watchdog_says_explains_the_abort_that_follows() -> None:
    failure = diagnose(-6, WATCHDOG, None, None)
    assert (failure.cause, failure.consequence, failure.exit_code) == (Cause.HANG, True, -6)
    assert failure.message.startswith("the program was killed by SIGABRT: ")
    assert "Watchdog caught collective operation timeout" in failure.message


def test_a_crash_in_native_code_is_reported_with_its_last_words() -> None:
    failure = diagnose(
        -6, "step 4\nFatal Python error: pymalloc_free: bad ID\n\nCurrent thread\n", None, None
    )
    assert failure.cause is Cause.USER
    assert failure.message == "the program was killed by SIGABRT: Fatal Python error: pymalloc_free: bad ID"


def test_torchs_outer_exception_gives_way_to_the_inner_one() -> None:
    inner = "torch.distributed.DistNetworkError: The server socket has failed to listen. name: EADDRINUSE"
    outer = (
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
        "failed. See inner exception for details."
    )
    link = "The above exception was the direct cause of the following exception:"
    chained = f"{HEADER}{inner}\n\n{link}\n\n{HEADER}{outer}\n"
    assert diagnose(1, chained, None, None).message == inner
