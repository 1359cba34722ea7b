"""Places that change between two tries, on this machine and on Kubernetes: one gang lives, and none is forgotten."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.connections import Connections
from airflow_provider_ocidist.backends.fields import fields_beside
from airflow_provider_ocidist.backends.kubernetes import names
from airflow_provider_ocidist.backends.kubernetes.backend import KubernetesBackend
from airflow_provider_ocidist.backends.local import Local
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.candidates import Candidates
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import RunKey, RunRef
from airflow_provider_ocidist.model.work_dir import LOCAL, STOP_FILE
from tests.backends.clusters import Home, cluster
from tests.training_jobs import a_job, a_key

SEED = random.randrange(1_000_000)
OTHER = "other_cluster"
"""Connection of a candidate; here to the same cluster."""
TRIES = 3
log = logging.getLogger("test")


class Notes(dict[str, Any]):
    """Airflow's store of a task's state."""

    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))


class Killed(BaseException):
    """Stands for a SIGKILL: nothing catches it on its way."""


@dataclasses.dataclass
class Stage:
    """The connections and the job of a task, which a person edits between its tries."""

    connect: Callable[[Stage], Backend]
    make_job: Callable[[Stage], TrainingJob]
    fields: dict[str, Any]
    others: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the connection that a candidate names."""
    job: dict[str, Any] = dataclasses.field(default_factory=dict)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def submitter(self, notes: Notes | None) -> GangSubmitter:
        return GangSubmitter(self.connect(self), self.make_job(self), log, notes, threading.Event())

    def submit(self, key: RunKey, notes: Notes | None, number: int) -> RunRef:
        return self.submitter(notes).adopt_or_submit(key, None, number).ref

    def submit_and_die(
        self, key: RunKey, notes: Notes | None, number: int, die: Callable[..., object]
    ) -> None:
        """Begin a try whose process is killed in `die`, which gets the function that creates a gang."""
        gang = self.submitter(notes)
        gang.end_asked = lambda *_: None  # type: ignore[method-assign]  # a SIGKILL
        for backend in (gang._backend, *([gang._backend.connections.at(OTHER)] if self.others else [])):
            backend.submit = _dying(backend.submit, die)  # type: ignore[method-assign]  # a SIGKILL
        with pytest.raises(Killed):
            gang.adopt_or_submit(key, None, number)

    def change(self, setting: str, chance: random.Random) -> None:
        """Edit one setting."""
        match setting:
            case "work_dir":
                self.fields["work_dir"] = f"{self.fields['work_dir']}-{uuid.uuid4().hex[:6]}"
            case "nodes":
                self.job["nodes"] = self.job.get("nodes", 2) % 2 + 1
            case "name":
                self.job["name"] = f"steps-{chance.randint(0, 99)}"
            case "checkpoints":
                self.job["checkpoints"] = {"uri": f"{self.fields['work_dir']}/other-{chance.randint(0, 99)}"}
            case "connection":
                self.fields["namespace"] = _another(self.fields["namespace"])
            case "other connection":
                self.others["namespace"] = _another(self.others["namespace"])
            case "namespace":
                self.options["namespace"] = _another(self.options.get("namespace", self.fields["namespace"]))
            case "candidates":
                self.options["candidates"] = chance.choice(
                    [
                        [],
                        [{"conn_id": OTHER}],
                        [{"conn_id": OTHER, "cpu": 1}],
                        [{"namespace": _another(self.fields["namespace"]), "cpu": 1}],
                    ]
                )


def _dying(real: Callable[..., RunRef], die: Callable[..., object]) -> Callable[..., RunRef]:
    def submit(*given: Any) -> RunRef:
        die(lambda: real(*given))
        raise Killed

    return submit


def _another(namespace: str) -> str:
    return "default" if namespace != "default" else NAMESPACE[0]


NAMESPACE = [""]
"""The namespace of the emulator, besides its `default`."""


def _whole_or_cut_off(stage: Stage, key: RunKey, notes: Notes | None, how: str) -> RunRef | None:
    """Make the first try; return its gang, None where its process is killed before it knows that."""
    if how == "killed before it creates":
        stage.submit_and_die(key, notes, 1, lambda _: None)
    elif how == "killed before the answer":
        stage.submit_and_die(key, notes, 1, lambda create: create())
    else:
        return stage.submit(key, notes, 1)
    return None


HOWS = ("whole", "whole", "whole", "killed before it creates", "killed before the answer")


