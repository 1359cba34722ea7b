"""What a node does with what its environment says: which settings it takes, whom it runs for, how it ends otherwise."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent import start
from airflow_provider_ocidist.agent.join import container_restart, own_turn
from airflow_provider_ocidist.agent.join.ads_contract import NodeInstructions
from airflow_provider_ocidist.agent.node import patience_of
from airflow_provider_ocidist.agent.stopping import Stop, StopSwitch
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.agent_config import CONFIG_VARIABLE, INCARNATION_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.causes import exit_code_of, remedy_on_node
from airflow_provider_ocidist.model.report import NodeReport, Phase, StopRequest
from airflow_provider_ocidist.model.work_dir import REPLACED_FILE, STOP_FILE, report_of
from tests.agent.join.test_own_turn import a_report, config, environment, losses, write

ADS = {"NODE_COUNT": "2", "NODE_RANK": "1", "JOB_RUN_OCID": "ocid1.run", "OCIDIST_WORK_DIR": "oci://b@n/meet"}


@dataclass
class Node:
    """The node of a run directory, which is begun in this process; its program is not."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    switch: StopSwitch = field(default_factory=StopSwitch)
    began: list[tuple[AgentConfig, Mapping[str, str]]] = field(default_factory=list)
    """Settings and environment with which the node's part has begun."""
    is_watching: bool = False
    """Whether signals end it."""

    def __post_init__(self) -> None:
        node, switch = self, self.switch

        class Begun:
            def __init__(self, *given: Any) -> None:
                assert given[2] is switch
                node.began.append(given[:2])

            def run(self) -> int:
                return 7

        def ask_on_signals() -> None:
            self.is_watching = True

        self.monkeypatch.setattr(start, "NodeAgent", Begun)
        self.monkeypatch.setattr(start, "StopSwitch", lambda: switch)
        self.monkeypatch.setattr(switch, "ask_on_signals", ask_on_signals)

    def run(self, environ: Mapping[str, str], argv: list[str] | None = None) -> int:
        for name, value in environ.items():
            self.monkeypatch.setenv(name, value)
        code = start.run_node([] if argv is None else argv)
        assert self.is_watching
        return code

    def report(self) -> NodeReport:
        return NodeReport.from_json((self.folder / report_of(1)).read_bytes())


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Node:
    monkeypatch.setattr(own_turn, "LOOK_INTERVAL", 0.02)
    monkeypatch.setattr(container_restart, "LOOK_INTERVAL", 0.02)
    monkeypatch.setattr(container_restart, "STAY", 0.1)
    monkeypatch.setattr(start, "STAY", 0.1)
    caplog.set_level(logging.INFO, "ocidist")
    for handler in logging.root.handlers:
        # The node changes it.
        monkeypatch.setattr(handler, "formatter", handler.formatter)
    return Node(tmp_path, monkeypatch)


def test_a_node_runs_for_what_its_environment_says_and_ends_with_its_code(node: Node) -> None:
    settings = config(node.folder)
    assert node.run({**settings.to_env(), **environment("a")}) == 7
    ((found, environ),) = node.began
    assert found == settings
    assert environ["OCIDIST_INSTANCE"] == "a"
    assert INCARNATION_VARIABLE not in environ


def test_a_node_in_the_place_of_others_knows_how_many_there_were(node: Node) -> None:
    write(node.folder, REPLACED_FILE, losses((1, "a"), (1, "b")).to_json())
    write(node.folder, report_of(1), a_report("b", 1).to_json())
    assert node.run({**config(node.folder).to_env(), **environment("c")}) == 7
    ((_, environ),) = node.began
    assert environ[INCARNATION_VARIABLE] == "2"
    assert environ["OCIDIST_INSTANCE"] == "c"


@pytest.mark.parametrize("is_needed", [True, False])
def test_a_container_that_was_restarted_reports_its_end_and_begins_nothing(
    node: Node, is_needed: bool
) -> None:
    settings = config(node.folder)
    write(node.folder, report_of(1), a_report("a").to_json())
    if is_needed:
        # The signal of its platform.
        threading.Timer(0.1, node.switch.event.set).start()
    else:
        end = StopRequest(cause=Cause.CANCELED, message="enough")
        write(node.folder, STOP_FILE, end.to_json())
    assert node.run({**settings.to_env(), **environment("a")}) == (143 if is_needed else 0)
    assert node.began == []
    report = node.report()
    assert (report.phase, report.lost, report.instance) == (Phase.DONE, True, "a")


