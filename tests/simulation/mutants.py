"""Mutants: the defects of issue 11, put back one at a time; the simulation has to find each."""

from __future__ import annotations

import importlib.machinery
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "OCIDIST_SIMULATION_MUTANT"


@dataclass(frozen=True)
class Mutant:
    """Some lines of one module, as a defect would have them."""

    name: str
    point: str
    """Of the issue."""
    module: str
    changes: tuple[tuple[str, str], ...]
    rules: str
    """Regular expression: which rule, and which words, show that it was found."""


def _one(name: str, point: str, module: str, old: str, new: str, rules: str) -> Mutant:
    return Mutant(name, point, module, ((old, new),), rules)


_OCI = "backends/oci_data_science/"
MUTANTS = (
    _one(
        "after an error every checkpoint counts as whole",
        "1a",
        "agent/save/proofs.py",
        "frozenset({Moment.EXITED})),",
        "frozenset({Moment.EXITED, Moment.CUT_OFF})),",
        "wholeness",
    ),
    Mutant(
        "an unchanged checkpoint counts as whole",
        "1b",
        "agent/save/proofs.py",
        (
            (
                "    return Unproved(_why_not(found), mixed=bool(found.left_over))",
                '    return Proof("it came to rest")',
            ),
            ("    if found.open_for_writing:", "    if False:"),
            ("    if found.format.says is FormatResult.BROKEN and not", "    if False and not"),
        ),
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
    _one(
        "the step in the name decides which is newest",
        "2",
        "storage/listing.py",
        "key=lambda item: item.manifest.order,",
        "key=lambda item: int('0' + item.folder[-1:] if item.folder[-1:].isdigit() else '0'),",
        "order|retention",
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
    ),
    Mutant(
        "one refusal ends the wait",
        "4",
        "model/evidence.py",
        (
            ("REFUSALS_NEEDED = 5", "REFUSALS_NEEDED = 1"),
            ("REFUSED_FOR = 900.0", "REFUSED_FOR = 0.0"),
            (" and self.renewed", ""),
        ),
        "gave up|healthy gang ended|left running",
    ),
    Mutant(
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
        "        if not self._may_pass(error) or self.left <= 0:",
        "        if True:",
        "lost model|healthy gang ended",
    ),
    _one(
        "lost_timeout also holds for a node that saves",
        "4",
        "gangs/decisions.py",
        "        if not _is_saving(node):",
        "        if True:",
        "healthy gang ended",
    ),
    _one(
        "a task gives up and leaves its gang running",
        "4",
        "gangs/kills.py",
        '    message = masked_text(f"its task has given up:',
        '    return None\n    message = masked_text(f"its task has given up:',
        "left running|gave up",
    ),
    _one(
        "a lost last report counts as a failure",
        "3",
        "gangs/verdict.py",
        "    ReportOutcome.NOT_DONE: NodeEnd.UNSAID,",
        "    ReportOutcome.NOT_DONE: NodeEnd.FAILED,",
        "lost model",
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
        f"{_OCI}cancels.py",
        "        error = answer.refused or (None if stop_requested else answer.unseen)",
        "        error = answer.refused",
        "slow cancel|left running",
    ),
    _one(
        "no attempt writes its fence",
        "2",
        "storage/fences.py",
        "    for _ in range(_TRIES):",
        "    return\n    for _ in range(_TRIES):",
        "fence|retention",
    ),
    _one(
        "old parts of another node count as new",
        "1b",
        "agent/save/own_files.py",
        "        return {name for name in of_one_process if before.get(name) == now[name]}",
        "        return set()",
        "wholeness|lost model|healthy gang ended",
    ),
    Mutant(
        "the checkpoint that is proved last counts as newest",
        "2",
        "agent/save/uploads.py",
        (
            ("        if begun < number or item.signature.modified_ns < written_ns:", "        if False:"),
            ("self._first_sequence + whole.begun - 1", "self._first_sequence + self._published"),
        ),
        "order",
    ),
    _one(
        "a clear with fewer retries counts as a retry",
        "5",
        "model/attempts.py",
        "    return max(now.max_tries, latest.key.generation + 1)",
        "    return latest.key.generation",
        "success.*before the clear|two gangs",
    ),
    Mutant(
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
        "            alive = self._clean_up(plan, with_runs(ref, existing | submission.abandoned()), stop)",
        "            alive = {}",
        "left running|two gangs|slow cancel",
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
    _one(
        "the clocks of two machines are compared",
        "6",
        "gangs/decisions.py",
        "        silent = durations.seconds(record, durations.node(node.rank))",
        "        silent = now - node.report.heartbeat_at if node.report else 0.0",
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
        "            if now > deadline:\n                raise _still_alive(live, within)",
        "            if False:\n                raise _still_alive(live, within)",
        "endless",
    ),
    _one(
        "a node that fetches is waited for without limit",
        "6",
        "agent/join/topology.py",
        "        if now > deadline and gathering.overdue(timeout):",
        "        if now > deadline and gathering.overdue(timeout) and not gathering.fetching:",
        "endless|guard.*fetching",
    ),
    _one(
        "a kill does not cancel the gang",
        "7",
        "gangs/kills.py",
        "        self._wanted = True\n",
        "",
        "slow cancel|left running",
    ),
    Mutant(
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
    ),
    _one(
        "cancels wait behind all other calls",
        "7",
        "triggers/threads.py",
        "        with (_ending_threads if ends_a_gang else _threads).held() as pool:",
        "        with _threads.held() as pool:",
        "slow cancel|left running",
    ),
    _one(
        "the trigger does not end its gang",
        "7",
        "triggers/training.py",
        "    async def _end_gang_at_last(self) -> None:\n",
        "    async def _end_gang_at_last(self) -> None:\n        return\n",
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
    ),
    _one(
        "a node restores before the others have saved",
        "15.1",
        "agent/join/topology.py",
        "            if not behind:\n",
        "            if True:\n",
        "restore|order|healthy gang ended|not launched again",
    ),
    _one(
        "unproved checkpoints of a launch are kept",
        "15.1",
        "agent/save/uploads.py",
        "        lasts = restarts or Path(checkpoints.path).is_absolute()",
        "        lasts = Path(checkpoints.path).is_absolute()",
        "wholeness|restore|order",
    ),
    _one(
        "a node keeps its own parts for the next launch",
        "15.1",
        "agent/stages/checkpoint_folder.py",
        "        if self._is_own(others):",
        "        if False:",
        "wholeness|restore|order",
    ),
    _one(
        "a lost machine costs a new gang",
        "15.1",
        "gangs/decisions.py",
        "    return Replace(tuple(failures)) if _may_replace(record, status, failures) else None",
        "    return None",
        "not replaced",
    ),
    _one(
        "the budget of lost machines is ignored",
        "15.1",
        "gangs/decisions.py",
        "    ended = [node.report for node in status.nodes if node.report and node.state.terminal]\n",
        "    return True\n    ended = []\n",
        "budget|crash loop",
    ),
    Mutant(
        "a silent machine is replaced while it may live",
        "15.1",
        "gangs/decisions.py",
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
                    "def _silent_for(record, node):\n    return durations.seconds(record, durations.node(node.rank))\n"
                    "\n\ndef _is_lost(node:"
                ),
            ),
        ),
        "two nodes of one rank",
    ),
    _one(
        "a machine in the place of a lost one is asked for without an idempotency token",
        "15.1",
        f"{_OCI}replacements.py",
        "opc_retry_token=token",
        "opc_retry_token=None",
        "two nodes of one rank|budget",
    ),
    _one(
        "what was refused while no worker lived is asked for again",
        "9",
        "gangs/submission.py",
        "        self._note_refusal(ref, known, status)\n",
        "",
        "candidates",
    ),
    _one(
        "nodes compare only the step that they restored",
        "3",
        "agent/stages/checkpoint_folder.py",
        "starts_from=found.digest or found.uri",
        'starts_from=f"step {found.step}"',
        "restore",
    ),
    _one(
        "a store that is down during a fetch is not retried",
        "4",
        "agent/store_retries.py",
        "    if isinstance(error, (StorageError, BackendError)) and error.retryable:",
        "    if False:",
        "gave up|healthy gang ended|tried again",
    ),
    _one(
        "a job that is listed and answers 404 is not retried",
        "4",
        f"{_OCI}gangs.py",
        """                status_code=404,
                retryable=True,""",
        """                status_code=400,""",
        "gave up|healthy gang ended|left running|two gangs",
    ),
    _one(
        "a failed submission relies on the list of runs",
        "5",
        f"{_OCI}gangs.py",
        "with_runs(ref, existing | submission.abandoned()), stop)\n            if alive",
        "with_runs(ref, {}), stop)\n            if alive",
        "left running|two gangs|slow cancel",
    ),
    _one(
        "an unusual state counts as the end",
        "4",
        f"{_OCI}answers.py",
        '    "NEEDS_ATTENTION": NodeState.RUNNING,',
        '    "NEEDS_ATTENTION": NodeState.FAILED,',
        "healthy gang ended|gave up|lost model",
    ),
    _one(
        "a refused shape is requested again",
        "9",
        "gangs/candidates.py",
        "        if refusal is None or not refusal.holds(nodes, now):",
        "        if True:",
        "candidates",
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
    ),
    _one(
        "late lines of the log are not searched for",
        "6",
        "gangs/log_follower.py",
        "            since = [max(newest, self._looked_at) - self.OVERLAP for newest in self._newest]\n        else:",
        "            since = [max(newest, self._looked_at) for newest in self._newest]\n        else:",
        "log.*never",
    ),
)


