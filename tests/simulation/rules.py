"""Rules: what must hold in every schedule, checked at each step, against what really happened."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.airflow_model import BUDGETS, LOG, Airflow
from tests.simulation.faults import Faults
from tests.simulation.machines import Machine, Machines, shape_of
from tests.simulation.program import (
    SECRET,
    STATES_NO_STEP,
    Fault,
    Gang,
    Save,
    Truth,
    is_looked_for,
    without_stale_states,
)
from tests.simulation.runtime import Process, World
from tests.simulation.scenario import SHAPES, Scenario
from tests.simulation.seams import SHORT_ENDING
from tests.simulation.service import TERMINAL, DataScience, Resource
from tests.simulation.store import Bucket, Stored

MANIFEST = "manifest.json"
SECRET_BYTES = SECRET.encode()
REFUSED_FOR = 600.0
"""Seconds for which a shape that was refused is not asked for again, while there is another."""
OVER_BUDGET = 60.0
"""Seconds of each node beyond its budget: it looks at each beat, then saves, and its end has to be seen."""
BEFORE_AGENT = 20.0
"""Seconds of each node that its agent does not see, and before its budget in which its end may begin."""
BY_CHANCE = {"SIGKILL": 2}
"""How many launches a fault may end at one step, if not one: a kill shows nothing of the program (docs/failures)."""
LOOKS_LIKE = {"SIGKILL": "OutOfMemory"}
"""What a node takes for the same as another fault: the kernel kills for lack of memory."""
LOG_LATE = 20.0
"""Seconds before the end of a task of which not every line need be found any more."""
LIVE = ("ACCEPTED", "IN_PROGRESS", "NEEDS_ATTENTION", "CANCELING")
CANCEL_LIMIT = 60.0
"""Seconds after a kill within which the gang has to be asked to end."""
STORED_WITHIN = 10.0
"""Seconds in which a whole save is stored once the program has begun the next one, while nothing hinders that."""
ON_THE_DISK_WITHIN = 40.0
"""Seconds from a failure in which the only node of a gang is launched again from what lies on its disk."""
AT_REST = 2.5
"""Seconds before a failure by which a save has to be whole, so that it is certainly seen to be."""
SENT_IN_TIME = 20.0
"""Seconds before the end of a node's patience by which the store has to take checkpoints again."""
CLAIMED_BEFORE = 5.0
"""Seconds before the end of a gang by which a later try has to have claimed it."""
STILL_TRIED = 40.0
"""Seconds since a refused cancel within which another has to follow: who is refused again and again has no limit."""
GOES_ON_FOR = 25.0
"""Seconds of that in which nothing may be reached: the pauses between two tries grow to half a minute."""
MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)
"""What code raises that does not fit what it meets; nothing outside does that."""
LOOK = 10.0
"""Seconds that a look takes, and between two of them."""
PEERS_SILENT = 14.0
"""Seconds of silence after which the nodes ask each other for signs of life."""
GUARD_SLACK = 90.0
"""Seconds that a guard may take beyond its limit: it looks at intervals, and leaves time for stacks."""
GUARD_INTERVAL = 20.0
LATE_ANSWER = 60.0
"""Seconds that a request may be on its way: what was checked before it may have changed since."""
PEER_STUCK = 28.0
"""Seconds that one node alone cannot write for, after which the others give it up."""
REFUSALS = (401, 403, 404)
SPENT = "InvalidatedRetryToken"
REFUSALS_BELIEVED = 4
"""Refusals amid the creation of a gang from which on they may be believed."""
BELIEVED_AFTER = 880.0
"""Seconds of refusals after which a task may give up."""
REFUSES_ALL = ("service.", "service.list_", "service.get_")
"""Calls that are refused for so long: what is refused alone is asked for otherwise."""
LIST_PAGES = 8
"""Pages of the compartment's jobs that one look for a task's gangs may read."""
LOOK_AGAIN_AFTER = 9.0
"""Seconds after the last page, from which on another belongs to the next look: what was refused is asked again."""