def test_a_restarted_container_stays_as_long_as_a_replacement_may_take(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays: list[float] = []
    monkeypatch.setattr(start, "wait_for_end", lambda *given: stays.append(given[3]) or True)
    settings = config(node.folder)
    write(node.folder, report_of(1), a_report("a").to_json())
    assert node.run({**settings.to_env(), **environment("a")}) == 0
    assert stays == [patience_of(settings)]


def test_a_node_that_is_stopped_before_it_has_joined_says_so(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    write(node.folder, REPLACED_FILE, losses((1, "a")).to_json())
    assert node.run({**config(node.folder).to_env(), **environment("a")}) == 143
    said = (
        "this node ends before it has joined the others: this node counts as lost, and another has its place"
    )
    assert said in caplog.messages
    assert node.began == []


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_node_that_nobody_needs_any_more_says_so(
    node: Node, caplog: pytest.LogCaptureFixture, is_stopped: bool
) -> None:
    write(node.folder, report_of(1), a_report("a").to_json())
    write(node.folder, STOP_FILE, StopRequest(cause=Cause.CANCELED, message="enough").to_json())
    if is_stopped:
        node.monkeypatch.setattr(start, "STAY", 60.0)
        # The signal of its platform.
        threading.Timer(0.1, node.switch.event.set).start()
    assert node.run({**config(node.folder).to_env(), **environment("b")}) == (143 if is_stopped else 0)
    said = "nobody needs this node, which has waited for its turn: "
    (line,) = [each for each in caplog.messages if each.startswith(said)]
    assert line.endswith(": enough")


@pytest.mark.parametrize(
    "text, why", [(None, "is not set"), ("{", "cannot be read"), ("[]", "cannot be read")]
)
def test_a_node_that_cannot_start_names_cause_and_remedy(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, text: str | None, why: str
) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    assert node.run({} if text is None else {CONFIG_VARIABLE: text}) == exit_code_of(Cause.CONFIG)
    # Threads that an earlier test has left may log, too.
    (line,) = [each.getMessage() for each in caplog.records if each.threadName == "MainThread"]
    assert line.startswith(f"this node cannot start: CONFIG: {CONFIG_VARIABLE} {why}")
    assert line.endswith(f". Remedy: {remedy_on_node(Cause.CONFIG)}")


@pytest.mark.parametrize("is_given", [True, False])
def test_a_node_of_ads_takes_its_command_from_its_arguments(
    node: Node, monkeypatch: pytest.MonkeyPatch, is_given: bool
) -> None:
    arguments = ["python train.py --lr 1"]
    monkeypatch.setattr(sys, "argv", ["node", *(["another.py"] if is_given else arguments)])
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    for name, value in ADS.items():
        monkeypatch.setenv(name, value)
    assert start.run_node(arguments if is_given else None) == 7
    ((found, environ),) = node.began
    assert (found.nodes, found.program.script, found.run_name) == (2, "train.py", "ocid1.run")
    assert environ["OCIDIST_NODE_RANK"] == "1"


def test_a_node_of_ads_that_waits_for_the_others_can_be_stopped(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wait(_environ: Mapping[str, str], _arguments: Sequence[str], switch: StopSwitch) -> NodeInstructions:
        node.switch.ask(Stop(message="this node was stopped by SIGTERM"))
        switch.check()
        raise AssertionError

    monkeypatch.setattr(start, "instructions_of_ads", wait)
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    assert node.run(ADS) == 143
    assert caplog.messages[-1].endswith("before it has joined the others: this node was stopped by SIGTERM")


def test_settings_of_ocidist_count_before_those_of_ads(node: Node) -> None:
    settings = replace(config(node.folder), nodes=2)
    assert node.run({**ADS, **settings.to_env(), **environment("a")}) == 7
    ((found, _),) = node.began
    assert found == settings


def test_what_a_node_logs_shows_who_says_it_and_no_secret(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    caplog.set_level(logging.WARNING)
    caplog.set_level(logging.NOTSET, "ocidist")
    monkeypatch.setenv(CONFIG_VARIABLE, "{")
    monkeypatch.setenv("DB_PASSWORD", "hunter22xyz")
    node.monkeypatch.setattr(start, "remedy_on_node", lambda _: "try hunter22xyz")
    node.run({})
    logging.getLogger("ocidist").info("it goes on")
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("ocidist: ERROR: this node cannot start: ")
    assert first.endswith("try ***")
    assert second == "ocidist: it goes on"
