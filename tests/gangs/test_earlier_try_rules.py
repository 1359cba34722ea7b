"""The last try that gives up: which gangs it ends, where it looks for them, and what it says of the rest."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import ListsLiveGangs
from airflow_provider_ocidist.errors import BackendError, CancelFailed, Cause
from airflow_provider_ocidist.gangs.attempt_notes import NOTE
from airflow_provider_ocidist.gangs.earlier_tries import Homes, cancel_earlier, cancel_noted
from airflow_provider_ocidist.model.attempts import Attempt, End, Place
from airflow_provider_ocidist.model.homes import OTHER, WORDS
from airflow_provider_ocidist.model.report import StopRequest
from airflow_provider_ocidist.model.run import Ending, Plan, RunKey, RunRef, Tries
from tests.service_in_memory import LIVE, KeptClaims, KnownGangs, Model
from tests.training_jobs import a_key

LOG = logging.getLogger("test_earlier_try_rules")
KEY = a_key()
ENDING = Ending(cause=Cause.SERVICE, message="its task has given up", since=5.0)
STOP = StopRequest(cause=Cause.SERVICE, message="its task has given up")
NO = BackendError("no")


class Directories(KeptClaims):
    """The stop requests of gangs, as calls of the model."""

    model: Home

    def request_stop(self, key: RunKey, run_dir: str, request: StopRequest) -> bool:
        self.model._do("request_stop", run_dir, key, request)
        return self.model.has_store

    def claimed_by(self, gang: Plan | RunRef | Attempt) -> int:
        self.model.answers.wait(60)
        return super().claimed_by(gang)


class Gangs(KnownGangs):
    """The records of attempts, as the model has them."""

    def recorded(self, key: RunKey, place: Place | None, noted: Sequence[Attempt]) -> list[Attempt]:
        if isinstance(self.model, Home):
            self.model.lists.wait(60)
        self.model._do("recorded", place, key, [*noted])
        return [*self.model.recorded]


class Home(Model, ListsLiveGangs):
    """A service that lists what lives, with a store for stop requests."""

    def __init__(self) -> None:
        super().__init__()
        self.directories = Directories(self)
        self.gangs = Gangs(self)
        self.found_live: list[RunRef] = []
        self.has_store = True
        self.answers = threading.Event()
        """Event without which the store does not answer whose a gang is."""
        self.answers.set()
        self.lists = threading.Event()
        """Event without which the store does not list the records."""
        self.lists.set()
        self.refuses: dict[str, BackendError] = {}
        """Errors of each cancel of a gang, by its job."""

    def cancel(self, ref: RunRef, ending: Ending | None = None) -> None:
        super().cancel(ref, ending)
        if ref.job_id in self.refuses:
            raise self.refuses[ref.job_id]

    def live(self, keys: Sequence[RunKey], place: str | None = None) -> list[RunRef]:
        self._do("live", place, [*keys])
        return self.found_live

    def gang(self, attempt: int = 1, **changes: Any) -> RunRef:
        """Return a gang that runs here."""
        return self.has(replace(KEY, attempt=attempt), [LIVE] * 2, backend=self.kind, **changes)

    @property
    def verbs(self) -> list[str]:
        return [call[0] for call in self.calls]


class Local(Home):
    """Another home."""

    kind = "local"


class Cluster(Home):
    """A third home."""

    kind = "pytorchjob"


@pytest.fixture
def home() -> Home:
    return Home()


def attempt_of(ref: RunRef, number: int | None = 1, /, **changes: Any) -> Attempt:
    """Return the record of a gang that a try of this number has begun; None: it names no try."""
    fields = {
        "key": ref.key,
        "place": Place.of_gang(ref),
        "tries": Tries(try_number=number, max_tries=0) if number is not None else None,
        "ref": ref,
    }
    return Attempt(**{**fields, **changes})


def ended(home: Home, *noted: Attempt, others: Sequence[Home] = (), **changes: Any) -> list[str]:
    """End what earlier tries than the third have left; return what is said."""
    reach = {each.kind: each for each in others}
    homes = Homes(home, reach.__getitem__ if others else None, LOG)
    fields = {"place": None, "try_number": 2, "claim_patience": 60.0, **changes}
    return cancel_earlier(homes, KEY, noted=noted, ending=ENDING, **fields)


# Which gangs


@pytest.mark.parametrize("known_by", ["noted", "recorded", "live", "all"])
def test_a_gang_is_ended_once_by_any_record_of_it(home: Home, known_by: str) -> None:
    ref = home.gang()
    home.recorded = [attempt_of(ref)] * (known_by in ("recorded", "all"))
    home.found_live = [ref] * (known_by in ("live", "all"))
    assert ended(home, *[attempt_of(ref)] * (known_by in ("noted", "all"))) == []
    assert [call for call in home.calls if call[0] == "cancel"] == [("cancel", ref.job_id, ENDING)]
    assert home.done("request_stop") == []


def test_what_is_noted_is_ended_before_anything_is_asked_for(home: Home) -> None:
    noted, other = home.gang(1), home.gang(2)
    home.found_live = [other]
    assert ended(home, attempt_of(noted)) == []
    assert home.verbs == ["claimed_by", "cancel", "recorded", "live", "claimed_by", "cancel"]
    assert home.done("cancel") == [noted.job_id, other.job_id]


@pytest.mark.parametrize("number, is_ended", [(1, True), (2, True), (3, False), (None, True)])
@pytest.mark.parametrize("is_noted", [True, False])
def test_what_a_later_try_has_begun_is_left_alone_though_it_is_found_running(
    home: Home, number: int | None, *, is_ended: bool, is_noted: bool
) -> None:
    ref = home.gang()
    home.found_live = [ref]
    home.recorded = [attempt_of(ref, number)]
    assert ended(home, *[attempt_of(ref, number)] * is_noted) == []
    assert home.done("cancel") == [ref.job_id] * is_ended
    assert home.done("request_stop") == []


@pytest.mark.parametrize(
    "end, is_ended",
    [(None, True), (End(succeeded=False), False), (End(succeeded=True, alive=True), True)],
)
@pytest.mark.parametrize("is_noted", [True, False])
def test_what_has_ended_is_not_ended_again_unless_a_node_of_it_may_live(
    home: Home, end: End | None, *, is_ended: bool, is_noted: bool
) -> None:
    attempt = attempt_of(home.gang(), end=end)
    home.recorded = [attempt]
    assert ended(home, *[attempt] * is_noted) == []
    assert home.done("cancel") == [attempt.ref.job_id if attempt.ref else ""] * is_ended


@pytest.mark.parametrize("claimed, is_ended", [(0, True), (1, True), (2, True), (3, False)])
def test_what_a_later_try_waits_for_is_left_alone(home: Home, claimed: int, *, is_ended: bool) -> None:
    ref = home.gang()
    home.claims[ref.key.name] = claimed
    assert ended(home, attempt_of(ref)) == []
    assert home.done("cancel") == [ref.job_id] * is_ended


def test_what_a_later_try_waits_for_is_ended_where_nobody_answers_that_in_time(home: Home) -> None:
    ref = home.gang()
    home.claims[ref.key.name] = 3
    home.answers.clear()
    try:
        assert ended(home, attempt_of(ref), claim_patience=0.05) == []
    finally:
        home.answers.set()
    assert home.done("cancel") == [ref.job_id]


# An attempt of which no gang is known


def test_an_attempt_without_a_known_gang_is_asked_to_stop_where_its_nodes_would_look(home: Home) -> None:
    ref = home.gang()
    assert ended(home, attempt_of(ref, ref=None)) == []
    assert [call for call in home.calls if call[0] == "request_stop"] == [
        ("request_stop", ref.run_dir, ref.key, STOP)
    ]
    assert home.done("cancel") == []


def test_an_attempt_whose_gang_is_found_running_is_ended_as_that(home: Home) -> None:
    ref = home.gang()
    home.found_live = [ref]
    assert ended(home, attempt_of(ref, ref=None)) == []
    assert home.done("cancel") == [ref.job_id]
    assert home.done("request_stop") == []


@pytest.mark.parametrize("kind", [*WORDS, None])
def test_an_attempt_that_cannot_be_asked_to_stop_is_named_with_the_way_to_find_it(
    home: Home, kind: str | None
) -> None:
    ref, other = home.gang(1), home.gang(2)
    home.has_store = False
    attempt = attempt_of(ref, ref=None)
    if kind is not None:
        attempt = replace(attempt, place=replace(attempt.place, backend=kind))
    words = WORDS.get(kind or "", OTHER)
    assert ended(home, attempt, attempt_of(other)) == [
        (
            f"attempt {ref.key.name} may still be running, and no stop request could be written to {ref.run_dir}: "
            f"look for a {words.gang} of this name, and delete it {words.where}"
        )
    ]


def test_an_attempt_at_another_home_is_asked_to_stop_there_or_here_where_that_cannot_be_reached(
    home: Home,
) -> None:
    there = Local()
    attempt = attempt_of(there.gang(), ref=None)
    assert ended(home, attempt, others=[there]) == []
    assert there.done("request_stop") == [attempt.place.run_dir]
    assert home.done("request_stop") == []
    assert ended(home, attempt) == []
    assert home.done("request_stop") == [attempt.place.run_dir]


# What fails


REFUSED = BackendError("the service refuses it")


@pytest.mark.parametrize(
    "refusal, why",
    [
        (CancelFailed(REFUSED, stop_requested=True), None),
        (
            CancelFailed(REFUSED, stop_requested=False),
            "the service refuses it; and no stop request could be written to the run directory",
        ),
        (REFUSED, "the service refuses it"),
    ],
)
def test_a_gang_that_cannot_be_ended_is_named_unless_its_nodes_know(
    home: Home, refusal: BackendError, why: str | None
) -> None:
    ref = home.gang()
    home.refuses[ref.job_id] = refusal
    said = (
        f"{ref.key.name} may still be running ({', '.join(ref.run_ids)}; {why}): "
        f"end it with ocidist cancel --backend model {ref.job_id}, or at the service"
    )
    assert ended(home, attempt_of(ref)) == ([said] if why else [])


@pytest.mark.parametrize(
    "run_ids, shown", [(("b", "", "a", "b"), "b, a"), (("", ""), "no run known"), ((), "no run known")]
)
def test_a_gang_is_named_with_each_run_that_is_known_once(
    home: Home, run_ids: tuple[str, ...], shown: str
) -> None:
    ref = home.gang(run_ids=run_ids)
    home.refuses[ref.job_id] = REFUSED
    (said,) = ended(home, attempt_of(ref))
    assert said.startswith(f"{ref.key.name} may still be running ({shown}; the service refuses it)")


def test_one_gang_that_cannot_be_ended_keeps_no_other_from_it(home: Home) -> None:
    refs = [home.gang(number) for number in range(1, 5)]
    home.refuses = {ref.job_id: REFUSED for ref in refs[:2]}
    home.found_live = refs[2:]
    said = ended(home, *map(attempt_of, refs[:2]))
    assert set(home.done("cancel")) == {ref.job_id for ref in refs}
    assert [each.partition(" may still be running")[0] for each in said] == [ref.key.name for ref in refs[:2]]


@pytest.mark.parametrize("verb", ["recorded", "live"])
def test_a_home_that_cannot_say_what_there_is_is_named_and_the_rest_is_ended(home: Home, verb: str) -> None:
    there = Local()
    noted, far = home.gang(1), there.gang(2)
    if verb == "recorded":
        there.found_live = [far]
    else:
        there.recorded = [attempt_of(far)]
    home.refusals[verb] = [NO]
    what = {
        "recorded": "the attempts of earlier tries cannot be listed",
        "live": "the running gangs of this task cannot be listed",
    }[verb]
    attempt_there = attempt_of(far, ref=None, key=replace(KEY, attempt=9), end=End(succeeded=False))
    assert ended(home, attempt_of(noted), attempt_there, others=[there]) == [f"{what}: no"]
    assert (home.done("cancel"), there.done("cancel")) == ([noted.job_id], [far.job_id])


def test_a_service_that_lists_nothing_that_lives_is_not_asked_for_it() -> None:
    class Silent(Model):
        """Lists no gangs."""

        def __init__(self) -> None:
            super().__init__()
            self.gangs = Gangs(self)

    model = Silent()
    ref = model.has(KEY, [LIVE])
    homes = Homes(model, None, LOG)
    assert cancel_earlier(homes, KEY, None, [attempt_of(ref)], ENDING, 2) == []
    assert model.done("cancel") == [ref.job_id]


# A store that does not answer


@pytest.mark.parametrize("is_of_a_later_try", [True, False])
def test_a_store_that_never_lists_the_attempts_holds_up_no_cancel_at_the_service(
    home: Home, *, is_of_a_later_try: bool
) -> None:
    noted, asked, live, recorded = (home.gang(number) for number in (1, 2, 3, 4))
    home.found_live = [live]
    unanswered = attempt_of(live, ref=None)
    home.recorded = [attempt_of(recorded), *[unanswered] * (not is_of_a_later_try)]
    home.claims[live.key.name] = 3 if is_of_a_later_try else 0
    home.lists.clear()
    said: list[list[str]] = []

    def end() -> None:
        known = [attempt_of(asked), unanswered]
        said.append(ended(home, attempt_of(noted), asked=known, claim_patience=0.05))

    ends = threading.Thread(target=end, daemon=True)
    ends.start()
    first = {ref.job_id for ref in ([noted, asked] if is_of_a_later_try else [noted, asked, live])}
    try:
        deadline = time.monotonic() + 30
        while set(home.done("cancel")) < first and time.monotonic() < deadline:
            time.sleep(0.01)
        assert set(home.done("cancel")) == first, "the cancel waits for the store"
        assert not said, "what only the records name is not ended yet"
    finally:
        home.lists.set()
        ends.join(60)
    assert said == [[]]
    assert sorted(home.done("cancel")) == sorted([*first, recorded.job_id]), "each once"


@pytest.mark.parametrize("seed", range(6))
def test_a_gang_that_this_try_does_not_know_is_left_until_the_records_say_that_no_later_one_has_begun_it(
    home: Home, seed: int
) -> None:
    """A later try is bringing about its gang, and the store says in time neither that nor whose the gang is."""
    print("seed", seed)
    dice = random.Random(seed)
    refs = [home.gang(number) for number in range(1, 7)]
    known, foreign = refs[:2], refs[2:]
    tries = {ref.job_id: dice.choice([1, 2, 3, 4]) for ref in foreign} | {foreign[0].job_id: 3}
    home.found_live = dice.sample(refs, len(refs))
    home.recorded = [attempt_of(ref, tries[ref.job_id]) for ref in foreign]
    home.answers.clear()
    home.lists.clear()
    # Long after the first pass, or as soon as it has ended what it must not end.
    theirs = {ref.job_id for ref in foreign if tries[ref.job_id] > 2}
    deadline = time.monotonic() + 1

    def answer() -> None:
        while time.monotonic() < deadline and not set(home.done("cancel")) & theirs:
            time.sleep(0.01)
        home.lists.set()

    answers = threading.Thread(target=answer, daemon=True)
    answers.start()
    asked = [attempt_of(known[1], ref=None)] if dice.random() < 0.5 else [attempt_of(known[1])]
    try:
        assert ended(home, attempt_of(known[0]), asked=asked, claim_patience=0.05) == []
    finally:
        home.answers.set()
        answers.join(60)
    assert sorted(home.done("cancel")) == sorted(ref.job_id for ref in refs if ref.job_id not in theirs)


@pytest.mark.parametrize("seed", range(8))
def test_a_cancel_that_fails_at_first_is_repeated_and_nothing_is_said_of_it_if_it_succeeds(
    home: Home, seed: int
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    ref = home.gang()
    is_slow = bool(seed % 2)
    # Without its nodes' ids, the service's list leads to it.
    has_ref = not is_slow or dice.random() < 0.5
    times = dice.randint(1, 2) if is_slow and has_ref else 1
    known = attempt_of(ref) if has_ref else attempt_of(ref, ref=None)
    home.found_live = [ref]
    home.refusals["cancel"] = [dice.choice([REFUSED, CancelFailed(REFUSED, stop_requested=False)])] * times
    home.recorded = [known]

    def recover() -> None:
        deadline = time.monotonic() + 10
        while len(home.done("cancel")) < times and time.monotonic() < deadline:
            time.sleep(0.001)
        home.lists.set()

    recovers = threading.Thread(target=recover, daemon=True)
    if is_slow:
        home.lists.clear()
    recovers.start()
    where = {"asked": [known]} if dice.random() < 0.5 else {}
    said = ended(home, *[known] * (not where), claim_patience=0.05, **where)
    recovers.join(60)
    assert said == []
    assert home.done("cancel") == [ref.job_id] * (times + 1)


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_cancel_that_fails_for_good_is_named_once(home: Home, *, is_slow: bool) -> None:
    ref = home.gang()
    home.found_live = [ref]
    home.refuses[ref.job_id] = REFUSED
    if is_slow:
        home.lists.clear()
        threading.Timer(0.3, home.lists.set).start()
    (said,) = ended(home, attempt_of(ref), claim_patience=0.05)
    assert said.startswith(f"{ref.key.name} may still be running")
    assert home.done("request_stop") == []


@pytest.mark.parametrize("verb", ["recorded", "nothing"])
@pytest.mark.parametrize("is_recorded", [True, False])
def test_an_attempt_that_only_this_try_knows_of_is_asked_to_stop_where_no_record_says_otherwise(
    home: Home, verb: str, *, is_recorded: bool
) -> None:
    """Each is recorded before anything of it is created: what has no record does not exist."""
    attempt = attempt_of(home.gang(), ref=None)
    home.recorded = [attempt] * is_recorded
    home.refusals[verb] = [NO]
    said = ended(home, asked=[attempt])
    assert said == (["the attempts of earlier tries cannot be listed: no"] if verb == "recorded" else [])
    is_asked = verb == "recorded" or is_recorded
    assert home.done("request_stop") == [attempt.place.run_dir] * is_asked


@pytest.mark.parametrize("claimed, is_asked", [(0, True), (2, True), (3, False)])
def test_an_attempt_without_a_known_gang_is_left_to_the_later_try_that_has_claimed_it(
    home: Home, claimed: int, *, is_asked: bool
) -> None:
    attempt = attempt_of(home.gang(), ref=None)
    home.claims[attempt.key.name] = claimed
    assert ended(home, attempt) == []
    assert home.done("request_stop") == [attempt.place.run_dir] * is_asked


def test_a_gang_that_no_list_of_live_ones_shows_is_looked_for_by_its_name() -> None:
    """At a service that lists no live gangs: its nodes would not find a stop request in a store that is silent."""

    class NamesOnly(Model):
        """Finds gangs by name."""

        def __init__(self) -> None:
            super().__init__()
            self.gangs = Gangs(self)

    model = NamesOnly()
    attempt = attempt_of(model.has(KEY, [LIVE]), ref=None)
    assert cancel_earlier(Homes(model, None, LOG), KEY, None, [attempt], ENDING, 2) == []
    assert model.done("cancel") == [f"job-{KEY.name}"]


# Where


def test_each_gang_is_ended_at_its_own_home(home: Home) -> None:
    local, cluster = Local(), Cluster()
    here, there, beyond = home.gang(1), local.gang(2), cluster.gang(3)
    # Only the records there name what is at a third home.
    local.recorded = [attempt_of(beyond)]
    assert ended(home, attempt_of(here), attempt_of(there), others=[local, cluster]) == []
    assert [each.done("cancel") for each in (home, local, cluster)] == [
        [here.job_id],
        [there.job_id],
        [beyond.job_id],
    ]
    assert cluster.verbs == ["live", "claimed_by", "cancel"]


@pytest.mark.parametrize("has_store", [True, False])
def test_a_gang_whose_home_cannot_be_reached_is_asked_to_stop_and_named(
    home: Home, *, has_store: bool
) -> None:
    ref = Local().gang()
    home.has_store = has_store
    found = "its nodes find a stop request in" if has_store else "and no stop request could be written to"
    assert ended(home, attempt_of(ref)) == [
        (
            f"{ref.key.name} may still be running ({', '.join(ref.run_ids)}; "
            f"backend local cannot be reached with this connection; {found} {ref.run_dir}): "
            f"end it with ocidist cancel --backend local {ref.job_id}, "
            "or on its machine, with kill"
        )
    ]
    assert {call for call in home.calls if call[0] == "request_stop"} == {
        ("request_stop", ref.run_dir, ref.key, STOP)
    }


def test_a_gang_whose_home_cannot_be_reached_is_left_to_the_later_try_that_waits_for_it(home: Home) -> None:
    ref = Local().gang()
    home.claims[ref.key.name] = 3
    assert ended(home, attempt_of(ref)) == []
    assert home.done("request_stop") == []


def test_a_home_is_asked_for_the_records_of_its_own_place(home: Home) -> None:
    there = Local()
    mine = [attempt_of(home.gang(number)) for number in (1, 2)]
    theirs = [attempt_of(there.gang(number, compartment_id="far")) for number in (3, 4)]
    place = Place(backend="model", run_dir="oci://b@n/job", compartment_id="of the job")
    for given in (place, None):
        home.calls.clear()
        there.calls.clear()
        assert ended(home, theirs[0], mine[0], theirs[1], mine[1], others=[there], place=given) == []
        assert [call for call in home.calls if call[0] in ("recorded", "live")] == [
            ("recorded", given, KEY, mine),
            ("live", "of the job" if given else "here", [KEY]),
        ]
        assert [call for call in there.calls if call[0] in ("recorded", "live")] == [
            ("recorded", theirs[0].place, KEY, theirs),
            ("live", "far", [KEY]),
        ]


def test_where_nothing_names_a_compartment_the_connections_is_asked(home: Home) -> None:
    there = Local()
    there.recorded = [attempt_of(there.gang(), end=End(succeeded=False))]
    home.recorded = [*there.recorded]
    place = Place(backend="local", run_dir="runs", compartment_id="of another kind")
    assert ended(home, others=[there], place=place) == []
    assert (home.done("live"), there.done("live")) == ([None], ["of another kind"])
    assert there.done("recorded") == [], "it was not known yet"


# The homes


def test_each_home_is_connected_once_when_it_is_asked_for_first(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    local, asked = Local(), []

    def reach(kind: str) -> Backend:
        asked.append(kind)
        if kind != "local":
            raise LookupError("no such connection")
        return local

    homes = Homes(home, reach, LOG)
    assert homes.present is home
    assert homes.connected() == [home]
    for _ in range(2):
        assert (homes.at("model"), homes.at("runai"), homes.at("local")) == (home, None, local)
    assert asked == ["runai", "local"]
    assert homes.connected() == [home, local]
    assert [record.getMessage() for record in caplog.records] == [
        "backend runai, of an earlier try's gang, cannot be connected: no such connection"
    ]


def test_a_killed_task_connects_nothing_but_what_it_has_prepared(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    homes_there = {"local": Local(), "pytorchjob": Cluster()}
    homes = Homes(home, homes_there.__getitem__, LOG)
    homes.prepare(Place(backend=kind, run_dir="runs", compartment_id=None) for kind in ("local", "model"))
    assert homes.connected() == [home, homes_there["local"]]
    assert homes.at("pytorchjob") is None
    assert homes.at("local") is homes_there["local"]
    assert Homes(home, None, LOG).at("local") is None
    assert caplog.records == []


# A job that cannot be read


class Notes(dict[str, Any]):
    """Airflow's task state store."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


