"""How long something has looked the same, as measured by the watcher. Pure.

No two machines' clocks are compared: a value is only ever compared with itself at the look before, and the time between
is the watcher's own. The next watcher continues the measurement, which is a duration and not a time.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs import verdict
from airflow_provider_ocidist.model.report import Phase
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunRecord, RunStatus, Unchanged

PROGRESS = "movement"
"""Progress of the whole gang: steps, output, checkpoints."""
FAILURE = "failure"
"""A node has failed, and others are alive."""
ENDING = "ending"
"""Every live node is ending."""

BEGUN = "begun"
"""All nodes have run at once."""
WAITING = "waiting"
"""A gang that had begun waits for a machine again, and was not paused by a user."""
FEWER = "fewer"
"""The gang goes on with fewer nodes; it has asked for no other since, and none has waited in vain to take part."""

MAY_BEAT = (NodeState.RUNNING, NodeState.ENDING, NodeState.UNKNOWN)
"""States in which a node that has reported may send heartbeats, and so may be silent."""


def observe(record: RunRecord, status: RunStatus, elapsed: float) -> RunRecord:
    """Return the record after a look; `elapsed` is in seconds since the look before, 0 for a watcher's first."""
    record = with_members(record, status)
    known = {each.of: each for each in record.unchanged}
    marks = [*_marks(record, status.only(record.members)), *_fewer(record, status), *_beats(record, status)]
    found = [_after(known.get(mark.of), mark, elapsed) for mark in marks]
    if not status.reports_readable:
        # An unreadable report is neither silence nor a heartbeat.
        found += [
            each for each in record.unchanged if each.of in (PROGRESS, FEWER) or each.of.startswith("node ")
        ]
    return replace(record, unchanged=tuple(found))


def with_members(record: RunRecord, status: RunStatus) -> RunRecord:
    """Return the record with the nodes that take part, as far as their reports say it."""
    return replace(record, members=status.members) if status.restarts else record


def seconds(record: RunRecord, of: str) -> float:
    """Return for how many seconds `of` has looked the same."""
    return next((each.seconds for each in record.unchanged if each.of == of), 0.0)


def begin_again(record: RunRecord, of: str) -> RunRecord:
    """Return the record with `of` measured from 0 again."""
    return replace(record, unchanged=tuple(each for each in record.unchanged if each.of != of))


def is_fewer(record: RunRecord) -> bool:
    """Whether a gang goes on with fewer nodes than it has."""
    return 0 < len(record.members) < record.ref.nodes


def has_begun(record: RunRecord) -> bool:
    """Whether all nodes of a gang have ever run at once, as far as a watcher has seen it."""
    return bool(record.ref.replaced) or any(each.of == BEGUN for each in record.unchanged)


def awaits_machine(node: NodeStatus, record: RunRecord, status: RunStatus) -> bool:
    """Whether a node waits for its machine, or may do so in a state that is not known, as it has never reported."""
    is_unheard = node.report is None and record.expects.reports and status.reports_readable
    return node.state is NodeState.PENDING or (node.state is NodeState.UNKNOWN and is_unheard)


def heartbeat_of(rank: int) -> str:
    """Return the key of one node's heartbeat, one text for all gangs."""
    return sys.intern(f"node {rank}")


@dataclass(frozen=True, slots=True)
class _Mark:
    of: str
    text: str
    is_newest: bool = True
    """Whether the text is current, and not read some looks ago."""


def _after(before: Unchanged | None, mark: _Mark, elapsed: float) -> Unchanged:
    text = _digest(mark.text)
    if before is None or before.mark != text:
        return Unchanged(of=mark.of, mark=text)
    if not mark.is_newest:
        return replace(before, unread=before.unread + elapsed)
    return replace(before, seconds=before.seconds + before.unread + elapsed, unread=0.0)


def _digest(text: str) -> str:
    # Most marks have no text of their own, and share this one.
    return f"{zlib.crc32(text.encode()):08x}" if text else "00000000"


def _marks(record: RunRecord, status: RunStatus) -> Iterator[_Mark]:
    alive = [each for each in status.nodes if not each.state.terminal]
    if alive and any(_has_failed(each, record, status) for each in status.nodes):
        # What fails after the others went on without a node is a failure of its own.
        yield _Mark(FAILURE, " ".join(map(str, record.members)))
    if alive and all(each.state is NodeState.ENDING for each in alive):
        yield _Mark(ENDING, " ".join(str(each.rank) for each in alive))
    if has_begun(record) or all(each.state is NodeState.RUNNING for each in status.nodes):
        yield _Mark(BEGUN, "")
        if any(awaits_machine(each, record, status) and each.cause is not Cause.CANCELED for each in alive):
            yield _Mark(WAITING, "")
    if status.reports_readable and _is_training(status):
        text = " ".join(_movement(each) for each in status.nodes)
        yield _Mark(PROGRESS, text, all(each.report_is_newest for each in status.nodes))


def _fewer(record: RunRecord, status: RunStatus) -> Iterator[_Mark]:
    """Yield for how long a gang has gone on with fewer nodes; `status`: of all nodes."""
    if not (is_fewer(record) and status.reports_readable):
        return
    text = f"{record.members} {len(record.ref.replaced)}"
    # What has just waited in vain is not asked for again at once.
    left = [node.rank for node in status.nodes if node.state.terminal and node.report and node.report.leaves]
    yield _Mark(FEWER, f"{text} {left}" if left else text)


def _beats(record: RunRecord, status: RunStatus) -> Iterator[_Mark]:
    """Yield the heartbeats of all nodes, also of those that take no part."""
    if not status.reports_readable:
        return
    for each in status.nodes:
        is_new = each.state is NodeState.RUNNING and record.expects.reports
        if is_new or (each.state in MAY_BEAT and each.report is not None):
            yield _Mark(heartbeat_of(each.rank), each.beat or "")


def _has_failed(each: NodeStatus, record: RunRecord, status: RunStatus) -> bool:
    if each.state is NodeState.SUCCEEDED and each.report is None:
        # Its report may just not be listed yet.
        return False
    return verdict.end(each, record.expects, status) is verdict.NodeEnd.FAILED


def _is_training(status: RunStatus) -> bool:
    phases = {each.report.phase if each.report else None for each in status.nodes}
    return Phase.TRAINING in phases and phases <= {Phase.TRAINING, Phase.DONE}


def _movement(of: NodeStatus) -> str:
    report = of.report
    assert report is not None
    return f"{report.progress and report.progress.updated_at}/{report.finished_at}"