class Rules:
    """Watches everything, and notes what breaks a rule."""

    def __init__(self, world: World, scenario: Scenario, faults: Faults) -> None:
        self.world, self.scenario, self.faults = world, scenario, faults
        self.violations: list[tuple[str, float, str]] = []
        self.manifests: dict[str, tuple[Save | None, float]] = {}
        """By the name of the folder: which save it is, and since when it is there."""
        self.first_published: dict[tuple[str, int], float] = {}
        """When each gang published its first checkpoint, by place."""
        self.published: set[Save] = set()
        """Those of which every byte is in the store."""
        self.leases: dict[str, float] = {}
        self.reports: dict[str, float] = {}
        self.phases: dict[str, str] = {}
        """By report: in which phase its node is, as it says itself."""
        self.incarnations: dict[str, int] = {}
        """By report: how many nodes of its rank were lost before the one that wrote it last."""
        self.counting: set[int] = set()
        """Gangs of which a node has reported a step."""
        self._lost_ranks: set[int] = set()
        self._was_refused = False
        """Whether the service has refused a request for a machine in the place of a lost one."""
        self.losses: list[tuple[Gang, bool]] = []
        """Gangs that have lost a machine, and whether a node had reported a step by then."""
        self.silences: dict[str, tuple[float, float]] = {}
        """By report: when a silence began that was longer than the nodes bear, and when it was over."""
        self.end_asked: dict[int, float] = {}
        """By gang: when it was first asked to end."""
        self.why_end_asked: dict[int, str] = {}
        self.refusals: Counter[str] = Counter()
        """By worker: requests that were refused since the service has accepted the first job of its gang."""
        self.cancel_refused: dict[str, float] = {}
        """By run: when a cancel was last refused."""
        self.creation_refused: dict[tuple[str, str], float] = {}
        """By worker and name of a run: when its creation was last refused."""
        self.hung: set[tuple[int, int]] = set()
        """Gangs that were said to hang, and in which launch."""
        self.unguarded: set[int] = set()
        self.begun: set[tuple[int, int]] = set()
        """Gangs and their launches that have begun on any node."""
        self.asked: dict[str, bytes] = {}
        """By run directory: the request to end that is there."""
        self.changes: Counter[int] = Counter()
        """By gang: launches that were asked for so that fewer nodes, or more, take part."""
        self.agreed: set[str] = set()
        """Digests of what nodes have agreed to go on from."""
        self.given_up: set[int] = set()
        """Gangs of which an agent has ended itself."""
        self.list_pages: dict[str, tuple[float, int]] = {}
        """By worker: when it last read a page, and how many it had read by then in that look."""
        self.announced: set[str] = set()
        """The jobs of gangs whose submission was complete."""
        self.creators: dict[str, Process] = {}
        """By job: the process that created its first run."""
        self.shown: Counter[int] = Counter()
        """By number: how often a line of the nodes' log was shown."""
        self.refused: dict[str, float] = {}
        """By shape: when the service last had no machine of it."""
        self.went_on: dict[tuple[int, int], Save] = {}
        """By gang and launch: from which save its only node has gone on."""
        self._handed_on: tuple[int, int] | None = None
        self._clears_at_hand_on = 0

    def attach(
        self, bucket: Bucket, service: DataScience, machines: Machines, airflow: Airflow, truth: Truth
    ) -> None:
        self.bucket, self.service, self.machines, self.airflow, self.truth = (
            bucket,
            service,
            machines,
            airflow,
            truth,
        )
        bucket.on_write.append(self._wrote)
        bucket.on_delete.append(self._deleted)
        service.on_create.append(self._created)
        service.on_cancel.append(self._canceled)
        airflow.on_over.append(self._task_over)
        airflow.on_failed_try.append(self._try_failed)
        airflow.on_kill.append(self._killed)
        airflow.on_push = [self._pushed]
        airflow.on_retry.append(self._tried_again)
        service.on_change.append(self._changed)
        service.on_refusal.append(self._refused_in_place)
        LOG.listens = self._said
        Process(self.world, "rule").spawn(self._watch_guards, delay=GUARD_INTERVAL)

    def violate(self, rule: str, what: str) -> None:
        if not any(known == rule and text == what for known, _, text in self.violations):
            self.world.note("RULE", "%s: %s", rule, what)
            self.violations.append((rule, self.world.now, what))

    # what people read

    def _said(self, who: str, text: str) -> None:
        if SECRET in text:
            self.violate("secret", f"the log of {who} shows a secret")
        for number in _LINE.findall(text):
            self.shown[int(number)] += 1

    def _check_log(self) -> None:
        """Each line of the nodes once, and all of them, where nothing has kept the task from reading."""
        scenario, over = self.scenario, self.airflow.ended_at
        if not scenario.logs or scenario.windows or scenario.rates or scenario.events or over is None:
            return
        if again := [number for number, times in self.shown.items() if times > 1]:
            self.violate("log", f"{len(again)} lines were shown again: {self.service.lines[again[0]].text}")
        # What can be found after the end of its own gang only is not asked for any more (q1.1620).
        lost = [
            line
            for line in self.service.lines
            if line.found_at < min(over - LOG_LATE, self.service.runs[line.run_id].finished or over)
            and line.number not in self.shown
        ]
        if lost:
            self.violate("log", f"{len(lost)} lines were never shown: {lost[0].text} of {lost[0].at:.0f} s")

    # the store

    def _wrote(self, name: str, stored: Stored) -> None:
        folder, _, file = name.rpartition("/")
        if file.endswith(".json") and SECRET_BYTES in stored.data:
            self.violate("secret", f"{file} holds a secret")
        if file == MANIFEST:
            self._published(folder, stored)
        elif file == "lease.json":
            self.leases[folder] = self.world.now
        elif file == "stop.json":
            self._check_cause(folder, stored)
            if (gang := self._gang_of(folder)) is not None:
                self._check_request(folder, stored)
                # What both tries see of a lost node they ask for alike, and it is done once (s22a.1849).
                if not _ends_launch(stored):
                    self._check_owner(gang)
                how = f"stop request by {stored.writer}: {stored.data[:200].decode(errors='replace')}"
                if (change := _change_of_members(stored)) is not None:
                    self._members_change(gang, change, how)
                else:
                    (self._launch_ended if _ends_launch(stored) else self._end_asked)(gang, how)
        elif folder.endswith("/nodes"):
            self._reported(name, folder, stored)

    def _reported(self, name: str, folder: str, stored: Stored) -> None:
        """A node has written its report."""
        if self.world.now - self.reports.get(name, self.world.now) > PEERS_SILENT:
            self.silences[name] = self.reports[name], self.world.now
        self.reports[name] = self.world.now
        found = _INCARNATION.search(stored.data)
        incarnation = int(found[1]) if found else 0
        if incarnation < self.incarnations.setdefault(name, incarnation):
            self.violate("lost node", f"{name} is that of a lost node, and another has its place")
        self.incarnations[name] = incarnation
        if _CHOSEN.search(stored.data):
            self._check_agreed(folder, _content(stored))
        if phase := _PHASE.search(stored.data):
            self.phases[name] = phase[1].decode()
        if _STEP.search(stored.data) and (counting := self._gang_of(folder.removesuffix("/nodes"))):
            self.counting.add(counting.number)
        self._check_cause(folder.removesuffix("/nodes"), stored)

    def _check_agreed(self, folder: str, main: Mapping[str, Any]) -> None:
        """Nodes launch from what is not stored only if each of them has found it, for this launch."""
        launch, digest = len(main["restarts"]), main["offers"]["digest"]
        if digest in self.agreed:
            return
        self.agreed.add(digest)
        self.faults.kinds["launched from a shared folder"] += 1
        gang = self._gang_of(folder.removesuffix("/nodes"))
        for rank in gang.members if gang else ():
            stored = self.bucket.objects.get(f"{folder}/{rank}.json")
            report = _content(stored) if stored else {}
            is_there = len(report.get("restarts") or ()) == launch and report.get("holds") == digest
            if rank != main["rank"] and (self.machines.cannot_read(rank) or not is_there):
                self.violate(
                    "agreed", f"launch {launch} goes on from a folder in which node {rank} has not found it"
                )

        # It was asked for just before, within the same window.
        if any(
            each.name == "no fence" and each.begin <= self.world.now < each.end
            for each in self.scenario.windows
        ):
            self.violate("agreed", f"launch {launch} goes on from a folder that may be a later attempt's")

    def _published(self, folder: str, stored: Stored) -> None:
        try:
            files = json.loads(stored.data)["files"]
            read = [self.truth.by_hash.get(item["sha256"]) for item in files]
        except (ValueError, KeyError, TypeError):
            return
        found = without_stale_states(entry for entry in read if entry is not None)
        saves = {save for save, _ in found}
        save = max(saves, key=lambda save: save.order, default=None)
        self.manifests[folder] = (save, self.world.now)
        self._check_fence(folder, stored)
        self.world.note("RULE", "manifest %s is of %s", folder, save.label if save else "nothing known")
        names = {name for _, name in found}
        lacking = set(save.files) - names if save else set()
        if gang := self._writer_of(stored):
            gang.moved.append(self.world.now)
        if save is not None and len(saves) == 1 and lacking <= self._lost(save):
            # Every byte of it was written, also where the program was ended before it could say so.
            self.published.add(save)
        else:
            self.violate(
                "wholeness",
                f"{_last(folder)} has a manifest, and is not whole: of {len(saves)} saves, {len(files)} files, "
                f"{sum(entry is None for entry in read)} of them half, lacking {sorted(lacking)}; "
                f"before: {self._before(gang) if gang else 'unknown'}",
            )

    def _check_fence(self, folder: str, stored: Stored) -> None:
        """Who is not the latest attempt publishes nothing any more."""
        place, writer = folder.rpartition("/")[0], self._gang_here()
        if writer is None:
            return
        machine = self.world.current.process.machine
        if machine.comes_back and machine.program and machine.program.launch < machine.gang.launch:
            self.violate("fence", f"{stored.writer} published {_last(folder)}, and another has its place")
        began = self.first_published.setdefault((place, writer), self.world.now)
        for (other_place, other), since in self.first_published.items():
            if other_place == place and other > writer and self.world.now - since > LATE_ANSWER:
                self.violate(
                    "fence",
                    f"{stored.writer} published {_last(folder)} {self.world.now - since:.0f} s after gang {other} had "
                    f"begun to (its own first: at {began:.0f} s)",
                )

    def _before(self, gang: Gang) -> str:
        """Return what has gone wrong with a gang so far, in the words of those who did it."""
        began = min(run.created for run in self.runs_of(gang))
        acts = [what for at, what in self.airflow.kills if at >= began]
        return ", ".join(dict.fromkeys([*(harm.why for harm in gang.harm), *acts])) or "nothing wrong"

    def _writer_of(self, stored: Stored) -> Gang | None:
        return next(
            (machine.gang for machine in self.machines.all if machine.process.name == stored.writer), None
        )

    def _lost(self, save: Save) -> set[str]:
        """Return what a checkpoint does without: the random state of a node that is gone."""
        gang = next(gang for gang in self.machines.gangs.values() if gang.number == save.gang)
        wrote = {rank: save.machines.get(rank) for rank in save.owners.values()}
        gone = {rank for rank, machine in wrote.items() if self._is_gone(gang, rank, machine)}
        return {name for name, rank in save.owners.items() if rank in gone and "rng_state_" in name}

    def _is_gone(self, gang: Gang, rank: int, wrote: Machine | None) -> bool:
        """Whether a node may not deliver its part any more. `wrote`: the machine that has it; None: none has begun to.

        A machine in the place of a lost one has nothing of what that one wrote (1127.3351).
        """
        if gang.number in self.end_asked or gang.exits.get(rank, 0) != 0:
            return True
        machine = self._machine_of(gang, rank)
        is_lost = machine is None or machine.process.dead or machine.is_over or machine.unreachable
        return is_lost or (wrote is not None and wrote is not machine)

    def _machine_of(self, gang: Gang, rank: int) -> Machine | None:
        """Return the newest machine of a rank: those before it were lost, and replaced."""
        of_rank = [each for each in self.machines.all if (each.gang, each.rank) == (gang, rank)]
        return of_rank[-1] if of_rank else None

    def _is_whole(self, save: Save) -> bool:
        return save.complete_at is not None or save in self.published

    def _deleted(self, name: str, stored: Stored) -> None:
        folder, _, file = name.rpartition("/")
        if file == MANIFEST and folder in self.manifests:
            save, _ = self.manifests.pop(folder)
            prefix = folder.rpartition("/")[0]
            others = [
                other
                for place, (other, _) in self.manifests.items()
                if other is not None and place.rpartition("/")[0] == prefix and self._is_whole(other)
            ]
            if save is None or not self._is_whole(save):
                return
            if all(other.order < save.order for other in others):
                self.violate("retention", f"the newest whole checkpoint was deleted: {save.label}")
            elif self._is_last_of_its_name(save, others):
                self.violate("retention", f"what the program goes on from was deleted: {save.label}")
            elif (deleter := self._gang_here()) is not None and any(other.gang > deleter for other in others):
                self.violate(
                    "retention", f"gang {deleter} deleted {save.label}, after a later one has published"
                )
        elif folder in self.manifests:
            self.violate("retention", f"{name} was deleted while its manifest stood")

    def _is_last_of_its_name(self, save: Save, others: Sequence[Save]) -> bool:
        """Whether the program would find no checkpoint of a name that it looks for, or an older one."""
        habits = self.scenario.habits
        alike = [other for other in others if is_looked_for(habits, other.name)]
        return is_looked_for(habits, save.name) and all(other.order < save.order for other in alike)

    def _gang_here(self) -> int | None:
        task = self.world.current
        machine = getattr(task.process, "machine", None) if task else None
        return machine.gang.number if machine else None

    # gangs

    def _changed(self, item: Resource, state: str) -> None:
        is_refused = state == "FAILED" and "capacity" in (item.history[-1][2] or "")
        if is_refused or (state == "CANCELING" and self._has_waited_in_vain(item)):
            self.refused[shape_of(self.service.jobs[item.body["jobId"]])] = self.world.now

    def _refused_in_place(self, job: Resource) -> None:
        self._was_refused = True
        self.refused[shape_of(job)] = self.world.now

    def _has_waited_in_vain(self, run: Resource) -> bool:
        """Whether a machine that was to take the place of a lost one is not there in time."""
        waited = self.world.now - run.created
        is_other = "ocidist-incarnation" in run.tags and run.started is None
        return is_other and waited > self._machine_within(run) - 5.0

    def _check_shape(self, shape: str) -> None:
        """What was refused lately is not asked for while the job has another shape that was not."""
        scenario, now = self.scenario, self.world.now
        befell = {event.what for event in scenario.events} - {"kill_worker"}
        # Who is lost is no refusal, and no other machine in its place is one, if nothing else befalls the training.
        befell -= {"lose"} if scenario.only_loss else set()
        disturbed = scenario.windows or scenario.rates or befell
        # A node that is not there in time is a refusal too.
        if not scenario.candidates or disturbed or scenario.late_node or scenario.stuck_fetching >= 0:
            return
        at = self.refused.get(shape)
        # A refusal counts from when the task has seen it.
        free = [
            other
            for other in SHAPES[: 1 + scenario.candidates]
            if now - self.refused.get(other, -1e9) > REFUSED_FOR + 2 * GUARD_SLACK
        ]
        if at is not None and now - at < REFUSED_FOR - 5.0 and free:
            self.violate(
                "candidates", f"{shape} was asked for again after {now - at:.0f} s, though {free[0]} is free"
            )

    def _created(self, run: Resource) -> None:
        job_id = run.body["jobId"]
        if len([each for each in self.service.runs.values() if each.body["jobId"] == job_id]) == 1:
            self._check_shape(shape_of(self.service.jobs[job_id]))
        if self.world.current is not None:
            self.creators.setdefault(job_id, self.world.current.process)
        self._check_asked_again(run)
        rank = run.tags.get("ocidist-rank")
        if "ocidist-incarnation" in run.tags:
            self._check_replacement(self.machines.gang_of(run))
        for other in self.service.runs.values():
            is_same = (
                other is not run and other.body["jobId"] == job_id and other.tags.get("ocidist-rank") == rank
            )
            if is_same and other.state not in TERMINAL:
                self.violate(
                    "two nodes of one rank", f"a run was created for rank {rank}, whose last is {other.state}"
                )
        for other in self.service.runs.values():
            if other is not run and other.body["jobId"] != job_id and other.state in LIVE:
                self.violate("two gangs", "a run was created while another gang of the task lived")
                return

    def _check_asked_again(self, run: Resource) -> None:
        """A try ends what it has created of a gang once a node of it was refused, before it asks again."""
        asking = self.world.current.process.name if self.world.current else ""
        since = self.creation_refused.get((asking, run.body["displayName"]))
        # A machine in the place of a lost one is asked for until it is there.
        if since is None or "ocidist-incarnation" in run.tags or {"service", "store"} <= self._down(since):
            return
        gang = self.machines.gang_of(run)
        left = [
            other
            for other in self.live_and_untold(gang)
            if other.created < since and self.cancel_refused.get(other.id, -1.0) < since
        ]
        if left:
            self.violate(
                "left running",
                f"{len(left)} runs of gang {gang.number} went on for {self.world.now - since:.0f} s after another was "
                "refused",
            )

    def _canceled(self, run: Resource) -> None:
        """A run is cancelled: its gang with it, or it alone, if it takes no part, or is silent and to be replaced."""
        gang = self.machines.gang_of(run)
        self._check_owner(gang)
        if gang.size < gang.nodes and int(run.tags.get("ocidist-rank", "0")) not in gang.members:
            return
        heard = self.reports.get(
            f"{gang.run_prefix}/nodes/{run.tags.get('ocidist-rank')}.json", self.world.now
        )
        is_silent = self.world.now - heard > self.scenario.lost_timeout - 1.0
        if not (is_silent and self.scenario.restarts[BUDGETS.index("node")]):
            self._end_asked(gang, "cancelled")

    def _check_owner(self, gang: Gang) -> None:
        """No try ends a gang that a later one has claimed, if the store could say so; unless it ends already."""
        if gang.number in self.end_asked:
            return
        asking = self.world.current.process.name if self.world.current else ""
        ending, claim = _TRY.match(asking), self.bucket.objects.get(f"{gang.run_prefix}/claim")
        if ending is None or claim is None or self.world.now - claim.modified < CLAIMED_BEFORE:
            return
        hindered = self.scenario.rates or "store" in self._down(self.world.now - LATE_ANSWER)
        if int(ending[1]) < int(claim.data) and not hindered:
            self.violate(
                "owner", f"{asking} ended gang {gang.number}, which try {int(claim.data)} has claimed"
            )

    def _end_asked(self, gang: Gang, how: str) -> None:
        if gang.number in self.end_asked:
            return
        self.end_asked[gang.number] = self.world.now
        self.why_end_asked[gang.number] = how
        if (reason := self.reason_to_end(gang)) is None:
            self.violate("healthy gang ended", f"gang {gang.number} was well when it was ended ({how[:120]})")
        else:
            self.world.note("RULE", "gang %d rightly asked to end (%s): %s", gang.number, how[:60], reason)

    def _check_request(self, run_prefix: str, stored: Stored) -> None:
        """No node writes over a request to end the run: the first failure explains the rest."""
        known = self.asked.get(run_prefix)
        self.asked[run_prefix] = stored.data
        ended = known is not None and not json.loads(known).get("restarts")
        if ended and stored.writer.startswith("node "):
            self.violate(
                "stop request", f"{stored.writer} wrote over a request to end the run: {known!r}"[:300]
            )

    def _members_change(self, gang: Gang, members: Sequence[int], how: str) -> None:
        """A launch is asked for in which other nodes take part than before: no fewer than may, and all that can."""
        now, before = self.world.now, gang.members
        self.changes[gang.number] += 1
        self._check_size(gang, len(members), f"launch {gang.launch + 1} of gang {gang.number} is asked for")
        for rank in sorted({*before} - {*members}):
            machine = self._machine_of(gang, rank)
            if machine is None or machine.process.dead or machine.is_over or machine.unreachable:
                continue
            is_run = machine.run.state in LIVE and machine.run.cancel_asked is None
            if is_run and now - (machine.run.started or now) > LATE_ANSWER:
                self.violate("members", f"node {rank} is left out, though it lives ({how[:120]})")
        for rank in sorted({*members} - {*before}):
            machine = self._machine_of(gang, rank)
            if machine is None or machine.run.started is None:
                self.violate("members", f"node {rank} is to take part, and has not begun ({how[:120]})")

    def _check_size(self, gang: Gang, nodes: int, where: str) -> None:
        if not gang.least <= nodes <= gang.nodes:
            self.violate("members", f"{where} with {nodes} nodes: {gang.least} to {gang.nodes} may train")

    def _rest(self, gang: Gang) -> str | None:
        """Whether nobody is left to train, and what takes no part is ended."""
        well = all(gang.exits.get(rank) == 0 for rank in gang.members)
        return "those that take part are done" if well and gang.size < gang.nodes else None

    def _launch_ended(self, gang: Gang, how: str) -> None:
        """A launch of a gang is ended, for another to follow."""
        if self.reason_to_end(gang) is None:
            self.violate(
                "healthy gang ended", f"launch {gang.launch} of gang {gang.number} was well ({how[:120]})"
            )

    def reason_to_end(self, gang: Gang) -> str | None:
        """Return what may rightly end a gang now; None where it is well."""
        return self._reason_to_give_up(gang) or self._silence(gang) or self._stands_still(gang)

    def _reason_to_give_up(self, gang: Gang) -> str | None:
        """Return why a node may rightly end itself before its program starts; None where all is well.

        That the others have not heard of it is no reason: it may go on as soon as it reaches the store.
        """
        looks = (
            self._harm,
            self._act,
            self._late,
            self._abandoned,
            self._refused,
            self._without_store,
            self._went_apart,
            self._rest,
        )
        return next((reason for look in looks if (reason := look(gang)) is not None), None)

    def _harm(self, gang: Gang) -> str | None:
        if gang.harm:
            return gang.harm[0].why
        if any(code != 0 for code in gang.exits.values()):
            return "a program has failed"
        has_any = self.truth.complete_of(gang.number) or any(gang.restored.values())
        if gang.exits.get(0) == 0 and self.scenario.checkpoints and not has_any:
            return "it ended without a checkpoint"
        runs = self.holders(gang)
        if len(runs) < self._runs_wanted(gang) or gang.job_id not in self.announced:
            return "its submission was not complete"
        if any(run.state in TERMINAL and run.state != "SUCCEEDED" for run in runs):
            return "a run has ended"
        return None

    def _act(self, gang: Gang) -> str | None:
        began = min((run.created for run in self.runs_of(gang)), default=self.world.now)
        if self.airflow.edits and gang.number < len(self.machines.gangs) - 1:
            return "another gang has followed"
        # A gang that was still being created when its try was killed is that try's; one of a later try is not.
        creator = self.creators.get(gang.job_id)
        since = began if creator is None else min(began, creator.born)
        return next((what for at, what in self.airflow.kills if at >= since), None)

    def _refused(self, gang: Gang) -> str | None:
        """Whether the service has refused for as long as it takes to be believed."""
        aged = any(
            window.calls in REFUSES_ALL and self.world.now - window.begin > BELIEVED_AFTER
            for window in self.scenario.windows
            if window.end > self.world.now - 120.0
        )
        return "the service had refused for long" if aged else None

    def _without_store(self, gang: Gang) -> str | None:
        """Whether a node that has to fetch could not for as long as it tries: `limits.join_timeout`."""
        now, runs = self.world.now, self.runs_of(gang)
        began = min((run.started for run in runs if run.started is not None), default=now)
        away = any(
            window.calls.startswith("store.")
            and ("node ".startswith(window.actors) or window.actors.startswith("node "))
            and min(now, window.end) - max(began, window.begin) > self.scenario.join_timeout - 5.0
            for window in self.scenario.windows
        )
        # What has trained and only saves needs nothing that it could not fetch.
        fetches = any(machine.program is None for machine in self.machines.all if machine.gang is gang)
        return "nothing could be fetched for long" if away and fetches else None

    def _went_apart(self, gang: Gang) -> str | None:
        """Whether a checkpoint of an earlier gang was published while its nodes restored theirs, one after another."""
        began = min((run.created for run in self.runs_of(gang)), default=self.world.now)
        late = any(
            save is not None and save.gang < gang.number and since > began
            for save, since in self.manifests.values()
        )
        return "a checkpoint came amid its restores" if late and not gang.trained else None

    def _late(self, gang: Gang) -> str | None:
        now, scenario, runs = self.world.now, self.scenario, self.holders(gang)
        began = min((run.created for run in self.runs_of(gang)), default=now)
        if scenario.max_runtime is not None and now - began > scenario.max_runtime - 5:
            return "its time was over"
        if self._budget_is_used():
            return "its budget was used up"
        if any(run.state == "ACCEPTED" and now - run.created > self._machine_within(run) - 5 for run in runs):
            return "a node did not start in time"
        # A machine in the place of a lost one begins much later than the others.
        first = [run for run in runs if "ocidist-incarnation" not in run.tags]
        started = [run.started for run in first if run.started is not None]
        last = now if len(started) < len(first) else max(started, default=now)
        if started and last - min(started) > scenario.join_timeout - 10:
            return "a node did not come in time"
        return None

    def _machine_within(self, run: Resource) -> float:
        """Return the seconds in which a run has to have a machine."""
        scenario = self.scenario
        limit = scenario.replace_timeout if "ocidist-incarnation" in run.tags else None
        return scenario.start_timeout if limit is None else limit

    def _budget_is_used(self) -> bool:
        runs = list(self.service.runs.values())
        budget, early = self.scenario.node_seconds, BEFORE_AGENT * len(runs)
        return budget is not None and self._used(runs) > budget - early

    def _abandoned(self, gang: Gang) -> str | None:
        renewed = self.leases.get(gang.run_prefix)
        if renewed is not None and self.world.now - renewed > self.scenario.lease * 0.9:
            return "its lease has run out"
        return None

    def _stands_still(self, gang: Gang) -> str | None:
        """Whether nothing counted as progress (docs/failures), as of a program that prints no steps."""
        trains = any(program.exit_code is None for program in gang.programs.values())
        still = self.world.now - max(gang.moved, default=self.world.now)
        return "it showed no progress" if trains and still > self.scenario.hang_timeout - 5.0 else None

    def _silence(self, gang: Gang) -> str | None:
        now = self.world.now
        for run in self.holders(gang):
            for machine in self.machines.of_run.get(run.id, ()) if run.started is not None else ():
                name = f"{gang.run_prefix}/nodes/{machine.rank}.json"
                if machine.is_over and self.phases.get(name) == "DONE":
                    continue
                heard = self.reports.get(name, run.started)
                since, over = self.silences.get(name, (heard, 0.0))
                # Who looks may not have seen its end.
                heard = since if now - over < LOOK else heard
                # A finished model is worth an hour of silence (`limits.save_timeout`).
                finished = self.phases.get(name) == "SAVING" and gang.exits.get(machine.rank) == 0
                # Whose machine does not answer either is given up by the others at once (docs/failures; 1127.3292).
                answers = not (machine.is_over or machine.process.dead or machine.unreachable)
                limit = PEER_STUCK if answers else PEERS_SILENT
                if now - heard > PEERS_SILENT and not finished and self._reports_blocked(heard, limit):
                    return "a node was not heard of"
        return None

    def _reports_blocked(self, since: float, by_others: float) -> bool:
        """Whether reports could not be written for as long as makes a node pass for lost.

        `by_others`: after how long the other nodes give up one that alone cannot write.
        """
        limit = self.scenario.lost_timeout - 20
        return any(
            min(self.world.now, window.end) - max(since, window.begin)
            > (by_others if window.actors.startswith("node ") and window.actors != "node " else limit)
            for window in self.scenario.windows
            if "store.".startswith(window.calls) or window.calls.startswith("store.")
        )

    def runs_of(self, gang: Gang) -> list[Resource]:
        return [run for run in self.service.runs.values() if run.body["jobId"] == gang.job_id]

    def holders(self, gang: Gang) -> list[Resource]:
        """Return the newest run of each rank: those before it were lost, and replaced."""
        return list({run.tags.get("ocidist-rank"): run for run in self.runs_of(gang)}.values())

    def _runs_wanted(self, gang: Gang) -> int:
        job = self.service.jobs[gang.job_id]
        return 1 if job.body.get("jobNodeConfigurationDetails") else gang.nodes

    def live_and_untold(self, gang: Gang) -> list[Resource]:
        if self._has_stop(gang):
            return []
        return [
            run
            for run in self.runs_of(gang)
            if run.state in LIVE and run.cancel_asked is None and run.state != "CANCELING"
        ]

    def _has_stop(self, gang: Gang) -> bool:
        stored = self.bucket.objects.get(f"{gang.run_prefix}/stop.json")
        return stored is not None and not _ends_launch(stored)

    # the guards against cost (I9): each ends a gang within its window, and none while data is on its way

    def _check_cause(self, run_prefix: str, stored: Stored) -> None:
        if b'"HANG"' not in stored.data and b'"DEADLINE"' not in stored.data:
            return
        gang = self._gang_of(run_prefix)
        if gang is None:
            return
        if _says_hang(stored, gang.launch):
            self._check_hang(gang)
        deadline = self.scenario.max_runtime
        if b'"DEADLINE"' in stored.data and deadline is not None:
            took = self.world.now - min(run.created for run in self.runs_of(gang))
            if took < deadline - 5.0:
                self.violate("guard", f"gang {gang.number} was ended by its deadline after {took:.0f} s")

    def _gang_of(self, run_prefix: str) -> Gang | None:
        return next((gang for gang in self.machines.gangs.values() if gang.run_prefix == run_prefix), None)

    def _check_hang(self, gang: Gang) -> None:
        if (gang.number, gang.launch) in self.hung:
            return
        self.hung.add((gang.number, gang.launch))
        moving = [machine for machine in self.machines.all if machine.gang is gang and machine.moves_data]
        if moving:
            self.violate(
                "guard",
                f"gang {gang.number} counts as hung, while node {moving[0].rank} {moving[0].moves_data}",
            )
        asked = [
            program.asked_to_end for program in gang.programs.values() if program.asked_to_end is not None
        ]
        since = min(asked, default=self.world.now)
        last = max((at for at in gang.moved if at <= since), default=since)
        if not moving and (still := since - last) < self.scenario.hang_timeout - 5.0:
            self.violate("guard", f"gang {gang.number} counts as hung {still:.0f} s after its last sign")

    def _watch_guards(self) -> None:
        while True:
            for gang in self.machines.gangs.values():
                if gang.number not in self.end_asked and gang.number not in self.unguarded:
                    self._check_guards(gang)
            self.world.sleep(GUARD_INTERVAL)

    def _used(self, runs: Sequence[Resource]) -> float:
        """Return the node-seconds of runs until now."""
        now = self.world.now
        return sum(
            ((run.finished or now) - run.started) * len(self.machines.of_run.get(run.id, ()) or (run,))
            for run in runs
            if run.started is not None
        )

    def _check_budget(self, gang: Gang) -> None:
        """What all gangs since the last clear have used is never beyond the limit plus what it takes to end."""
        limit = self.scenario.node_seconds
        if limit is None:
            return
        cleared = max(
            (at for at, what in self.airflow.kills if what in ("cleared", "restarted")), default=-1.0
        )
        runs = [run for run in self.service.runs.values() if run.created >= cleared]
        margin = (OVER_BUDGET + self.scenario.stop_grace) * gang.nodes * len(self.machines.gangs)
        slack = (self._slack(self.world.now - 120.0) - GUARD_SLACK) * gang.nodes
        if (used := self._used(runs)) > limit + margin + slack:
            self.unguarded.add(gang.number)
            self.violate(
                "guard", f"gang {gang.number} runs on with {used:.0f} of {limit:.0f} node-seconds used"
            )

    def _check_guards(self, gang: Gang) -> None:
        running = [program for program in gang.programs.values() if program.exit_code is None]
        runs = self.runs_of(gang)
        if not runs or all(run.state in TERMINAL or run.cancel_asked is not None for run in runs):
            return
        self._check_budget(gang)
        now, scenario = self.world.now, self.scenario
        # One that hangs before its second step, and talks, counts as hung later (docs/failures).
        hang_timeout = scenario.hang_timeout * (3 if scenario.habits.talks else 1)
        windows = [(self._hung_since(gang), hang_timeout, "it hangs")] if running else []
        if scenario.max_runtime is not None:
            windows.append((min(run.created for run in runs), scenario.max_runtime, "its deadline is over"))
        renewed = self.leases.get(gang.run_prefix)
        if running and not any(program.signalled for program in running):
            windows.append((renewed, 1.25 * scenario.lease, "nobody waits for it"))
        stuck = [each.stuck_since for each in self.machines.all if each.gang is gang and each.stuck_since]
        if stuck and gang.nodes > 1:
            # Where no other node is there, it gives up by itself, later (docs/failures; q1.3713).
            others = [each for each in self.machines.all if each.gang is gang and not each.stuck_since]
            times = 2 if all(each.is_over or each.process.dead for each in others) else 1
            windows.append(
                (min(stuck), times * scenario.join_timeout, "a node does not get any further with fetching")
            )
        for since, limit, why in windows:
            if since is not None and now - since > limit + self._slack(since):
                self.unguarded.add(gang.number)
                self.violate("guard", f"gang {gang.number} runs on, {now - since:.0f} s after: {why}")

    def _hung_since(self, gang: Gang) -> float | None:
        """Return when the last progress of a gang that hangs was; None if it does not hang."""
        # While rank 1 hangs, rank 0 may save in the background what it has trained before. A published checkpoint is
        # progress (docs/failures), so hang_timeout counts from the last one (s8.413).
        if gang.hung_at is None:
            return None
        published = [at for save, at in self.manifests.values() if save and save.gang == gang.number]
        return max([gang.hung_at, *published])

    def _slack(self, since: float) -> float:
        """Return how many seconds later than its limit a guard may act, for what befell those who look meanwhile."""
        now, scenario = self.world.now, self.scenario
        # Who is refused asks less and less often, and is not at once there again when that is over.
        hindered = sum(
            2.0 * max(0.0, min(now, window.end) - max(since, window.begin)) + 60.0
            for window in scenario.windows
            if window.begin < now and window.end > since
        )
        # A request that takes, or fails, several times; a task without anybody at it, for so long as it takes Airflow
        # to find out, and then until the lease of its gang is over.
        repeated = 180.0 if scenario.rates else 0.0
        alone = 1.25 * scenario.lease if scenario.events or scenario.rates else 0.0
        cut_off = sum(event.details.get("seconds", 0.0) for event in scenario.events)
        endless = float("inf") if scenario.canceling_forever else 0.0
        return GUARD_SLACK + hindered + repeated + alone + cut_off + endless

    # the task

    def _pushed(self, key: str, value: Any) -> None:
        if SECRET in json.dumps(value):
            self.violate("secret", f"the XCom {key} holds a secret")
        if key == "run":
            self.announced.add(value["job_id"])
            if self.world.current is not None:
                # What is refused from here on is refused to one that waits.
                self.refusals.pop(self.world.current.process.name, None)
        if key == "checkpoint_uri" and isinstance(value, str):
            folder = value.partition("://")[2].partition("/")[2]
            save = self.manifests.get(folder, (None, 0.0))[0]
            if save is None:
                return
            generation = self.airflow.cleared
            if self._handed_on and self._clears_at_hand_on == generation and save.order < self._handed_on:
                self.violate("order", f"the checkpoint handed on went back to {save.label}")
            self._handed_on, self._clears_at_hand_on = save.order, generation

    def _killed(self, before: str) -> None:
        """A user has ended the task: its gang has to be asked to end soon."""
        if before != "deferred" and self.airflow.kills[-1][1] == "cleared" and self.airflow.looks_like_retry:
            return  # Where nothing has reached its gang, that goes on, as for a retry (`generation_of`; q1.4249).
        if before == "deferred" and self.airflow.deferred_at > self.world.now - 4.0:
            return  # Between its worker and its trigger nobody gets to know; its lease ends the gang.
        gangs = [
            gang
            for gang in self.machines.gangs.values()
            if self.live_and_untold(gang)
            and len(self.holders(gang)) == self._runs_wanted(gang)
            and min(run.created for run in self.runs_of(gang)) < self.world.now - 6.0
        ]
        if before == "running" and self.airflow.worker is not None and self.airflow.worker.dead:
            return
        if before == "deferred" and self.airflow.triggerer.process.dead:
            return
        is_watched = before in ("running", "deferred")
        if not is_watched and self.airflow.kills[-1][1] != "cleared":
            return  # Nobody comes any more; its lease ends the gang.
        watcher = Process(self.world, "rule")
        goes_on_until = self.world.now + SHORT_ENDING if before == "deferred" else 0.0
        tellers = {"deferred": self.airflow.triggerer.process, "running": self.airflow.worker}
        teller = tellers.get(before)
        watcher.spawn(self._check_end_asked, gangs, self.world.now, goes_on_until, teller, delay=CANCEL_LIMIT)

    def _check_end_asked(
        self, gangs: list[Gang], since: float, goes_on_until: float, teller: Process | None
    ) -> None:
        # A worker has five seconds; a trigger goes on until it has reached one of both.
        down = self._down(since + GOES_ON_FOR) if goes_on_until else self._down(since)
        if any(rate.kind == "kill" for rate in self.scenario.rates):
            return
        if (
            teller is not None
            and teller.dead
            and (goes_on_until or not (teller.signalled and teller.ended_well))
        ):
            # What it had begun has ended with it, or it was gone before the request (q1.1017, q1.1510): the lease
            # ends the gang.
            return
        if {"service", "store"} <= down:
            if self.world.now + CANCEL_LIMIT < goes_on_until:
                # What it met last takes some seconds, and the pause after it half a minute.
                again = self.world.now - LOOK
                Process(self.world, "rule").spawn(
                    self._check_end_asked, gangs, again, goes_on_until, teller, delay=CANCEL_LIMIT
                )
            return
        if teller is None and "store" in self._down(self.world.now - CANCEL_LIMIT):
            # Nobody waited. The next try looks first which gangs there may be, and can as soon as the store is there
            # (1127.4305, 1127.7790).
            Process(self.world, "rule").spawn(
                self._check_end_asked, gangs, since, goes_on_until, teller, delay=CANCEL_LIMIT
            )
            return
        left_of = {gang: self.live_and_untold(gang) for gang in gangs}
        untold = [run for left in left_of.values() for run in left]
        was_refused = all(self.cancel_refused.get(run.id, -1.0) > since for run in untold)
        if not goes_on_until and "store" in down and was_refused:
            return  # In five seconds a worker does not ask often; the lease ends the gang (w1x.405).
        if any(
            self.world.now - self.cancel_refused.get(run.id, -STILL_TRIED) < STILL_TRIED for run in untold
        ):
            Process(self.world, "rule").spawn(
                self._check_end_asked, gangs, since, goes_on_until, teller, delay=STILL_TRIED
            )
            return
        for gang, left in left_of.items():
            if left:
                self.violate(
                    "slow cancel",
                    f"{CANCEL_LIMIT:.0f} s after its task was killed, {len(left)} runs of gang {gang.number} "
                    "have not been asked to end",
                )

    def _down(self, since: float) -> set[str]:
        """Return which of service and store could not be reached meanwhile."""
        begin, end, _ = self.scenario.hidden or (0.0, 0.0, 0)
        forgot = {"service"} if begin < self.world.now and end > since else set()
        return forgot | {
            window.calls.partition(".")[0]
            for window in self.scenario.windows
            if window.begin < self.world.now
            and window.end > since
            # A throttle that passes meanwhile is waited out.
            and (window.kind != "429" or (window.begin <= since and window.end >= self.world.now))
            and f"window/{window.name}" not in self.scenario.left_out
        }

    def _try_failed(self, error: BaseException) -> None:
        from airflow.providers.common.compat.sdk import AirflowFailException

        if isinstance(error, MISTAKES):
            self.violate("crash", f"the task raises {type(error).__name__}: {str(error)[:160]}")
        gang, hopeless = self._latest_gang(), isinstance(error, AirflowFailException)
        self._check_refusals(error, hopeless=hopeless)
        if gang is None:
            return
        ended_by_user = bool(self.airflow.kills)
        if self.live_and_untold(gang) and not ended_by_user:
            watcher = Process(self.world, "rule")
            watcher.spawn(
                self._check_left, gang, str(error)[:160], hopeless, self.world.now, delay=CANCEL_LIMIT
            )
            if self.reason_to_end(gang) is None and hopeless:
                self.violate(
                    "gave up", f"the task gave up gang {gang.number}, which was well: {str(error)[:160]}"
                )
        if ended_by_user or gang.harm or not self.truth.complete_of(gang.number) or self._refused(gang):
            return
        done = len(gang.exits) == gang.size and not any(gang.exits.values())
        # An exit with 0 after SIGTERM says nothing: at the limit of its budget a program is to save, and its run fails
        # with BUDGET, whatever it had still to do (docs/job-file.md; 1127.9218).
        was_asked = any(program.asked_to_end is not None for program in gang.programs.values())
        if was_asked and self._budget_is_used():
            return
        if done and gang.trained and self.end_asked.get(gang.number) is None and not self._odd(gang):
            self.violate(
                "lost model",
                f"every program of gang {gang.number} has succeeded, and the try failed: {str(error)[:200]}",
            )

    def _check_refusals(self, error: BaseException, *, hopeless: bool) -> None:
        """Once its job is accepted, a gang is not given up after a few refusals, which may be wrong, or in outages."""
        assert self.world.current is not None
        refused = self.refusals.get(self.world.current.process.name)
        is_refusal = getattr(error.__cause__, "status_code", None) in REFUSALS
        if hopeless and is_refusal and refused and refused < REFUSALS_BELIEVED:
            self.violate("gave up", f"the task failed for good after {refused} refusals: {str(error)[:160]}")
        # Airflow's models end no try within the day for which an outage is waited out.
        if not hopeless and getattr(error, "after_acceptance", False) and _is_outage(error):
            self.violate("gave up", f"the try failed amid its submission, in an outage: {str(error)[:160]}")

    def _tried_again(self, error: BaseException) -> None:
        """What a retry would meet again is not tried again, and costs no machines (I7)."""
        cause = str(getattr(error, "cause", ""))
        if cause.rpartition(".")[2] in ("USER", "CONFIG", "DATA", "BUDGET"):
            self.violate("tried again", f"after {cause}: {str(error)[:120]}")

    def _odd(self, gang: Gang) -> bool:
        return any(
            machine.process.dead
            and machine.run.state == "FAILED"
            and machine.program is not None
            and machine.program.exit_code != 0
            for machine in self.machines.all
            if machine.gang is gang
        )

    def _check_left(self, gang: Gang, error: str, hopeless: bool, since: float) -> None:
        is_killed = any(rate.kind == "kill" for rate in self.scenario.rates)
        if (
            is_killed
            or {"service", "store"} <= self._down(since)
            or (not hopeless and self.airflow.state != "failed")
        ):
            return
        if left := self.live_and_untold(gang):
            self.violate(
                "left running",
                f"{len(left)} runs of gang {gang.number} were not asked to end when its task gave up: {error}",
            )

    def _latest_gang(self) -> Gang | None:
        return max(self.machines.gangs.values(), key=lambda gang: gang.number, default=None)

    def _task_over(self, state: str) -> None:
        if state != "success":
            return
        result = self.airflow.result or {}
        gang = self.machines.gangs.get(result.get("job_id", ""))
        if gang is None:
            self.violate("success", "success without a gang")
            return
        began = max(self.airflow.shown_clears, default=-1.0)
        if min(run.created for run in self.runs_of(gang)) < began - 0.5:
            self.violate("success", f"success by gang {gang.number}, which is from before the clear")
        bad = {rank: gang.exits.get(rank) for rank in gang.members if gang.exits.get(rank) != 0}
        if bad or len(gang.members) < gang.size:
            self.violate("success", f"success, though programs of gang {gang.number} ended with {bad}")
        finished = [
            save for save in gang.restored.values() if save and save.step >= self.scenario.habits.steps
        ]
        if not gang.trained and not finished and self.scenario.checkpoints:
            self.violate("success", f"success, though gang {gang.number} trained nothing")
        self._check_shown(gang, result)
        if self._is_undisturbed(gang):
            told, tries = len(result.get("restarts", ())), self.airflow.try_number
            if told != gang.launch:
                self.violate(
                    "launches", f"{gang.launch} launches followed on another, and the task says {told}"
                )
            # Where there is no machine, a try asks for several gangs, one after another.
            if tries > gang.number + 1:
                self.violate("launches", f"gang {gang.number} has cost {tries} tries")
        if self.scenario.checkpoints and gang.trained and not bad:
            self._check_last(gang, result.get("checkpoint_uri"))

    def _check_shown(self, gang: Gang, result: Mapping[str, Any]) -> None:
        """A training that has shown nothing is doubted, and fails where its job requires one."""
        scenario = self.scenario
        if gang.trained or scenario.checkpoints:
            return
        if scenario.require_training:
            self.violate(
                "success", f"success, though gang {gang.number} showed nothing, which its job requires"
            )
        elif not (scenario.windows or scenario.rates or scenario.events or result.get("warning")):
            self.violate("no warning", f"gang {gang.number} showed nothing, and its success has no warning")

    def _check_last(self, gang: Gang, uri: str | None) -> None:
        complete = self.truth.complete_of(gang.number)
        last = max(complete, key=lambda save: save.order, default=None)
        folder = (uri or "").partition("://")[2].partition("/")[2]
        handed = self.manifests.get(folder, (None, 0.0))[0]
        if last is not None and (handed is None or handed.order < last.order):
            self.violate(
                "order", f"success with {handed.label if handed else 'no checkpoint'} instead of {last.label}"
            )

    # machines that are lost

    def lost(self, gang: Gang, rank: int) -> None:
        """A machine has vanished."""
        self.losses.append((gang, gang.number in self.counting))
        self._lost_ranks.add(rank)

    def _check_replacement(self, gang: Gang) -> None:
        made = sum(map(self._is_charged, self.runs_of(gang)))
        if made > (allowed := self.scenario.restarts[BUDGETS.index("node")]):
            self.violate(
                "budget", f"{made} machines of gang {gang.number} were replaced: restarts.node is {allowed}"
            )

    def _is_charged(self, run: Resource) -> bool:
        """Whether a run replaces a machine at the expense of the budget: one that was not preempted, nor missing."""
        if "ocidist-incarnation" not in run.tags or "ocidist-growth" in run.tags:
            return False
        rank, runs = run.tags.get("ocidist-rank"), self.runs_of(self.machines.gang_of(run))
        before = [each for each in runs if each.tags.get("ocidist-rank") == rank]
        return before[before.index(run) - 1].id not in self.machines.taken

    def _check_replaced(self) -> None:
        """Where nothing else befalls a training, a lost machine costs neither a try nor another gang."""
        if not self.scenario.only_loss or not self.losses:
            return
        gang, counting = self.losses[0]
        # Before its first step nothing shows that another machine would help; what has ended well is not repeated.
        ended_well = any(code == 0 and not gang.programs[rank].has_left for rank, code in gang.exits.items())
        if not counting or ended_well:
            return
        airflow, gangs = self.airflow, len(self.machines.gangs)
        # A machine that comes back before another has its place costs twice: a launch, for a network that was cut, and
        # then the machine. Where the budget allows one, the same try makes another gang (1127.7163).
        is_spent = self._came_back_early(gang) and self.scenario.restarts[BUDGETS.index("node")] < 2
        allowed = 1 + (is_spent or self._lacks_nodes(gang))
        if (airflow.state, airflow.try_number) != ("success", 1) or gangs > allowed:
            self.violate(
                "not replaced",
                f"a machine of gang {gang.number} was lost, and the task ended as {airflow.state} in try "
                f"{airflow.try_number}, with {gangs} gangs",
            )

    def _lacks_nodes(self, gang: Gang) -> bool:
        """Whether no machines came in the places of so many lost ones that too few nodes were left."""
        runs = self.runs_of(gang)
        in_vain = {
            run.tags.get("ocidist-rank")
            for run in runs
            if "ocidist-incarnation" in run.tags and run.started is None
        }
        none_came = bool(in_vain) or self._was_refused
        return none_came and gang.nodes - len(self._lost_ranks) < gang.least

    def _check_grown(self) -> None:
        """A gang that goes on with fewer nodes gets the others again, once there are machines."""
        gang = self._latest_gang()
        if not self.scenario.grows or gang is None or not self.losses or not self.losses[0][1]:
            return
        if self.airflow.state == "success" and gang.size < gang.nodes:
            self.violate("not grown", f"gang {gang.number} ended with {gang.size} of {gang.nodes} nodes")

    def _check_shared(self) -> None:
        """Where only processes are killed, and saves wait for the store, the same gang trains to its end."""
        airflow = self.airflow
        # A worker's death costs a try, and the same at the same step twice is a crash loop (s22a.1469).
        deaths = sum(event.what == "kill_worker" for event in self.scenario.events)
        gang = self._latest_gang()
        loops = gang is not None and bool(_again(_as_seen(self._faults_before(gang, gang.launch + 1))))
        is_calm = self.scenario.shared_folder and not (self.losses or loops or deaths > self.scenario.retries)
        if is_calm and not (airflow.state == "success" and airflow.try_number <= 1 + deaths):
            self.violate(
                "not launched again", f"the task ended as {airflow.state} in try {airflow.try_number}"
            )

    def _came_back_early(self, gang: Gang) -> bool:
        """Whether a node that the service calls lost could be reached again before another was made in its place."""
        back = [each for each in self.machines.all if each.gang is gang and each.comes_back]
        made = {run.tags.get("ocidist-rank"): run.created for run in self.holders(gang)}
        return any(
            each.came_back_at is not None
            and (made[str(each.rank)] <= each.run.created or each.came_back_at < made[str(each.rank)])
            for each in back
        )

    # launches of one gang

    def launched(self, gang: Gang, rank: int, number: int, nodes: int) -> None:
        """A launch of the training, counted from 0, begins on a node."""
        before, where = gang.programs.get(rank), f"launch {number} on node {rank} of gang {gang.number}"
        self.world.note("RULE", "%s, of %d nodes", where, nodes)
        self._check_size(gang, nodes, where)
        expected = before.launch + 1 if before is not None else 0
        skipped = {(gang.number, each) for each in range(expected, number)}
        # One that was never launched: another node was lost while the last was replaced. One that no node has begun:
        # they would have gone on from different checkpoints (q1.306). One that this node could not begin with the
        # others, who have given it up: it did not reach the store (1127.5589).
        excused = self._is_replaced(gang) or self._could_not_come(gang, rank)
        if number < expected or (skipped & self.begun and not excused):
            self.violate("launches", f"{where} is not number {expected}")
        # Nodes that have saved before any of them looks for the newest checkpoint go on from the same one.
        if skipped - self.begun and self._is_undisturbed(gang):
            self.violate("launches", f"{where}, after one that no node has begun, and nothing was wrong")
        self.begun.add((gang.number, number))
        alive = [each for each in self.machines.all if (each.gang, each.rank) == (gang, rank)]
        if sum(not (each.process.dead or each.comes_back) for each in alive) > 1 and not self.scenario.zombie:
            self.violate("two nodes of one rank", f"{where}, while another machine of that rank lives")
        living = [each for each in gang.programs.values() if not each.machine.comes_back]
        earlier = [each for each in living if each.launch < number and each.exit_code is None]
        if earlier:
            self.violate(
                "launches", f"{where}, while launch {earlier[0].launch} goes on on node {earlier[0].rank}"
            )
        if number and self.world.now - self.end_asked.get(gang.number, self.world.now) > LATE_ANSWER:
            self.violate(
                "launches", f"{where}, though it was asked to end ({self.why_end_asked[gang.number][:100]})"
            )
        if number > gang.launch:
            self._check_budgets(gang, number, where)

    def _could_not_come(self, gang: Gang, rank: int) -> bool:
        """Whether a node may have been kept from the store after it had begun, until the others gave it up."""
        machine = self._machine_of(gang, rank)
        if machine is None:
            return False
        name, since = machine.process.name, machine.run.started or machine.run.created
        kept = (
            min(self.world.now, window.end) - max(since, window.begin)
            for window in self.scenario.windows
            if window.calls.startswith("store.") and name.startswith(window.actors)
        )
        waits = any(
            rate.kind in ("late", "silent")
            and rate.calls.startswith("store")
            and name.startswith(rate.actors)
            for rate in self.scenario.rates
        )
        return machine.came_back_at is not None or waits or any(seconds > PEERS_SILENT for seconds in kept)

    def _is_replaced(self, gang: Gang) -> bool:
        return any("ocidist-incarnation" in run.tags for run in self.runs_of(gang))

    def _check_budgets(self, gang: Gang, number: int, where: str) -> None:
        known = self._faults_before(gang, number)
        for budget, allowed in self._budgets().items():
            if (spent := sum(fault.budget == budget for fault in known)) > allowed:
                self.violate("budget", f"{where}: restarts.{budget} is {allowed}, and {spent} were needed")
        taken = sum(run.id in self.machines.taken for run in self.runs_of(gang))
        if number > sum(self.scenario.restarts) + taken + self.changes[gang.number]:
            self.violate("budget", f"{where}: {self.scenario.restarts} are allowed")
        if loop := _again([fault for fault in known if self._is_step_known(fault)]):
            self.violate(
                "crash loop", f"{where}: {loop.kind} after step {loop.at} has ended two launches before"
            )

    def _is_step_known(self, fault: Fault) -> bool:
        """Whether its node knows exactly at which step it happened.

        A checkpoint whose name states no step has that of the program when the agent first saw it, which may be a later
        one; then it takes one more launch to see the loop (circ.170).
        """
        return fault.said is not None or self.scenario.habits.layout not in STATES_NO_STEP

    def _budgets(self) -> dict[str, int]:
        return dict(zip(BUDGETS, self.scenario.restarts, strict=True))

    def _faults_before(self, gang: Gang, number: int) -> list[Fault]:
        """Return what has ended each launch before this one; none for those in which several things went wrong.

        Where the machine was cut off, the others may have ended the launch for that, before they knew more (s22a.960).
        """
        found = ([fault for fault in gang.faults if fault.launch == launch] for launch in range(number))
        alone = (faults[0] for faults in found if len(faults) == 1)
        return [self._as_known(gang, fault) for fault in alone if not fault.cut_off]

    def _as_known(self, gang: Gang, fault: Fault) -> Fault:
        """Return a fault as the others know it: that of a node that was replaced has never reached them (1127.3610).

        They know one for which that node has launched the training again itself (m1.298).
        """
        is_there = fault.machine is self._machine_of(gang, fault.rank)
        program = fault.machine.program if fault.machine else None
        was_heard = program is not None and program.launch > fault.launch
        if is_there or was_heard:
            return fault
        # A preemption costs nothing.
        is_taken = fault.machine is not None and fault.machine.run.id in self.machines.taken
        return replace(fault, budget="" if is_taken else "node", kind="a lost node")

    def agent_ended(self, machine: Machine, code: int) -> None:
        """A node has ended itself: not where nothing was wrong, nor for a fault that another launch makes up for."""
        gang = machine.gang
        if (
            code != 0
            and machine.program is None
            and gang.number not in self.end_asked
            and self._reason_to_give_up(gang) is None
        ):
            self.violate(
                "healthy gang ended",
                f"node {machine.rank} of gang {gang.number} ended itself with {code}, and nothing was wrong",
            )
        if code == 0 or gang.number in self.given_up or not self._is_undisturbed(gang):
            return
        # A node whose node-hours are used up launches nothing more, whatever has ended the launch (s8.41).
        if self._budget_is_used():
            return
        self.given_up.add(gang.number)
        known = self._faults_before(gang, gang.launch + 1)
        if len(known) != gang.launch + 1 or 0 in gang.exits.values():
            return
        # What has ended the launches of earlier gangs of this try is known to the later ones.
        earlier = [each.faults for each in self.machines.gangs.values() if each.number < gang.number]
        compared = [*(fault for faults in earlier for fault in faults), *known]
        said = _as_seen(compared)
        if _again(said) or _again_without_steps(said):
            return
        spent = sum(fault.budget == known[-1].budget for fault in known)
        if spent <= self._budgets()[known[-1].budget]:
            self.violate(
                "not launched again",
                f"gang {gang.number} ended after {known[-1].kind} in launch {gang.launch}, "
                f"though restarts.{known[-1].budget} is not spent",
            )

    def _is_undisturbed(self, gang: Gang) -> bool:
        """Whether nothing has gone wrong but what the program itself does."""
        scenario = self.scenario
        befell = {event.what for event in scenario.events} - {"kill_program"}
        return (
            not (scenario.windows or scenario.rates or befell or gang.number in self.end_asked)
            and all(harm.passes for harm in gang.harm)
            and scenario.max_runtime is None
        )

    # at the restart of a program

    def restored(self, gang: Gang, rank: int, save: Save | None) -> None:
        config = self.scenario
        if not config.checkpoints or not config.habits.resumes:
            return
        if len({*gang.restored.values(), save}) > 1:
            self.violate("restore", f"nodes of gang {gang.number} went on from different checkpoints")
        # Another launch of the same attempt goes on in any case.
        first = 0 if self.airflow.job()["checkpoints"]["resume"] else gang.number
        began = gang.broken_at if gang.launch else min(run.created for run in self.runs_of(gang))
        there = [
            other
            for folder, (other, since) in self.manifests.items()
            if other is not None
            and since < began
            and folder.startswith(gang.checkpoints_prefix + "/")
            and self._is_whole(other)
            and first <= other.gang <= gang.number
            and is_looked_for(config.habits, other.name)
        ]
        newest = max(there, key=lambda other: other.order, default=None)
        if newest is not None and (save is None or save.order < newest.order):
            self.violate(
                "order",
                f"launch {gang.launch} of gang {gang.number} went on from {save.label if save else 'nothing'}, "
                f"though {newest.label} was there",
            )
        if first == 0:
            self._check_stored(gang, save)
        if gang.nodes == 1 and gang.launch:
            self._check_disk(gang, save)
        if save is not None:
            self.went_on[gang.number, gang.launch] = save

    def _check_disk(self, gang: Gang, save: Save | None) -> None:
        """The only node of a gang goes on at once from what is whole on its disk, and once only before it is stored."""
        launch, waited = gang.launch, self.world.now - gang.broken_at
        last = max(self.truth.complete_of(gang.number), key=lambda each: each.order, default=None)
        if last is None or gang.number in self.end_asked or waited > self._patience:
            return
        if not self._is_only_kept_from_the_store(gang) or last.complete_at > gang.broken_at - AT_REST:
            return
        where = f"launch {launch} of gang {gang.number} went on from {save.label if save else 'nothing'}"
        if save is not last:
            self.violate("disk", f"{where}, though {last.label} was whole on its node")
        elif launch == 1 and waited > ON_THE_DISK_WITHIN:
            self.violate("disk", f"{where} {waited:.0f} s after the end of the one before")
        elif (
            launch > 1 and last not in self.published and self.went_on.get((gang.number, launch - 1)) is last
        ):
            self.violate("disk", f"{where}, as the one before, and it is not stored yet")

    @property
    def _patience(self) -> float:
        return self.scenario.join_timeout - SENT_IN_TIME

    def _is_only_kept_from_the_store(self, gang: Gang) -> bool:
        """Whether nothing has gone wrong but the program, and that its checkpoints could not be stored for a while.

        Of formats and names by which each save shows by itself that it is whole.
        """
        scenario, habits = self.scenario, self.scenario.habits
        befell = scenario.rates or scenario.events or scenario.max_runtime is not None
        shows_itself = habits.layout in ("pt", "hf") and not (habits.last_too or habits.fails_in_save)
        kept = all(
            window.calls == "store.p"
            and window.objects == "/checkpoints/"
            and window.end - gang.broken_at < self._patience
            for window in scenario.windows
        )
        return scenario.checkpoints and shows_itself and kept and not (befell or habits.full_at)

    def _check_carried(self) -> None:
        """What the only node of a gang has gone on from is in the store in the end, or something newer is."""
        if self.airflow.kills:
            return
        for gang in self.machines.gangs.values():
            last = self.went_on.get((gang.number, gang.launch)) if gang.launch and gang.nodes == 1 else None
            if last is None or not self._is_only_kept_from_the_store(gang):
                continue
            stored = max((each.order for each in self.published), default=(0, 0))
            if stored < last.order:
                self.violate("disk", f"{last.label} was left to launch {gang.launch}, and was never stored")

    def _check_stored(self, gang: Gang, save: Save | None) -> None:
        """What was whole when a later save was begun is there for the next gang, if only the program has failed."""
        scenario = self.scenario
        before = next((each for each in self.machines.gangs.values() if each.number == gang.number - 1), None)
        disturbed = scenario.windows or scenario.rates or scenario.events or scenario.max_runtime is not None
        if disturbed or before is None or gang.launch or before.launch or not before.faults:
            return
        last = min(harm.at for harm in before.harm) - STORED_WITHIN
        saves = [each for each in self.truth.saves if each.gang == before.number]
        due = [
            each
            for each in saves
            if each.complete_at is not None
            and any(each.complete_at < later.begun < last for later in saves)
            and is_looked_for(scenario.habits, each.name)
        ]
        newest = max(due, key=lambda each: each.order, default=None)
        if newest is not None and (save is None or save.order < newest.order):
            self.violate(
                "late",
                f"gang {gang.number} went on from {save.label if save else 'nothing'}, though {newest.label} was whole "
                "long before",
            )

    def refused_call(self, actor: Process, call: str, args: Sequence[Any], status: str) -> None:
        if actor.name in self.refusals:
            self.refusals[actor.name] += 1
        if call == "service.cancel":
            self.cancel_refused[args[0]] = self.world.now
        if call == "service.create_job_run" and int(status) in REFUSALS:
            self.creation_refused[actor.name, args[0]] = self.world.now

    def called(self, actor: Process, call: str) -> None:
        """Count what a try reads of the compartment, and what it is refused amid the creation of a gang."""
        if call == "service.create_job":
            self.refusals.setdefault(actor.name, 0)
        if call == "service.list_jobs" and actor.name.startswith("worker"):
            last, pages = self.list_pages.get(actor.name, (-LOOK_AGAIN_AFTER, 0))
            is_same_look = self.world.now - last < LOOK_AGAIN_AFTER
            pages = pages + 1 if is_same_look else 1
            self.list_pages[actor.name] = self.world.now, pages
            if pages > LIST_PAGES:
                self.violate(
                    "requests", f"{actor.name} read more than {LIST_PAGES} pages of the compartment's jobs"
                )

    # at the end

    def at_end(self, over: bool) -> None:
        for text in self.world.crashes:
            self.violate("crash", text.strip().splitlines()[0][:200])
        if self.airflow.state not in ("success", "failed"):
            self.violate("endless", f"the task is still {self.airflow.state} after {self.world.now:.0f} s")
        elif not over:
            live = [
                run for run in self.service.runs.values() if run.state in LIVE and run.state != "CANCELING"
            ]
            live = [run for run in live if self.machines.of_run.get(run.id)]
            if live:
                self.violate(
                    "left running",
                    f"{len(live)} runs live on, {self.world.now - (self.airflow.ended_at or 0):.0f} s after their task",
                )
        if SECRET in json.dumps(self.airflow.notes):
            self.violate("secret", "the notes hold a secret")
        self._check_log()
        self._check_uploads()
        self._check_replaced()
        self._check_grown()
        self._check_carried()
        self._check_shared()

    def _check_uploads(self) -> None:
        alive = {machine.process.name for machine in self.machines.all if not machine.process.dead}
        for parts in self.bucket.uploads.values():
            if parts.writer in alive:
                continue
            number = int(parts.writer.split()[1].partition(".")[0]) if parts.writer.startswith("node") else -1
            later = [
                save for save, _ in self.manifests.values() if save is not None and save.gang > number >= 0
            ]
            if later:
                self.violate(
                    "multipart", f"the upload of {parts.name.rpartition('/')[2]} by {parts.writer} stays open"
                )