def notes_of(*attempts: Attempt) -> Notes:
    return Notes({NOTE: {"attempts": [each.to_json() for each in attempts]}})


def reaching(homes: dict[str | None, Home], asked: list[str | None]) -> Callable[[str | None], Backend]:
    def reach(kind: str | None) -> Backend:
        asked.append(kind)
        return homes[kind]

    return reach


def test_a_task_whose_job_cannot_be_read_ends_what_is_noted_from_the_first_home_that_it_reaches(
    home: Home,
) -> None:
    local, cluster, asked = Local(), Cluster(), list[str | None]()
    local.clock = 5000.0
    lost, there, beyond = Home().gang(1), local.gang(2), cluster.gang(3)
    notes = notes_of(attempt_of(lost), attempt_of(there), attempt_of(beyond))
    why = ValueError("nodez: no such field")
    said = cancel_noted(
        reaching({"local": local, "pytorchjob": cluster, None: home}, asked), KEY, 2, why, notes, LOG
    )
    assert [each.partition(" may still be running")[0] for each in said] == [lost.key.name]
    assert "backend model cannot be reached with this connection" in said[0]
    assert home.calls == [], "another home is reached"
    assert local.done("recorded") == [None], "nobody knows where the job puts its gangs"
    ((_, _, ending),) = [call for call in local.calls if call[0] == "cancel"]
    assert (ending.cause, ending.message) == (
        Cause.SERVICE,
        "its task has given up: ValueError: nodez: no such field",
    )
    assert 4000.0 < ending.since - time.time() < 6000.0, "by the service's clock"
    assert cluster.done("cancel") == [beyond.job_id]
    assert asked == ["model", "local", "model", "pytorchjob"]


@pytest.mark.parametrize("notes", [None, Notes(), Notes({NOTE: {"attempts": [{"key": 1}]}})])
def test_where_nothing_is_noted_the_usual_home_is_asked(
    home: Home, caplog: pytest.LogCaptureFixture, notes: Notes | None
) -> None:
    asked: list[str | None] = []
    ref = home.gang()
    home.found_live = [ref]
    assert cancel_noted(reaching({None: home}, asked), KEY, 2, ValueError("no"), notes, LOG) == []
    assert asked == [None]
    assert home.done("cancel") == [ref.job_id]
    assert len(caplog.records) == bool(notes), "what is noted and cannot be read is said"


def test_the_number_of_the_try_that_gives_up_decides_what_is_later(home: Home) -> None:
    refs = [home.gang(number) for number in (1, 2, 3)]
    notes = notes_of(*(attempt_of(ref, number) for number, ref in enumerate(refs, 2)))
    assert cancel_noted(reaching({"model": home}, []), KEY, 3, ValueError("no"), notes, LOG) == []
    assert set(home.done("cancel")) == {refs[0].job_id, refs[1].job_id}