def _one_gang_lives(
    stage: Stage, settings: tuple[str, ...], number: int, living: Callable[[RunKey], set[str]]
) -> None:
    """Make tries between which settings change; of the gangs that they make, the last alone lives."""
    seed = SEED + number
    chance = random.Random(seed)
    how, dies = chance.choice(HOWS) if number >= len(settings) else "whole", chance.random() < 0.3
    key, notes = a_key(), Notes()
    first = _whole_or_cut_off(stage, key, notes, how)
    told = f"seed {seed}: {how}"
    for again in range(2, TRIES + 1):
        changes = chance.sample(settings, chance.randint(1, 2))
        if again == 2:
            # Each setting comes first once.
            changes = [settings[number % len(settings)], *changes]
        for change in dict.fromkeys(changes):
            stage.change(change, chance)
        told += f", {changes}"
        if dies and again < TRIES:
            told += " killed before it adopts"
            stage.submit_and_die(key, notes, again, lambda _: None)
            continue
        last = stage.submit(key, notes, again)
        assert last.complete, told
        assert living(key) == {last.job_id}, told
        if first is not None:
            assert (last.job_id, last.run_dir) == (first.job_id, first.run_dir), told
            assert (last.conn_id, last.candidate) == (first.conn_id, first.candidate), told
            assert not stage.connect(stage).directories.stop_requested(first), told


# this machine


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Stage]:
    def job_of(stage: Stage) -> TrainingJob:
        return a_job(**{"nodes": 2, "seconds": 600, **stage.job, "backend": {"kind": "local"}})

    yield Stage(lambda stage: Local.connect(stage.fields), job_of, {"work_dir": str(tmp_path / "work")})
    for gang in _gangs_below(tmp_path):
        home = Local.connect({})
        home.cancel(home.open(gang).ref)


def _gangs_below(folder: Path) -> list[str]:
    return [str(found.parent.parent) for found in folder.glob(f"work*/*/{LOCAL}/gang.json")]


@pytest.mark.parametrize("number", range(5))
def test_whatever_changes_between_two_tries_one_gang_lives_on_this_machine(
    here: Stage, tmp_path: Path, number: int
) -> None:
    def living(_: RunKey) -> set[str]:
        home = Local.connect({})
        refs = [home.open(gang).ref for gang in _gangs_below(tmp_path)]
        asked = [Path(ref.run_dir, STOP_FILE).exists() for ref in refs]
        return {
            ref.job_id
            for ref, is_asked in zip(refs, asked, strict=True)
            if not (is_asked or home.status([ref])[0].ended)
        }

    _one_gang_lives(here, ("work_dir", "name", "nodes", "checkpoints"), number, living)


# Kubernetes


@pytest.fixture(scope="module")
def emulated() -> Iterator[Home]:
    with cluster("") as home:
        NAMESPACE[0] = home.namespace
        yield home


@pytest.fixture(params=["pytorchjob", "trainjob"])
def there(request: pytest.FixtureRequest, emulated: Home, tmp_path: Path) -> Stage:
    home = Home(emulated.emulator, request.param)
    backend_class = kinds.load("backends", home.kind).BACKEND

    def connect(stage: Stage) -> Backend:
        backend: Backend = backend_class.connect(stage.fields)

        def at(conn_id: str | None) -> Backend:
            own = conn_id is None
            made: Backend = backend_class.connect(
                stage.fields if own else fields_beside(stage.fields, stage.others, str(conn_id))
            )
            return made

        backend.connections = Connections(backend, at)
        return backend

    def job_of(stage: Stage) -> TrainingJob:
        # Without pods: they would say nothing here.
        return home.job(**{**stage.job, "backend": {"suspend": True, **stage.options}})

    own = {**home.fields, "work_dir": str(tmp_path / "work"), "namespace": home.namespace}
    other = {name: own[name] for name in ("kube_config_path", "namespace")}
    return Stage(connect, job_of, own, other)


SETTINGS = ("namespace", "connection", "other connection", "candidates", "work_dir", "name", "nodes")
IN_DEFAULT = {"namespace": "default", "cpu": 1}
FIRST: tuple[tuple[dict[str, Any], ...], ...] = (
    (),
    (),
    ({"conn_id": OTHER},),
    (IN_DEFAULT,),
    (IN_DEFAULT, {"conn_id": OTHER}),
)
"""Candidates of the job at its first try, by the setting that changes first."""


@pytest.mark.parametrize("number", range(2 * len(SETTINGS)))
def test_whatever_changes_between_two_tries_one_gang_lives_in_the_cluster(there: Stage, number: int) -> None:
    chance = random.Random(SEED - number)
    found = FIRST[number] if number < len(FIRST) else chance.choice(FIRST)
    there.options.update({"candidates": list(found)} if found else {})

    def living(key: RunKey) -> set[str]:
        backend = there.connect(there)
        assert isinstance(backend, KubernetesBackend)
        selector = f"{names.SELECTOR},{names.TASK}={key.task_digest}"
        objects = [
            obj
            for namespace in ("default", NAMESPACE[0])
            for obj in backend._objects.all(namespace, selector)
            if not backend._is_over(obj)
        ]
        return {f"{obj['metadata']['namespace']}/{obj['metadata']['name']}" for obj in objects}

    if there.options.get("candidates"):
        # Most often the gang is not where the job asks first.
        several = Candidates(there.connect(there), there.make_job(there), log)
        several.refuse(a_key(), "", Cause.CAPACITY, "no machine is free")
    _one_gang_lives(there, SETTINGS, number, living)
