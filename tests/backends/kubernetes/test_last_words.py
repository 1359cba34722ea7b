"""The last output of a program without an agent: read once, and asked for again where the API server was away."""

from __future__ import annotations

from typing import Any

from airflow_provider_ocidist.backends.kubernetes.last_words import LastWords
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.model.run import NodeState, NodeStatus
from tests.backends.kubernetes.test_gang_news import REF, a_pod
from tests.backends.kubernetes.test_states import ended, pod

FAILED = NodeStatus(rank=0, run_id="a", state=NodeState.FAILED)


class Server:
    """An API server with the log of one pod, that fails first."""

    def __init__(self, *errors: BackendError) -> None:
        self.errors = list(errors)
        self.asked = 0

    def text(self, path: str, **query: Any) -> bytes:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return b"ValueError: boom"


def said_after(server: Server, looks: int) -> str | None:
    words, api = LastWords("pytorch"), server
    for _ in range(looks):
        words.note(api, REF, {0: a_pod(**pod("Failed", state=ended(1)))})  # type: ignore[arg-type]  # has what is asked
    return words.added_to(REF, FAILED).tail


def test_what_a_program_said_last_is_asked_for_again_while_the_server_does_not_answer() -> None:
    away = BackendError("no answer", retryable=True)
    server = Server(away, away)
    assert said_after(server, 2) is None
    assert said_after(Server(away, away), 3) == "ValueError: boom"


def test_what_was_read_and_what_never_can_be_is_asked_for_once() -> None:
    for server, said in (
        (Server(), "ValueError: boom"),
        (Server(BackendError("no log", status_code=400)), None),
    ):
        assert said_after(server, 3) == said
        assert server.asked == 1