_LINE = re.compile(r"#(\d+)#")
_TRY = re.compile(r"worker (\d+)\.")
_PHASE = re.compile(rb'"phase": "(\w+)"')
_INCARNATION = re.compile(rb'"incarnation": (\d+)')
_STEP = re.compile(rb'"step": \d')
_CHOSEN = re.compile(rb'"chosen": true')


def _ends_launch(stored: Stored) -> bool:
    """Whether a stop request ends one launch only."""
    return bool(_content(stored).get("restarts"))


def _change_of_members(stored: Stored) -> Sequence[int] | None:
    """Return who is to take part in a launch that is asked for so that others do; None for any other request."""
    last = (_content(stored).get("restarts") or [{}])[-1]
    return last.get("members") if last.get("cause") == "CAPACITY" else None


def _says_hang(stored: Stored, launch: int) -> bool:
    """Whether a stop request or report names a hang as the end of this launch."""
    if b'"HANG"' not in stored.data:
        return False
    found = _content(stored)
    restarts = found.get("restarts") or []
    last = restarts[launch]["cause"] if len(restarts) > launch else found.get("cause")
    return bool(last == "HANG")


def _content(stored: Stored) -> dict[str, Any]:
    try:
        return dict(json.loads(stored.data))
    except ValueError:
        return {}


