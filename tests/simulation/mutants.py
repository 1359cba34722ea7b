"""Mutants: the defects of issue 11, put back one at a time; the simulation has to find each."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "OCIDIST_SIMULATION_MUTANT"


@dataclass(frozen=True)
class Mutant:
    """Some lines of a module, or of several, as a defect would have them."""

    name: str
    point: str
    """Of the issue."""
    changes: Mapping[str, Sequence[tuple[str, str]]]
    """By module: lines as they are, and as the defect has them."""
    rules: str
    """Regular expression: which rule, and which words, show that it was found."""
    needs: str = ""
    """Name of the circumstance that it shows in (`circumstances`); empty: in most."""


def _one(name: str, point: str, module: str, old: str, new: str, rules: str, needs: str = "") -> Mutant:
    return Mutant(name, point, {module: [(old, new)]}, rules, needs)


def _some(
    name: str, point: str, module: str, changes: Sequence[tuple[str, str]], rules: str, needs: str = ""
) -> Mutant:
    return Mutant(name, point, {module: changes}, rules, needs)


_OCI = "backends/oci_data_science/"
_AT_REST = (
    (
        "    return Unproved(_why_not(found), mixed=bool(found.left_over))",
        '    return Proof("it came to rest")',
    ),
    ("    if found.open_for_writing:", "    if False:"),
    ("    if found.format.says is FormatResult.BROKEN and not", "    if False and not"),
)
"""Of `agent/save/proofs.py`: what did not change for a second counts as whole."""
_NO_FENCE_TO_PUBLISH = (
    ("    fences.advance_fence(root, save.fence)\n    folder = _free_folder(", "    folder = _free_folder("),
    ("    fences.advance_fence(root, fence)\n    target.write(", "    target.write("),
    (
        "        fences.advance_fence(root, fence)\n    except Fenced:",
        "        pass\n    except Fenced:",
    ),
)
"""Of `storage/checkpoints.py`: an attempt publishes without a look at who else does."""
MUTANTS = (
    _one(
        "after an error every checkpoint counts as whole",
        "1a",
        "agent/save/proofs.py",
        "frozenset({Moment.EXITED})),",
        "frozenset({Moment.EXITED, Moment.CUT_OFF})),",
        "wholeness",
    ),
    _some(
        "an unchanged checkpoint counts as whole",
        "1b",
        "agent/save/proofs.py",
        _AT_REST,
        "wholeness",
    ),
    _one(
        "retention deletes the newest checkpoint",
        "1c",
        "storage/retention.py",
        "    last = _last(manifests, max(1, rule.keep))",
        "    last = _last(manifests[1:], max(1, rule.keep))",
        "retention",
    ),
    _some(
        "the last whole checkpoint is deleted for a half",
        "1c",
        "agent/save/proofs.py",
        _AT_REST,
        "retention: the newest whole",
    ),
    _one(
        "what a full disk has cut off counts as whole",
        "1a",
        "agent/stages/results.py",
        "finish(Moment.CUT_OFF, deadline)",
        "finish(Moment.EXITED if stop is None else Moment.CUT_OFF, deadline)",
        "wholeness: .*before:.* a full disk",
        needs="a full disk",
    ),
    _one(
        "what a kill has cut off counts as whole",
        "1a",
        "agent/stages/results.py",
        "finish(Moment.CUT_OFF, deadline)",
        "finish(Moment.CUT_OFF if stop is None else Moment.EXITED, deadline)",
        "wholeness: .*before:.*(marked failed|cleared|restarted)",
        needs="a kill amid a save",
    ),
    _one(
        "an archive is not read to its end",
        "1b",
        "agent/save/formats.py",
        "    with zipfile.ZipFile(file) as archive:\n        members",
        "    return\n    with zipfile.ZipFile(file) as archive:\n        members",
        "wholeness",
    ),
    _one(
        "a Trainer's folder counts as whole without its state",
        "1b",
        "agent/save/layouts.py",
        "    if TRAINER_STATE not in files:\n        return NOTHING",
        '    if TRAINER_STATE not in files:\n        return WHOLE if "config.json" in files else NOTHING',
        "wholeness",
    ),
    _some(
        "a file that is open for writing is no hindrance",
        "1b",
        "agent/save/proofs.py",
        (
            ("    if found.open_for_writing:", "    if False:"),
            (" or found.smaller or found.left_open)", " or found.smaller)"),
            (
                "found.is_like_the_last and not (found.left_over or found.left_open)",
                "found.is_like_the_last and not found.left_over",
            ),
        ),
        "wholeness",
    ),
    _one(
        "sizes are not compared with the checkpoint before",
        "1b",
        "agent/save/series_comparison.py",
        "    return all(name in proved or size == its_by_name[names.now[name]] for name, size in sizes.items())",
        "    return True",
        "wholeness",
        needs="an end amid the second file",
    ),
    _one(
        "files of two saves count as one",
        "1b",
        "agent/save/judging.py",
        "            left_over=_left_over(item, self._proved.get(item.path)),\n",
        "",
        "wholeness",
        needs="a save over another",
    ),
    _one(
        "the step in the name decides which is newest",
        "2",
        "storage/listing.py",
        "key=lambda item: item.manifest.order,",
        "key=lambda item: int('0' + item.folder[-1:] if item.folder[-1:].isdigit() else '0'),",
        "order|retention",
    ),
    _one(
        "the step decides which is newest, also of two attempts",
        "2",
        "storage/listing.py",
        "key=lambda item: item.manifest.order,",
        "key=lambda item: (-1 if item.manifest.step is None else item.manifest.step, item.manifest.order),",
        "order|retention",
    ),
    _one(
        "the last number of a name is its step",
        "2",
        "agent/save/uploads.py",
        "        if self._newest_saves.is_behind(item, begun):",
        """        import re

        digits = int(("0", *re.findall("[0-9]+", item.path.name))[-1])
        known = vars(self).get("_digits", 0)
        self._digits = max(known, digits)
        if digits < known:""",
        "order",
        needs="Lightning's names",
    ),
    _one(
        "last.ckpt is ignored",
        "2",
        "agent/save/entries.py",
        "            if placed:\n",
        '            if placed and name != "last.ckpt":\n',
        "order",
        needs="last.ckpt beside others",
    ),
    _one(
        "what belongs to a checkpoint is deleted",
        "2",
        "storage/retention.py",
        "    kept += [each for one in kept for each in companions(one, manifests)]\n",
        "",
        "retention",
    ),
    _some(
        "the parts of other nodes are not waited for",
        "2",
        "agent/save/shard_collector.py",
        (
            ("        files = union({self.rank: own, **self._await(request)})", "        files = own"),
            ("        if absent:", "        if False:"),
            ("        if together.says is FormatResult.BROKEN:", "        if False:"),
        ),
        "wholeness",
    ),
    _one(
        "the random states of other nodes are left out",
        "2",
        "agent/save/shards.py",
        "    return any(may_have_others(name) or is_companion(name) for name in names)",
        "    return any(may_have_others(name) for name in names)",
        "wholeness: .*lacking .'rng_state",
    ),
    _some(
        "an earlier attempt publishes after a later one",
        "2",
        "storage/checkpoints.py",
        _NO_FENCE_TO_PUBLISH,
        "fence",
        needs="a node that outlives its gang by minutes",
    ),
    Mutant(
        "an earlier attempt deletes after a later one has published",
        "2",
        {
            "storage/checkpoints.py": _NO_FENCE_TO_PUBLISH,
            "storage/retention.py": (
                ("    fences.advance_fence(store, fence)\n    folders", "    folders"),
                (
                    "        fences.advance_fence(store, fence)\n        delete_folder",
                    "        delete_folder",
                ),
                (" if each.fence <= fence and not any(", " if not any("),
            ),
        },
        "retention: gang|retention: the newest",
        needs="a node that outlives its gang",
    ),
    _one(
        "a name without a number is no checkpoint",
        "2",
        "agent/save/entries.py",
        "            if placed:\n",
        "            if placed and placed.number is not None:\n",
        "lost model|healthy gang ended.*checkpoint",
    ),
    _one(
        "the oldest checkpoint counts as newest",
        "2",
        "storage/listing.py",
        "reverse=True)",
        "reverse=False)",
        "order|retention",
    ),
    _one(
        "a reported failure counts as success",
        "3",
        "gangs/verdict.py",
        "    ReportOutcome.FAILURE: NodeEnd.FAILED,",
        "    ReportOutcome.FAILURE: NodeEnd.WELL,",
        "success",
        needs="swallowed exits",
    ),
    _one(
        "a node without a report counts as successful",
        "3",
        "gangs/verdict.py",
        "    ReportOutcome.NOTHING: NodeEnd.FAILED,",
        "    ReportOutcome.NOTHING: NodeEnd.WELL,",
        "success",
    ),
    _one(
        "a checkpoint of another attempt counts as own",
        "3",
        "gangs/verdict.py",
        "    return Saved.COMPLETE if _was_complete(status, status.checkpoint) else Saved.FORMER",
        "    return Saved.OWN",
        "success",
        needs="trains nothing later",
    ),
    _one(
        "a training that showed nothing is not doubted",
        "3",
        "gangs/verdict.py",
        "    return Success(nothing) if took < SHORT_RUN else Success()",
        "    return Success()",
        "no warning",
        needs="shows nothing",
    ),
    _one(
        "a training that has to show something need not",
        "3",
        "gangs/verdict.py",
        "    if record.expects.training:",
        "    if False:",
        "success: .*showed nothing",
        needs="has to show something",
    ),
    _some(
        "one refusal ends the wait",
        "4",
        "model/evidence.py",
        (
            ("REFUSALS_NEEDED = 5", "REFUSALS_NEEDED = 1"),
            ("REFUSED_FOR = 900.0", "REFUSED_FOR = 0.0"),
            (" and self.renewed", ""),
        ),
        "gave up|healthy gang ended|left running",
        needs="refusals",
    ),
    _one(
        "one refusal amid the creation fails the task",
        "4",
        "gangs/backoff.py",
        "            return not self._is_believed(error)\n",
        "            return False\n",
        "gave up",
        needs="refusals amid the creation",
    ),
    _one(
        "an outage makes a refusal amid the creation more credible",
        "4",
        "gangs/backoff.py",
        "met.refused_in_all >= AMID_REFUSALS",
        "met.questions >= AMID_REFUSALS",
        "gave up",
        needs="an outage amid the creation",
    ),
    _one(
        "an outage amid the creation counts as a refusal",
        "4",
        "gangs/backoff.py",
        "        return were_refused and refusal_in(error) is not None",
        "        return met.questions >= AMID_REFUSALS and met.seconds >= AMID_FOR",
        "gave up: .*outage",
        needs="an outage amid the creation",
    ),
    _one(
        "refused credentials are not read anew",
        "4",
        "gangs/reconnection.py",
        "        reconnect()\n",
        "        pass\n",
        "gave up|healthy gang ended|left running|lost model",
        needs="a replaced key",
    ),
    _some(
        "one 404 counts as a deletion",
        "4",
        "model/evidence.py",
        (("ABSENT_ANSWERS = 4", "ABSENT_ANSWERS = 1"), ("ABSENT_FOR = 120.0", "ABSENT_FOR = 0.0")),
        "healthy gang ended|gave up|lost model",
    ),
    _one(
        "the last save is not retried",
        "4",
        "agent/save/saving.py",
        "        if not self.allows_another(error):",
        "        if True:",
        "lost model|healthy gang ended",
    ),
    _one(
        "lost_timeout also holds for a node that saves",
        "4",
        "gangs/limits.py",
        "        if not node.is_saving:",
        "        if True:",
        "healthy gang ended",
        needs="no store amid a save",
    ),
    _one(
        "a task gives up and leaves its gang running",
        "4",
        "gangs/kills.py",
        "    ending = given_up(why, now_at(backend))",
        "    return None\n    ending = given_up(why, now_at(backend))",
        "left running|gave up",
        needs="refusals for long, and nobody else ends the node",
    ),
    _one(
        "a lost last report counts as a failure",
        "3",
        "gangs/verdict.py",
        "    ReportOutcome.NOT_DONE: NodeEnd.UNSAID,",
        "    ReportOutcome.NOT_DONE: NodeEnd.FAILED,",
        "lost model",
        needs="a last report is throttled",
    ),
    _one(
        "a cancel that was refused with 409 counts as done",
        "4",
        f"{_OCI}cancels.py",
        "            return self._after_conflict(run_id, error) if error.status_code == 409 else error",
        "            return None if error.status_code == 409 else error",
        "slow cancel|left running",
    ),
    _one(
        "a run that the service does not show counts as cancelled",
        "4",
        "backends/cancels.py",
        "    error = answer.refused or (None if stop_requested else answer.unseen)",
        "    error = answer.refused",
        "slow cancel|left running",
        needs="a hidden run",
    ),
    _one(
        "no attempt writes its fence",
        "2",
        "storage/fences.py",
        "    if _holds(store, fence):",
        "    return\n    if _holds(store, fence):",
        "fence|retention",
    ),
    _one(
        "old parts of another node count as new",
        "1b",
        "agent/save/own_files.py",
        "        return {name for name in of_one_process if name in before and before[name][:2] == now[name][:2]}",
        "        return set()",
        "wholeness|lost model|healthy gang ended",
        needs="parts saved over others",
    ),
    _some(
        "the checkpoint that is proved last counts as newest",
        "2",
        "agent/save/uploads.py",
        (
            ("        if self._newest_saves.is_behind(item, begun):", "        if False:"),
            ("Whole(item, proof, begun, ", "Whole(item, proof, self._published + len(self._waiting) + 1, "),
        ),
        "order|retention",
        needs="a save is complete after later ones",
    ),
    _one(
        "saves from before and after a clock was set back are ordered by it",
        "2",
        "agent/save/judging.py",
        "self._folder_ns if self._clock.was_set_back else None)",
        "None)",
        "order|retention",
        needs="a clock is set back amid saves",
    ),
    _one(
        "open files are looked for only in what is at rest",
        "1a",
        "agent/save/judging.py",
        "            self._note_what_is_open(found, written)",
        "            self._note_what_is_open(at_rest, written)",
        "wholeness",
        needs="a rank is gone amid a file of full size",
    ),
    _one(
        "what a dead rank had open counts as closed while its launcher lives",
        "1a",
        "agent/save/left_open.py",
        "        left = look.left if look.beside.issuperset(followers) else {}",
        "        left = {}",
        "wholeness",
        needs="a rank dies, and its launcher lives",
    ),
    _one(
        "what a process had open as it ended never counts as whole",
        "1a",
        "agent/save/left_open.py",
        "        left = look.left if look.beside.issuperset(followers) else {}",
        "        left = look.left",
        "late",
        needs="a process of its own writes each save",
    ),
    _one(
        "a save that has failed counts as whole when the next is begun",
        "1a",
        "agent/save/proofs.py",
        "not (found.left_over or found.lacks or found.smaller or found.left_open)",
        "not found.left_over",
        "wholeness",
        needs="a program goes on after the error of a save",
    ),
    _one(
        "an end that an exception has written counts as whole",
        "1a",
        "agent/save/proofs.py",
        "    if form.says is not FormatResult.WHOLE or form.is_cut_short:",
        "    if form.says is not FormatResult.WHOLE:",
        "wholeness",
        needs="an exception writes an end",
    ),
    _one(
        "a part that the store refuses after the training is given up after four tries",
        "4",
        "agent/save/shard_uploader.py",
        "        if not (self._deadline if is_last else self._amid_training[1]).allows_another(error):",
        "        given_up = is_last and self._pause >= 8 * FIRST_PAUSE\n"
        "        if given_up or not (self._deadline if is_last else self._amid_training[1]).allows_another(error):",
        "lost model|healthy gang ended|order",
        needs="a part is refused after the training",
    ),
    _one(
        "a node that is done counts as silent while another of its run saves",
        "4",
        "gangs/limits.py",
        "            if node.report is not None and node.report.program_has_ended:\n",
        "            if False:\n",
        "healthy gang ended|lost model",
        needs="the main node of one run saves for minutes",
    ),
    _one(
        "a clear with fewer retries counts as a retry",
        "5",
        "model/attempts.py",
        "    return max(now.max_tries, latest.key.generation + 1)",
        "    return latest.key.generation",
        "success.*before the clear|two gangs",
    ),
    _some(
        "earlier places are not searched for gangs",
        "5",
        "backends/recorded_gangs.py",
        (
            ("        return merged_records(\n", "        return [] and merged_records(\n"),
            # That an earlier attempt is seen once this one is recorded came later.
            ("        return self.index_of(begun).unknown(begun.key, [*known, begun])", "        return []"),
        ),
        "two gangs|left running|gave up",
    ),
    _one(
        "a failed submission leaves its nodes running",
        "5",
        f"{_OCI}gangs.py",
        "            alive = self._cleaned_up(plan, with_runs(ref, existing | submission.abandoned()), stop)",
        "            alive = {}",
        "left running|two gangs|slow cancel",
        needs="a gang created in part",
    ),
    _some(
        "a failed submission leaves no stop request",
        "5",
        f"{_OCI}gangs.py",
        (
            ("            lambda: self._cancels.request_stop(ref, CALLED_OFF),", "            lambda: True,"),
            ("self._is_removed(left)):", "self._is_removed(left) or True):"),
        ),
        "left running|two gangs|slow cancel",
        needs="refusals amid the creation",
    ),
    _one(
        "uploads of ended attempts stay open",
        "5",
        "storage/open_uploads.py",
        '    base, _, own = uri.rstrip("/").rpartition("/")',
        '    return 0\n    base, _, own = uri.rpartition("/")',
        "multipart",
    ),
    _one(
        "jobs are listed without a filter by name",
        "5",
        f"{_OCI}gangs.py",
        "compartment_id, display_name=name))",
        "compartment_id))",
        "requests",
    ),
    Mutant(
        "the clocks of two machines are compared",
        "6",
        {
            "gangs/limits.py": (
                (
                    "        silent = durations.seconds(record, durations.heartbeat_of(node.rank))",
                    "        silent = now - node.report.heartbeat_at if node.report else 0.0",
                ),
                (
                    "def lost_from_sight(record: RunRecord, status: RunStatus)",
                    "def lost_from_sight(record, status, now)",
                ),
                (
                    "        or lost_from_sight(record, status)\n",
                    "        or lost_from_sight(record, status, now)\n",
                ),
            ),
            "gangs/decisions.py": (
                ("limits.lost_from_sight(record, members)", "limits.lost_from_sight(record, members, now)"),
            ),
        },
        "healthy gang ended",
    ),
    _one(
        "ending nodes are waited for without limit",
        "6",
        "gangs/decisions.py",
        "    if now - ending.first >= record.ending_limit:",
        "    if False:",
        "endless",
    ),
    _one(
        "a left-over gang is waited for without limit",
        "6",
        "gangs/canceller.py",
        "            if now > deadline:\n                raise _still_alive(",
        "            if False:\n                raise _still_alive(",
        "endless",
    ),
    _one(
        "a node that fetches is waited for without limit",
        "6",
        "agent/join/gathering.py",
        "        if now > deadline and gathering.overdue(timeout):",
        "        if now > deadline and gathering.overdue(timeout) and not gathering.fetching:",
        "endless|guard.*fetching",
        needs="fetches for ever",
    ),
    _one(
        "a kill does not cancel the gang",
        "7",
        "gangs/kills.py",
        "        self._wanted = True\n",
        "",
        "slow cancel|left running",
    ),
    _some(
        "on_kill takes a lock of the interrupted thread",
        "7",
        "operators/training_try.py",
        (
            ("import time\nfrom collections.abc", "import threading\nimport time\nfrom collections.abc"),
            (
                "        self._log = self.operator.log\n",
                "        self._log = self.operator.log\n        self._busy = threading.Lock()\n",
            ),
            (
                "        self.ending.kill_from_handler()\n",
                "        with self._busy:\n            self.ending.kill_from_handler()\n",
            ),
            (
                "                action = watch.look(time.time())\n",
                "                with self._busy:\n                    action = watch.look(time.time())\n",
            ),
        ),
        "slow cancel|left running",
        needs="a kill of a worker that waits",
    ),
    _one(
        "cancels wait behind all other calls",
        "7",
        "triggers/threads.py",
        "    threads = _ending_threads if ends_a_gang else _threads",
        "    threads = _threads",
        "slow cancel|left running",
    ),
    _one(
        "the trigger does not end its gang",
        "7",
        "triggers/training.py",
        "    async def _cancel_with_retries(self) -> None:\n",
        "    async def _cancel_with_retries(self) -> None:\n        return\n",
        "slow cancel|left running",
    ),
    _one(
        "the budget of restarts is ignored",
        "15.1",
        "agent/train/restarts.py",
        '    return f"all {allowed} of restarts.{budget} are used" if spent >= allowed else None',
        "    return None",
        "budget",
    ),
    _one(
        "a crash loop is not ended",
        "15.1",
        "agent/train/restarts.py",
        "    if is_crash_loop(before, failure):",
        "    if False:",
        "crash loop",
        needs="the same failure again",
    ),
    _one(
        "a node restores before the others have saved",
        "15.1",
        "agent/join/gathering.py",
        "            if not behind:\n",
        "            if True:\n",
        "restore|order|healthy gang ended|not launched again|launches",
        needs="a launch just after a save",
    ),
    _one(
        "unproved checkpoints of a launch are kept",
        "15.1",
        "agent/save/uploads.py",
        "    lasts = restarts or Path(checkpoints.path).is_absolute()",
        "    lasts = Path(checkpoints.path).is_absolute()",
        "wholeness|restore|order",
    ),
    _one(
        "a node keeps its own parts for the next launch",
        "15.1",
        "agent/stages/checkpoint_folder.py",
        "        if is_own:",
        "        if False:",
        "wholeness|restore|order",
    ),
    _one(
        "a lost machine costs a new gang",
        "15.1",
        "gangs/lost_nodes.py",
        "    return Replace(tuple(failures), launch=_launch_of(lost), over=_launch_over(status))",
        "    return None",
        "not replaced",
        needs="only a machine is lost",
    ),
    _one(
        "machines that are lost together are a crash loop",
        "15.1",
        "gangs/lost_nodes.py",
        "    its_predecessors = [each for each in record.ref.replaced if each.rank == node.rank]\n",
        "    its_predecessors = [*record.ref.replaced]\n",
        "not replaced",
        needs="machines are lost together",
    ),
    _one(
        "a new node takes the view of one that had not read of its predecessor's loss",
        "15.1",
        "agent/stages/meeting.py",
        "key=lambda each: (_lost_in(each.restarts), each.incarnation)",
        "key=lambda each: each.incarnation",
        "not replaced",
        needs="machines are lost together",
    ),
    _one(
        "one refusal ends the wait for another machine",
        "15.1",
        "gangs/replacements.py",
        "        asks_again = watch.note_unreplaced(error)\n        if not waited_for:",
        "        asks_again = error.retryable\n        if not waited_for:",
        "not replaced",
        needs="a replacement is refused",
    ),
    _one(
        "a launch that has reported no step has not come to that of its checkpoint",
        "15.1",
        "agent/stages/next_launch.py",
        "        return newest.step, meter.steps_apart - 1",
        "        return None, 0",
        "crash loop",
        needs="the same failure again",
    ),
    _one(
        "a lost node that comes back writes its reports",
        "15.1",
        "agent/join/heartbeat.py",
        "        if self.switch.is_lost or self._may_be_lost():\n            return False\n",
        "",
        "lost node|not replaced",
        needs="a lost node comes back",
    ),
    _one(
        "the budget of lost machines is ignored",
        "15.1",
        "gangs/lost_nodes.py",
        "    lost = {each.rank for each in failures}\n",
        "    return True\n    lost = set()\n",
        "budget|crash loop",
        needs="more machines are lost than may be replaced",
    ),
    _some(
        "a silent machine is replaced while it may live",
        "15.1",
        "gangs/lost_nodes.py",
        (
            (
                "    lost = [node for node in status.nodes if node.state.terminal]\n",
                "    lost = [each for each in status.nodes if _silent_for(record, each) > 30.0]\n",
            ),
            (
                "    if node.state is not NodeState.FAILED or (report is not None and report.cause is not None):",
                "    if report is not None and report.cause is not None:",
            ),
            (
                "def _is_lost(node:",
                (
                    "def _silent_for(record, node):\n"
                    "    return durations.seconds(record, durations.heartbeat_of(node.rank))\n\n\n"
                    "def _is_lost(node:"
                ),
            ),
        ),
        "two nodes of one rank",
        needs="a machine is silent",
    ),
    _one(
        "a machine in the place of a lost one is asked for without an idempotency token",
        "15.1",
        f"{_OCI}replacements.py",
        "opc_retry_token=token",
        "opc_retry_token=None",
        "two nodes of one rank|budget",
        needs="machines are lost",
    ),
    _one(
        "a preemption counts as a crash loop",
        "15.1",
        "agent/train/restarts.py",
        "    if failure.cause is Cause.PREEMPTED:\n        # Machines",
        "    if False:\n        # Machines",
        "not replaced",
        needs="machines are preempted at one step",
    ),
    _one(
        "a preemption costs one of restarts.node",
        "15.1",
        "model/causes.py",
        '        on_terminal="run it again from its newest checkpoint",\n',
        '        restart="node",\n',
        "not replaced",
        needs="machines are preempted at one step",
    ),
    _one(
        "what the nodes have called a lost machine is one though the service calls it preempted",
        "15.1",
        "work_dir/run_directories.py",
        "    if last.cause is Cause.NODE and preempted:\n",
        "    if False:\n",
        "not replaced",
        needs="machines are preempted at one step",
    ),
    _one(
        "a node that was stopped has succeeded if its program exits with 0",
        "15.1",
        "model/report.py",
        "        return self.phase is Phase.DONE and self.exit_code == 0 and not self.stopped\n",
        "        return self.phase is Phase.DONE and self.exit_code == 0\n",
        "not replaced",
        needs="a program exits with 0 as its machine is preempted",
    ),
    _one(
        "nothing is launched again beside a node that was stopped, and whose program exits with 0",
        "15.1",
        "model/report.py",
        "        return self.cause is None and (self.stopped or has_not_succeeded)\n",
        "        return self.cause is None and has_not_succeeded\n",
        "not replaced",
        needs="a program exits with 0 as its machine is preempted",
    ),
    _one(
        "a gang shrinks below its minimum",
        "15.1",
        "gangs/lost_nodes.py",
        "    if len(present) < (record.min_nodes or record.ref.nodes) or _is_ignored(record):\n",
        "    if not present or _is_ignored(record):\n",
        "members",
        needs="fewer nodes are left than the least",
    ),
    _one(
        "a gang in which no machine replaces a lost one ends, though enough are left",
        "15.1",
        "gangs/lost_nodes.py",
        "    if not (absent and record.ref.replaces and status.reports_readable and _go_on(status)):\n",
        "    if True:\n",
        "not replaced",
        needs="fewer nodes go on, and others come later",
    ),
    _one(
        "a gang of fewer nodes asks for no more",
        "15.1",
        "gangs/lost_nodes.py",
        "    missing = [node for node in absent if node.state.terminal]\n",
        "    missing = []\n",
        "not grown",
        needs="fewer nodes go on, and others come later",
    ),
    _one(
        "a node that comes late is never admitted",
        "15.1",
        "agent/stages/admission.py",
        "        elif self._may_launch() and not",
        "        elif False and not",
        "not grown",
        needs="fewer nodes go on, and others come later",
    ),
    _one(
        "a launch goes on from a shared folder though not all nodes have found the same there",
        "15.1",
        "agent/stages/agreement.py",
        "{rank: _answer_in(report, offer, launch) for rank, report in zip(waiting, reports)}",
        "dict.fromkeys(waiting, offer.digest)",
        "agreed",
        needs="saves in a shared folder are not sent",
    ),
    _one(
        "a launch goes on from a shared folder that may be a later attempt's",
        "15.1",
        "agent/stages/checkpoint_folder.py",
        "        if not self._is_known_to_be_latest():\n            return False\n        # The other",
        "        # The other",
        "agreed",
        needs="whose a shared folder is cannot be asked",
    ),
    _one(
        "what a launch has left is numbered as what the next one saves",
        "15.1",
        "agent/save/uploads.py",
        "            before=self._handover.before,\n",
        "",
        "order|retention|wholeness|not launched again",
        needs="saves in a shared folder are not sent",
    ),
    _one(
        "what was left to a launch that does not begin is gone on from in a later one",
        "15.1",
        "agent/stages/results.py",
        "        if not self.checkpoints.owes_before(launch):\n",
        "        if True:\n",
        "not replaced|launches|restore",
        needs="a machine is lost while saves in a shared folder are not sent",
    ),
    _one(
        "a refusal in the place of a lost machine is forgotten",
        "15.2",
        "operators/outcomes.py",
        "            if refused := refused_in_place(watch.record, watch.status):\n",
        "            if refused := None:\n",
        "candidates",
        needs="another machine is refused, and there are candidates",
    ),
    _one(
        "a refused request in the place of a lost machine is forgotten",
        "15.2",
        "gangs/replacements.py",
        "        watch.record = replace(watch.record, refused=refused)\n",
        "",
        "candidates",
        needs="another request is refused, and there are candidates",
    ),
    _one(
        "that no machine has come in the place of a lost one is forgotten",
        "15.2",
        "gangs/diagnoses.py",
        "    return (Cause.CAPACITY, ending.message) if vain and ending and IN_VAIN in ending.message else None\n",
        "    return None\n",
        "candidates",
        needs="no other machine comes, and there are candidates",
    ),
    _one(
        "a silent node ends its gang",
        "15.1",
        "gangs/lost_nodes.py",
        "    return record.lost_timeout < silent <= record.lost_timeout + record.replace_timeout\n",
        "    return False\n",
        "not replaced",
        needs="only a node is silent",
    ),
    _one(
        "a state that nobody knows excuses silence",
        "15.1",
        "gangs/durations.py",
        "MAY_BEAT = (NodeState.RUNNING, NodeState.ENDING, NodeState.UNKNOWN)\n",
        "MAY_BEAT = (NodeState.RUNNING, NodeState.ENDING)\n",
        "not replaced|guard",
        needs="a node is silent in a state that nobody knows",
    ),
    _one(
        "a node writes over a request to end that it cannot read",
        "15.1",
        "agent/join/heartbeat.py",
        "            known = self._own(present_stop_request(self.store)) if exists else None\n",
        "            known = self._own(read_stop_request(self.store)[0]) if exists else None\n",
        "stop request",
        needs="a request to end cannot be read",
    ),
    _one(
        "a launch that hangs before its second step may talk for ever",
        "15.4",
        "agent/monitor/step_clock.py",
        "        self._output_counts_until = self._began_at + self._output_counts_for\n",
        "        self._output_counts_until = math.inf\n",
        "guard: .*it hangs",
        needs="a later launch hangs, and talks",
    ),
    _one(
        "a run whose last report was lost need not show a training",
        "3",
        "gangs/verdict.py",
        "    if not reports or _shows_training(record, status, reports, unsaid):\n",
        "    if unsaid or not reports or _shows_training(record, status, reports, unsaid):\n",
        "success: .*showed nothing",
        needs="a last report is lost, and nothing was shown",
    ),
    _one(
        "a node that prepares for one launch does not restore for the next",
        "15.1",
        "agent/join/heartbeat.py",
        '            self._is_preparing = len(self._changes.get("restarts", self._report.restarts)) != launch\n',
        "            self._is_preparing = False\n",
        "not replaced|launches|restore",
        needs="a machine is lost amid a restore",
    ),
    _one(
        "what was refused while no worker lived is asked for again",
        "9",
        "gangs/adoption.py",
        "        self._note_refusal(ref, known, status)\n",
        "",
        "candidates",
        needs="a refused shape, and a dead worker",
    ),
    _one(
        "nodes compare only the step that they restored",
        "3",
        "agent/stages/checkpoint_folder.py",
        "content = content_of(found, how.brought)",
        'content = f"step {found.step}"',
        "restore",
        needs="two checkpoints of one step",
    ),
    _one(
        "a store that is down during a fetch is not retried",
        "4",
        "agent/store_retries.py",
        "    if isinstance(error, (StorageError, BackendError)) and error.retryable:",
        "    if False:",
        "gave up|healthy gang ended|tried again",
        needs="no store at the start",
    ),
    _one(
        "a job that is listed and answers 404 is not retried",
        "4",
        f"{_OCI}gangs.py",
        """        status_code=404,
        retryable=True,""",
        """        status_code=400,""",
        "gave up|healthy gang ended|left running|two gangs",
        needs="a job that is listed and not found",
    ),
    _some(
        "a failed submission relies on the list of runs",
        "5",
        f"{_OCI}gangs.py",
        (
            (
                "with_runs(ref, existing | submission.abandoned()), stop)\n            if alive",
                "with_runs(ref, {}), stop)\n            if alive",
            ),
            ("self._is_removed(left)):", "self._is_removed(left) or True):"),
        ),
        "left running|two gangs|slow cancel",
        needs="a gang created in part",
    ),
    _one(
        "an attempt is closed while a run of it that no list shows may live",
        "5",
        f"{_OCI}gangs.py",
        "        if not (alive or left.complete or self._is_removed(left)):",
        "        if not (alive or left.complete or self._is_removed(left) or True):",
        "two gangs",
        needs="refusals amid the creation, and a machine comes late",
    ),
    _one(
        "a node of one run that has succeeded counts as cancelled",
        "5",
        "gangs/adoption.py",
        "        if NodeState.ENDING in states and not self._ends_well(ref, nodes, plan.expects):\n",
        "        if NodeState.ENDING in states:\n",
        "healthy gang ended",
        needs="a worker dies as its nodes end one after another",
    ),
    _one(
        "an unusual state counts as the end",
        "4",
        f"{_OCI}answers.py",
        '    "NEEDS_ATTENTION": NodeState.RUNNING,',
        '    "NEEDS_ATTENTION": NodeState.FAILED,',
        "healthy gang ended|gave up|lost model",
        needs="an odd state",
    ),
    _one(
        "a refused shape is requested again",
        "9",
        "gangs/candidates.py",
        "        if refusal is None or not refusal.holds(nodes, now):",
        "        if True:",
        "candidates",
        needs="refused shapes",
    ),
    _one(
        "the budget of node-hours is ignored",
        "9",
        "model/budget.py",
        "        if not by_hours and not by_cost:",
        "        if True:",
        "guard.*node-seconds",
    ),
    _one(
        "a program's error is retried",
        "4",
        "model/causes.py",
        "    Cause.USER: Meaning(\n        retry=Retry.NEVER,",
        "    Cause.USER: Meaning(\n        retry=Retry.AT_ONCE,",
        "tried again",
    ),
    _one(
        "a report shows secrets that the program printed",
        "8",
        "agent/stages/context.py",
        "        return masked_text(text, self.secrets)",
        "        return text",
        "secret",
    ),
    _one(
        "a line of the log is shown twice",
        "6",
        "gangs/log_follower.py",
        " and line.id not in seen:",
        ":",
        "log.*again",
        needs="a log",
    ),
    _one(
        "late lines of the log are not searched for",
        "6",
        "gangs/log_follower.py",
        "            since = [max(newest, self._looked_at) - self.OVERLAP for newest in self._newest]\n        else:",
        "            since = [max(newest, self._looked_at) for newest in self._newest]\n        else:",
        "log.*never",
        needs="a log of minutes",
    ),
    _one(
        "a launch waits for the upload of a whole checkpoint",
        "17",
        "agent/stages/checkpoint_folder.py",
        "        if not isinstance(uploader, CheckpointUploader):\n            return False\n        launch, is_alone",
        "        if True:\n            return False\n        launch, is_alone",
        "disk: .*after the end",
        needs="a checkpoint stays on the disk",
    ),
    _one(
        "what a launch has left comes after what the next one saves",
        "17",
        "agent/save/carried.py",
        "replace(whole, begun=number)",
        "replace(whole, begun=number + 100)",
        "order|retention",
        needs="a checkpoint stays on the disk",
    ),
    _one(
        "what a launch has left is forgotten",
        "17",
        "agent/save/uploads.py",
        "            for whole in self._taken_over.waiting:\n",
        "            for whole in ():\n",
        "disk: .*never stored|order",
        needs="a checkpoint stays on the disk for two failures",
    ),
    _one(
        "what was left to one launch is left to the one after too",
        "17",
        "agent/save/handover.py",
        "        elif any(map(self.owes, rest)):\n",
        "        elif False:\n",
        "disk: .*not stored yet",
        needs="a checkpoint stays on the disk for two failures",
    ),
    _one(
        "a launch goes on from a disk on which something beside its checkpoint is half",
        "17",
        "agent/save/carried.py",
        " if all(map(_is_in_place, newest.values())) else None",
        "",
        "wholeness",
        needs="a checkpoint stays on the disk, and one beside it is half",
    ),
    _one(
        "a try ends a gang that a later one has claimed",
        "18",
        "backends/claims.py",
        "    if holder <= try_number:\n",
        "    if True:\n",
        "owner",
        needs="a worker is taken for dead",
    ),
    _one(
        "a beat waits a minute for a store that does not answer",
        "18",
        "agent/join/heartbeat.py",
        "replace(access, max_attempts=1, read_timeout=ANSWER_LIMIT)",
        "access",
        "healthy gang ended",
        needs="a store never answers a node",
    ),
    _one(
        "a cancel waits for the answer whose its gang is",
        "18",
        "backends/claims.py",
        "        return claims.result() if claims.is_made(within) else 0\n",
        "        return claims.result()\n",
        "slow cancel",
        needs="a store never answers a worker that is killed",
    ),
    _one(
        "a cancel is sent once its stop request is written",
        "18",
        "backends/cancels.py",
        "    answer, stop_requested = both(lambda: end(ref), lambda: directories.request_end(ref, ending))\n",
        "    stop_requested = directories.request_end(ref, ending)\n    answer = end(ref)\n",
        "slow cancel",
        needs="a store never answers a worker that is killed",
    ),
    _one(
        "one list that lacks a report fails a finished training",
        "4",
        "work_dir/stored.py",
        "is_certain = self._is_missed_again(_subject_of_report(ref))",
        "is_certain = True",
        "lost model",
        needs="stale reports",
    ),
)


def named(name: str) -> Mutant:
    return next(each for each in MUTANTS if each.name == name)


def stale(package: Path) -> list[str]:
    """Return the changes whose lines the package has no more, or more than once."""
    return [
        f"{mutant.name}: {module}: {old.strip()[:60]}"
        for mutant in MUTANTS
        for module, changes in mutant.changes.items()
        for old, _ in changes
        if (package / module).read_text().count(old) != 1
    ]


def mutate(package: Path) -> None:
    """Let the modules that are imported from here on have the defect that the environment names, if any."""
    name = os.environ.get(VARIABLE)
    if not name:
        return
    mutant = named(name)
    changes = {(package / module).resolve(): changes for module, changes in mutant.changes.items()}
    loader: Any = importlib.machinery.SourceFileLoader
    whole = loader.get_code

    def get_code(self: Any, fullname: str) -> Any:
        path = Path(self.get_filename(fullname))
        if path.resolve() not in changes:
            return whole(self, fullname)
        text = path.read_text()
        for old, new in changes[path.resolve()]:
            if old not in text:
                raise SystemExit(f"mutant {name!r}: {path} has no such lines any more: {old.strip()[:80]}")
            text = text.replace(old, new)
        return compile(text, str(path), "exec")

    loader.get_code = get_code


if __name__ == "__main__":
    sys.exit("\n".join(stale(Path("airflow_provider_ocidist"))) or 0)