def mutate(package: Path) -> None:
    """Let the modules that are imported from here on have the defect that the environment names, if any."""
    name = os.environ.get(VARIABLE)
    if not name:
        return
    mutant = next(each for each in MUTANTS if each.name == name)
    target = (package / mutant.module).resolve()
    loader: Any = importlib.machinery.SourceFileLoader
    whole = loader.get_code

    def get_code(self: Any, fullname: str) -> Any:
        path = Path(self.get_filename(fullname))
        if path.resolve() != target:
            return whole(self, fullname)
        text = path.read_text()
        for old, new in mutant.changes:
            if old not in text:
                raise SystemExit(
                    f"mutant {name!r}: {mutant.module} has no such lines any more: {old.strip()[:80]}"
                )
            text = text.replace(old, new)
        return compile(text, str(path), "exec")

    loader.get_code = get_code


def run_all(seeds: int, seed: str, only: str, processes: int) -> int:
    """Look for each mutant in its own process, and print the table; return 1 if one was not found."""
    missed = 0
    print("| defect | point | found after | by |\n| --- | --- | --- | --- |", flush=True)
    for mutant in MUTANTS:
        if not re.search(only, mutant.name):
            continue
        found, last = _look_for(mutant, seeds, seed, processes)
        missed += found is None
        after, by = found or ("NOT FOUND", last)
        print(f"| {mutant.name} | {mutant.point} | {after} | {by} |", flush=True)
    print(f"{missed} mutants were not found" if missed else "every mutant was found")
    return 1 if missed else 0


def _look_for(mutant: Mutant, seeds: int, seed: str, processes: int) -> tuple[tuple[str, str] | None, str]:
    """Return after how many schedules a mutant was found, and by what; and the last line that was printed."""
    campaign = ["--seeds", str(seeds), "--seed", seed, "--processes", str(processes), "--no-shrink"]
    command = [sys.executable, "-u", "-m", "tests.simulation", *campaign]
    environment = {**os.environ, VARIABLE: mutant.name}
    last = ""
    with subprocess.Popen(
        [*command, "--until", mutant.rules],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = line.strip()[:120] or last
            match = re.fullmatch(r"FOUND after (\d+) schedules: (.*) \(seed (\S+)\)\n", line)
            if match and not _is_violated_anyway(match[3], mutant.rules):
                process.terminate()
                return (match[1], f"{match[2]} (seed {match[3]})"), last
    return None, last


def _is_violated_anyway(seed: str, rules: str) -> bool:
    """Whether the code as it is violates this rule too: then the mutant has not been found."""
    from tests.simulation.schedule import run

    return any(re.search(rules, f"{rule}: {text}") for rule, _, text in run(seed).violations)