def _as_seen(faults: Sequence[Fault]) -> list[Fault]:
    """Return faults as a node takes them to be."""
    return [replace(fault, kind=LOOKS_LIKE.get(fault.kind, fault.kind)) for fault in faults]


def _again(faults: Sequence[Fault]) -> Fault | None:
    """Return a fault that has ended more launches at one step than chance allows.

    As far as its node or its checkpoint shows it.
    """
    seen: Counter[tuple[str, int]] = Counter()
    for fault in faults:
        if fault.at is None:
            continue
        seen[fault.kind, fault.at] += 1
        if seen[fault.kind, fault.at] > BY_CHANCE.get(fault.kind, 1):
            return fault
    return None


def _again_without_steps(faults: Sequence[Fault]) -> bool:
    """Whether a fault has ended two launches of which a node knows by checkpoints only how far they came."""
    kinds = [fault.kind for fault in faults if fault.said is None]
    return len(kinds) > len(set(kinds))


def _is_outage(error: BaseException) -> bool:
    """Whether the service or the store has not answered a request, or has asked to wait."""
    if (
        str(getattr(error, "cause", "")).rpartition(".")[2] != "SERVICE"
        or getattr(error, "code", None) == SPENT
    ):
        return False
    inner = error.__cause__
    status = getattr(error, "status_code", None)
    is_busy = status is None or status == 429 or status >= 500
    return is_busy and all(getattr(each, "retryable", True) for each in (error, inner))


def _last(name: str) -> str:
    return name.rpartition("/")[2]
