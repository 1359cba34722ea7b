"""What counts as a success: every cell of the product, against a table written from the documents.

Rows are what the service says of the node in question and what the node itself reported; columns are which checkpoint
was reported, and which one the store has. Another node, which did all its part, stands beside it.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import Action, Fail, Succeed, Wait
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress
from airflow_provider_ocidist.model.run import (
    Ending,
    Expectations,
    NodeState,
    NodeStatus,
    RunKey,
    RunRecord,
    RunRef,
    RunStatus,
    TrainingResult,
)

NOW = 1_000_000.0
OWN = CheckpointRef(uri="oci://b@n/c/own", step=20, fence=Fence(generation=1, attempt=2), sequence=1)
FORMER = CheckpointRef(uri="oci://b@n/c/former", step=10, fence=Fence(generation=1, attempt=1), sequence=9)
OUTPUT = "oci://b@n/out"

SERVICE = ["SUCCEEDED", "FAILED", "CANCELED", "MISSING", "UNKNOWN"]
REPORTED = [
    "exit 0",
    "exit 1",
    "cause",
    "stopped",
    "stopped, exit 0",
    "not done",
    "never",
    "unreadable",
    "nobody reports",
]
SILENT = ("never", "unreadable", "nobody reports")
CHECKPOINT = [
    "own",
    "former",
    "former, complete",
    "former, trained on",
    "former, a bar",
    "none",
    "damaged",
    "unreadable",
]
SAID = {
    "former, complete": Progress(step=10, steps=10, first_step=10, own_steps=10, loss=1.0),
    "former, trained on": Progress(step=30, steps=30, first_step=11, own_steps=30, loss=1.0),
    "former, a bar": Progress(step=7, steps=7, loss=1.0),
}
"""Progress of a node, where it is another than on the way to step 30."""
STORED = ["not read", "own", "former"]
OUTPUTS = ["none wanted", "there", "missing"]


def there_is(reported: str, checkpoint: str, stored: str) -> str:
    """Return which checkpoint there is, by the reports and the store."""
    if checkpoint in ("damaged", "unreadable"):
        return checkpoint
    known = "none" if reported in SILENT else checkpoint
    if "own" in (known, stored):
        return "own"
    return stored if known == "none" and stored != "not read" else known


def expected(service: str, reported: str, found: str, wanted: bool, outputs: str) -> str:
    """Return the verdict as the documents promise it; `found`: which checkpoint there is."""
    if service == "UNKNOWN":
        return "wait"
    if service == "FAILED" and reported == "unreadable":
        return "wait, then fail NODE"
    if reported == "cause":
        return "fail OOM"
    if service in ("CANCELED", "MISSING"):
        return "fail CANCELED"
    if service == "FAILED":
        return "fail USER" if reported == "nobody reports" else "fail NODE"
    if reported in ("exit 1", "stopped", "stopped, exit 0", "never"):
        return "fail NODE"
    if reported == "unreadable" or found == "unreadable":
        return "wait, then fail SERVICE"
    if found == "damaged":
        return "fail USER"
    if wanted and found in ("none", "former", "former, trained on", "former, a bar"):
        return "fail NODE" if reported == "not done" else "fail USER"
    if outputs != "none wanted" and reported == "nobody reports":
        return "fail USER"
    if outputs == "missing" and reported != "not done":
        return "fail USER"
    return "succeed"


def report(rank: int, reported: str, checkpoint: str, outputs: str) -> NodeReport | None:
    found = {"own": OWN, "damaged": OWN, "unreadable": OWN, "none": None}.get(checkpoint, FORMER)
    base = NodeReport(
        rank=rank,
        phase=Phase.DONE,
        address="",
        started_at=NOW,
        heartbeat_at=NOW,
        finished_at=NOW + 600,
        exit_code=0,
        moved=3,
        progress=SAID.get(checkpoint, Progress(step=10, steps=30, first_step=10, own_steps=30, loss=1.0)),
        checkpoint=found,
        outputs=(OUTPUT,) if outputs == "there" else (),
    )
    changes: dict[str, dict[str, object] | None] = {
        "exit 0": {},
        "exit 1": {"exit_code": 1},
        "cause": {"cause": Cause.OOM, "exit_code": None},
        "stopped": {"exit_code": None, "message": "it was asked to stop"},
        "stopped, exit 0": {"stopped": True},
        "not done": {"phase": Phase.SAVING, "exit_code": None, "finished_at": None},
    }
    change = changes.get(reported)
    return None if change is None else replace(base, **change)


def without_progress(report: NodeReport | None) -> NodeReport | None:
    """Return the report of a node whose program shows no progress, as of all but one in many trainings."""
    return report and replace(report, progress=None)


def status_of(
    service: str, reported: str, checkpoint: str, outputs: str, stored: str = "not read"
) -> RunStatus:
    problem = {"damaged": "x.pt has 3 bytes", "unreadable": "the store does not answer"}.get(checkpoint)
    well = "nobody reports" if reported == "nobody reports" else "exit 0"
    nodes = (
        NodeStatus(
            rank=0, run_id="run0", state=NodeState(service), report=report(0, reported, checkpoint, outputs)
        ),
        NodeStatus(
            rank=1,
            run_id="run1",
            state=NodeState.SUCCEEDED,
            report=without_progress(report(1, well, "none", "none wanted")),
        ),
    )
    if reported == "unreadable":
        nodes = tuple(replace(node, report=None) for node in nodes)
    read: dict[str, CheckpointRef] = {"own": OWN, "former": FORMER}
    return RunStatus(
        nodes=nodes,
        reports_readable=reported != "unreadable",
        checkpoint_problem=problem,
        checkpoint_readable=checkpoint != "unreadable",
        stored=read.get(stored),
    )


def record(wanted: bool = True, outputs: str = "none wanted", **changes: object) -> RunRecord:
    ref = RunRef(
        backend="x",
        key=RunKey(dag_id="d", run_id="r", task_id="t", generation=1, attempt=2),
        nodes=2,
        job_id="job",
        run_ids=("run0", "run1"),
        run_dir="dir",
        submitted_at=NOW,
    )
    expects = Expectations(checkpoint=wanted, outputs=() if outputs == "none wanted" else (OUTPUT,))
    return replace(RunRecord(ref=ref, expects=expects), **changes)


def short(action: Action) -> str:
    match action:
        case Fail(cause, _):
            return f"fail {cause}"
        case Succeed():
            return "succeed"
        case Wait():
            return "wait"
    raise AssertionError(action)


@pytest.mark.parametrize(
    "service, reported, checkpoint", list(itertools.product(SERVICE, REPORTED, CHECKPOINT))
)
def test_every_cell_is_as_the_documents_promise(service: str, reported: str, checkpoint: str) -> None:
    for stored, wanted, outputs in itertools.product(STORED, [True, False], OUTPUTS):
        cell = f"stored: {stored}, checkpoint wanted: {wanted}, outputs: {outputs}"
        known = record(wanted, outputs)
        if reported == "nobody reports":
            known = replace(known, expects=replace(known.expects, reports=False))
        promise = expected(service, reported, there_is(reported, checkpoint, stored), wanted, outputs)
        status = status_of(service, reported, checkpoint, outputs, stored)
        if promise.startswith("wait, then "):
            assert short(decide(known, status, NOW)) == "wait", cell
            known = replace(known, unread_since=NOW - 1801)
        assert short(decide(known, status, NOW)) == promise.removeprefix("wait, then "), cell


@pytest.mark.parametrize("reported", ["exit 1", "cause", "stopped", "stopped, exit 0", "never"])
def test_a_gang_that_was_being_ended_fails_for_that_reason_whatever_the_service_calls_it(
    reported: str,
) -> None:
    ending = Ending(cause=Cause.HANG, message="stuck", since=NOW)
    status = status_of("SUCCEEDED", reported, "own", "none wanted")
    assert decide(record(ending=ending), status, NOW) == Fail(Cause.HANG, "stuck")


def test_a_node_that_failed_ends_the_others_though_the_service_calls_it_succeeded() -> None:
    status = status_of("SUCCEEDED", "exit 1", "own", "none wanted")
    alive = replace(status, nodes=(status.nodes[0], replace(status.nodes[1], state=NodeState.RUNNING)))
    action = decide(record(), alive, NOW)
    assert "node 0" in getattr(action, "ending").message  # noqa: B009 - a Cancel


@pytest.mark.parametrize("first", ["exit 0", "not done", "never", "stopped, exit 0", "exit 1", "unread"])
def test_a_node_that_the_service_stops_as_the_first_has_succeeded_has_done_its_part(first: str) -> None:
    # The operator of a cluster ends what is left of a gang then; a preemption ends it before.
    said = "never" if first == "unread" else first
    (main, other) = status_of("SUCCEEDED", said, "own", "none wanted", "own").nodes
    assert other.report
    stopped = replace(other, report=replace(other.report, stopped=True))
    status = RunStatus(nodes=(main, stopped), stored=OWN, reports_readable=first != "unread")
    expected = {"exit 0": "succeed", "not done": "succeed", "unread": "wait"}.get(first, "fail NODE")
    assert short(decide(record(), status, NOW)) == expected
    if first == "stopped, exit 0":
        action = decide(record(), status, NOW)
        assert isinstance(action, Fail)
        assert "was stopped before its program had ended" in action.message


def test_a_last_report_that_was_lost_is_made_up_for_by_what_is_stored() -> None:
    lost = status_of("SUCCEEDED", "not done", "none", "none wanted")
    assert short(decide(record(), replace(lost, stored=OWN), NOW)) == "succeed"
    assert short(decide(record(), replace(lost, stored=FORMER), NOW)) == "fail NODE"
    assert replace(lost, stored=OWN).checkpoint == OWN


def test_the_nodes_whose_last_reports_were_lost_are_named() -> None:
    lost = status_of("SUCCEEDED", "not done", "none", "none wanted")
    both = replace(lost, nodes=(lost.nodes[0], replace(lost.nodes[0], rank=1, run_id="run1")))
    action = decide(record(), both, NOW)
    assert isinstance(action, Fail)
    assert action.message.startswith(
        "the last reports of nodes 0, 1 are missing, and this attempt published no checkpoint"
    )


@pytest.mark.parametrize(
    "found, wanted, there",
    [
        ("oci://b@n/out/", "oci://b@n/out", True),
        ("oci://b@n/out", "oci://b@n/out//", True),
        ("oci://b@n/out", "oci://b@n/out/deep/er", False),
        ("oci://b@n/out", "oci://b@n/out-2", False),
        ("oci://b@n/out", "oci://b@n/outX", False),
        ("oci://b@n/outX", "oci://b@n/out", False),
        ("oci://b@n/out/deep", "oci://b@n/out", True),
    ],
)
def test_an_output_is_there_when_it_or_something_in_it_was_copied(
    found: str, wanted: str, there: bool
) -> None:
    status = status_of("SUCCEEDED", "exit 0", "own", "there")
    (main, other) = status.nodes
    assert main.report
    copied = replace(main, report=replace(main.report, outputs=(found,)))
    known = record(expects=Expectations(checkpoint=True, outputs=(wanted,)))
    action = decide(known, replace(status, nodes=(copied, other)), NOW)
    if there:
        assert action == Succeed()
    else:
        assert isinstance(action, Fail)
        assert action.cause is Cause.USER
        assert action.message.endswith(f"these outputs are missing: {wanted}")


def test_a_retry_that_trains_nothing_says_what_it_had_and_what_to_do() -> None:
    action = decide(record(), status_of("SUCCEEDED", "exit 0", "former", "none wanted"), NOW)
    assert isinstance(action, Fail)
    assert "attempt 1" in action.message
    assert '{"complete": true}' in action.message


def test_a_run_that_saved_nothing_says_what_to_read_and_what_to_set() -> None:
    action = decide(record(), status_of("SUCCEEDED", "exit 0", "none", "none wanted"), NOW)
    assert isinstance(action, Fail)
    assert action.message.startswith("the program exited with 0 on every node but wrote no checkpoint")
    assert "first lines of output" in action.message
    assert "checkpoints.required: false" in action.message


def test_a_checkpoint_that_is_damaged_is_the_reason_in_its_own_words() -> None:
    status = status_of("SUCCEEDED", "exit 0", "damaged", "none wanted")
    said = replace(status, checkpoint_problem="its checksum differs")
    assert decide(record(), said, NOW) == Fail(Cause.USER, "its checksum differs")


COMPLETE = [
    Progress(complete=True),
    Progress(complete=True, first_step=10, own_steps=10),
    # It says so although it also evaluates, in words that are those of a training.
    Progress(complete=True, step=5, steps=20, first_step=1, own_steps=20),
    Progress(steps=10, own_steps=10),
    Progress(step=10, steps=10, first_step=10, own_steps=10),
    Progress(step=12, steps=10, first_step=12, own_steps=10),
    # After the number of steps was lowered.
    Progress(step=10, steps=8, first_step=10, own_steps=8),
    # As Hugging Face's Trainer shows it, also where a bar of the evaluation follows.
    Progress(step=0, steps=10, idle_bar=10),
    Progress(step=4, steps=4, idle_bar=10),
]
NOT_COMPLETE = [
    None,
    Progress(),
    Progress(step=10, loss=1.0),
    # Trained on from the checkpoint to the end, and saved nothing.
    Progress(step=30, steps=30, first_step=11, own_steps=30),
    # The same, of a program that names each tenth step only, or the last.
    Progress(step=30, steps=30, first_step=20, own_steps=30),
    Progress(step=30, steps=30, first_step=30, own_steps=30),
    # The same, and it says at its end that all is trained.
    Progress(complete=True, step=30, steps=30, first_step=11, own_steps=30, goes_on=True),
    # From the beginning, though there was a checkpoint.
    Progress(step=10, steps=10, first_step=1, own_steps=10),
    # Bars of something else: in the midst, at their end, of as many as the checkpoint has steps, or more.
    Progress(step=5, steps=200),
    Progress(step=200, steps=200),
    Progress(step=10, steps=10),
    Progress(step=3, steps=4),
    # An evaluation in words, to its end.
    Progress(step=4, steps=4, first_step=4, own_steps=4),
    # Nothing left of something that has another number of steps.
    Progress(step=0, steps=30, idle_bar=30),
    Progress(step=0, steps=4, idle_bar=4),
]


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize(
    "progress, promise",
    [(each, "succeed") for each in COMPLETE] + [(each, "fail USER") for each in NOT_COMPLETE],
)
def test_only_a_retry_whose_program_shows_that_the_training_was_complete_ends_well_without_a_checkpoint(
    progress: Progress | None, promise: str, other: bool
) -> None:
    status = status_of("SUCCEEDED", "exit 0", "former", "none wanted")
    nodes = [
        replace(node, report=replace(node.report, progress=None)) for node in status.nodes if node.report
    ]
    if progress == Progress(step=12, steps=10, first_step=12, own_steps=10):
        at_12 = replace(FORMER, step=12)
        nodes = [replace(each, report=replace(each.report, checkpoint=at_12)) for each in nodes]
    # Not every node's program reports its progress.
    nodes[other] = replace(nodes[other], report=replace(nodes[other].report, progress=progress))
    assert short(decide(record(), replace(status, nodes=tuple(nodes)), NOW)) == promise


def test_what_one_node_shows_of_a_training_counts_against_what_another_says() -> None:
    (main, other) = status_of("SUCCEEDED", "exit 0", "former, complete", "none wanted").nodes
    assert main.report
    assert other.report
    trained = replace(other, report=replace(other.report, progress=Progress(first_step=3, own_steps=10)))
    assert short(decide(record(), RunStatus(nodes=(main, trained)), NOW)) == "fail USER"


def test_a_checkpoint_without_a_step_is_complete_only_in_the_programs_own_words() -> None:
    for progress, promise in (
        (Progress(step=10, steps=10, first_step=10, own_steps=10), "fail USER"),
        (Progress(step=0, steps=10, idle_bar=10), "fail USER"),
        (Progress(complete=True), "succeed"),
    ):
        nodes = [
            replace(
                node, report=replace(node.report, progress=progress, checkpoint=replace(FORMER, step=None))
            )
            for node in status_of("SUCCEEDED", "exit 0", "former", "none wanted").nodes
            if node.report
        ]
        assert short(decide(record(), RunStatus(nodes=tuple(nodes)), NOW)) == promise


def test_a_checkpoint_of_an_agent_of_the_version_before_counts_as_its_own() -> None:
    old = CheckpointRef(uri="oci://b@n/c/step-10", step=10)
    status = status_of("SUCCEEDED", "exit 0", "own", "none wanted")
    # A node of this version that had fetched within a moment has not said that it moved.
    for moved, starts_from, verdict in (
        (None, None, "succeed"),
        (3, None, "fail USER"),
        (None, "0123abcd", "fail USER"),
    ):
        reports = [
            replace(node.report, checkpoint=old, moved=moved, starts_from=starts_from)
            for node in status.nodes
            if node.report
        ]
        nodes = tuple(
            replace(node, report=report) for node, report in zip(status.nodes, reports, strict=True)
        )
        assert short(decide(record(), replace(status, nodes=nodes), NOW)) == verdict


# Without `checkpoints` in the job


SIGNS = {
    "step": {"progress": Progress(step=3)},
    "loss": {"progress": Progress(loss=0.5)},
    "checkpoint": {"checkpoint": OWN},
    "output": {"outputs": (OUTPUT,)},
}


@pytest.mark.parametrize("took", [2.0, 59.0, 60.0, 61.0, None])
@pytest.mark.parametrize("sign", ["nothing", "former", *SIGNS])
@pytest.mark.parametrize("required", [False, True])
def test_a_short_run_that_shows_nothing_is_warned_of_and_where_that_is_asked_for_a_failure(
    took: float | None, sign: str, required: bool
) -> None:
    bare = NodeReport(
        rank=0,
        phase=Phase.DONE,
        address="",
        started_at=NOW,
        heartbeat_at=NOW,
        finished_at=NOW + 5 if took is None else NOW + 4000,
        exit_code=0,
        moved=1,
        trained_for=took,
        checkpoint=FORMER if sign == "former" else None,
    )
    reported = replace(bare, **SIGNS.get(sign, {}))
    status = RunStatus(nodes=(NodeStatus(rank=0, run_id="run0", state=NodeState.SUCCEEDED, report=reported),))
    known = record(expects=Expectations(training=required))
    action = decide(known, status, NOW)
    if sign in SIGNS:
        assert action == Succeed()
    elif required:
        assert isinstance(action, Fail)
        assert action.cause is Cause.USER
        assert "require_training" in action.message
    elif took in (60.0, 61.0):
        assert action == Succeed()
    else:
        assert isinstance(action, Succeed)
        assert action.warning
        assert f"after {5 if took is None else took:.0f} s and showed no step, loss" in action.warning
        result = TrainingResult.of(known, status, action.warning).to_json()
        assert result["warning"] == action.warning


@pytest.mark.parametrize("sign", ["nothing", "former", "promised output", *SIGNS])
@pytest.mark.parametrize("lost", [[0], [1], [0, 1]])
@pytest.mark.parametrize("required", [False, True])
def test_a_run_whose_last_reports_were_lost_has_to_show_a_training_too(
    sign: str, lost: list[int], required: bool
) -> None:
    for heard_for in (2.0, 59.0, 60.0, 4000.0):
        done = NodeReport(
            rank=0,
            phase=Phase.DONE,
            address="",
            started_at=NOW,
            heartbeat_at=NOW + heard_for,
            finished_at=NOW + heard_for,
            exit_code=0,
            moved=1,
            checkpoint=FORMER if sign == "former" else None,
        )
        done = replace(done, **SIGNS.get(sign, {}))
        reports = [
            replace(done, rank=rank, phase=Phase.TRAINING, exit_code=None, finished_at=None)
            if rank in lost
            else replace(done, rank=rank)
            for rank in range(2)
        ]
        nodes = tuple(
            NodeStatus(rank=rank, run_id=f"run{rank}", state=NodeState.SUCCEEDED, report=report)
            for rank, report in enumerate(reports)
        )
        outputs = (OUTPUT,) if sign == "promised output" else ()
        known = record(expects=Expectations(training=required, outputs=outputs))
        action = decide(known, RunStatus(nodes=nodes), NOW)
        named = f"the last report of node {lost[0]} is missing"
        if len(lost) == 2:
            named = "the last reports of nodes 0, 1 are missing"
        named += ", and no report showed a step"
        if sign not in ("nothing", "former"):
            assert action == Succeed()
        elif required:
            assert isinstance(action, Fail)
            # It may have trained: a retry shows it, where a fault of the program would not be retried.
            assert action.cause is Cause.NODE
            assert action.message.startswith(named)
            assert "require_training" in action.message
        elif heard_for >= 60:
            assert action == Succeed()
        else:
            assert isinstance(action, Succeed)
            assert str(action.warning).startswith(named)


def test_a_run_without_an_agent_is_not_warned_of() -> None:
    status = RunStatus(nodes=(NodeStatus(rank=0, run_id="run0", state=NodeState.SUCCEEDED),))
    assert decide(record(expects=Expectations(reports=False, training=True)), status, NOW) == Succeed()
