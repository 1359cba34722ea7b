"""What a node goes on from."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save.checkpoints import (
    Brought,
    Fetching,
    resume,
    resume_after_clear,
    start_from,
)
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause, StoreUnavailable
from airflow_provider_ocidist.job import Checkpoints, Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import checkpoints
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.local import LocalStore
from tests.storage.published import publish


def damage(reference: str) -> None:
    """Change a byte, as a bad disk would, so that only its checksum shows it."""
    (file,) = [path for path in Path(reference).iterdir() if path.name != "manifest.json"]
    file.write_bytes(b"X" + file.read_bytes()[1:])


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, caplog) -> None:
    source, safe, target = tmp_path / "source", str(tmp_path / "safe"), tmp_path / "target"
    source.mkdir()
    published = []
    for step in (1, 2):
        (source / f"step-{step}.txt").write_text(f"weights of {step}")
        published.append(publish(source / f"step-{step}.txt", safe, step=step))
    settings = Checkpoints(uri=safe)
    damage(published[1].uri)
    found = resume(settings, Fetching(target, OciAccess(), StopSwitch()))
    assert found == published[0]
    assert [path.name for path in target.iterdir()] == ["step-1.txt"]
    assert "the checkpoint of step 2 is damaged" in caplog.text

    damage(published[0].uri)
    with pytest.raises(AgentError, match=r"all 2 checkpoints below .* are damaged: delete them"):
        resume(settings, Fetching(tmp_path / "another machine", OciAccess(), StopSwitch()))


def without_a_file(folder: Path) -> None:
    next(folder.glob("step-*")).unlink()


def shorter(folder: Path) -> None:
    file = next(folder.glob("step-*"))
    file.write_bytes(file.read_bytes()[:-1])


def manifest_cut_off(folder: Path) -> None:
    (folder / "manifest.json").write_bytes((folder / "manifest.json").read_bytes()[:-9])


def manifest_of(field: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | {field: value}))

    return change


DAMAGES: list[Callable[[Path], None]] = [
    lambda folder: damage(str(folder)),
    without_a_file,
    shorter,
    manifest_cut_off,
    manifest_of("version", 99),
    manifest_of("attempt", "x"),
    manifest_of("attempt", -1),
    manifest_of("generation", 10**30),
    manifest_of("sequence", -1),
    manifest_of("created_at", "yesterday"),
    manifest_of("files", []),
    manifest_of("metrics", {"loss": "low"}),
]


@pytest.mark.parametrize("seed", range(24))
def test_whatever_has_damaged_all_of_them_no_attempt_begins_from_nothing(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    source, safe = tmp_path / "source", tmp_path / "safe"
    source.mkdir()
    count = dice.randint(1, 3)
    for step in range(count):
        (source / f"step-{step}.txt").write_text(f"weights of {step}")
        published = publish(source / f"step-{step}.txt", str(safe), step=step)
        DAMAGES[seed % len(DAMAGES) if step == 0 else dice.randrange(len(DAMAGES))](Path(published.uri))
    target = tmp_path / "target"
    with pytest.raises(AgentError, match=r"all \d checkpoints below .* are damaged: delete them") as caught:
        resume(Checkpoints(uri=str(safe)), Fetching(target, OciAccess(), StopSwitch()))
    assert caught.value.cause is Cause.DATA
    assert not list(target.glob("step-*"))


def test_what_was_never_whole_is_no_damage(tmp_path: Path) -> None:
    half = tmp_path / "safe" / "step-5"
    half.mkdir(parents=True)
    (half / "step-5.txt").write_text("no manifest yet")
    assert (
        resume(
            Checkpoints(uri=str(tmp_path / "safe")), Fetching(tmp_path / "target", OciAccess(), StopSwitch())
        )
        is None
    )


def test_after_a_clear_the_newest_life_that_had_a_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    stem = str(tmp_path / "safe" / "dag-train-0a-g")

    def again(generation: int, machine: str = "own") -> CheckpointRef | None:
        program = Program(source=None, script="train.py")
        settings = AgentConfig(
            run_name="x",
            nodes=1,
            run_dir="x",
            program=program,
            checkpoints_stem=stem,
            generation=generation,
        )
        return resume_after_clear(settings, Fetching(tmp_path / machine, OciAccess(), StopSwitch()))

    assert again(3) is None
    for generation, step in ((1, 30), (12, 10), (14, 99)):
        (tmp_path / f"step-{step}.txt").write_text("weights")
        publish(tmp_path / f"step-{step}.txt", f"{stem}{generation}", step=step)
    assert [found and found.step for found in map(again, (1, 2, 13))] == [None, 30, 10]
    damage(f"{stem}1/{next(Path(f'{stem}1').iterdir()).name}")
    with pytest.raises(AgentError, match=f"all 1 checkpoints below {stem}1 are damaged: delete them"):
        again(2, "another machine")


def test_deepspeed_gets_the_name_of_the_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    saved = tmp_path / "global_step8"
    saved.mkdir()
    (saved / "mp_rank_00_model_states.pt").write_bytes(b"weights")
    publish(saved, str(tmp_path / "safe"), step=8, loss=None)
    resume(Checkpoints(uri=str(tmp_path / "safe")), Fetching(tmp_path / "fetched", OciAccess(), StopSwitch()))
    assert (tmp_path / "fetched" / "latest").read_text() == "global_step8"


@pytest.mark.parametrize(
    "saved, newest",
    [
        (("best", "global_step8"), "global_step8"),
        (("global_step8", "best"), "best"),
        (("epoch1", "best", "global_step8"), "global_step8"),
        (("best", "global_step8", "export.pt"), "global_step8"),
    ],
)
def test_deepspeed_goes_on_from_the_newest_of_what_is_fetched_for_it(
    tmp_path: Path, saved: tuple[str, ...], newest: str
) -> None:
    for step, name in enumerate(saved, 1):
        entry = tmp_path / "saved" / name
        entry.parent.mkdir(exist_ok=True)
        if name.endswith(".pt"):
            entry.write_text("weights")
        else:
            entry.mkdir()
            (entry / "mp_rank_00_model_states.pt").write_text(name)
        publish(entry, str(tmp_path / "safe"), step=step)
    fetched = tmp_path / "fetched"
    resume(Checkpoints(uri=str(tmp_path / "safe")), Fetching(fetched, OciAccess(), StopSwitch()))
    assert {path.name for path in fetched.iterdir()} == {*saved, "latest"}
    assert (fetched / "latest").read_text() == newest


def test_megatron_gets_the_iteration_to_go_on_from(tmp_path: Path) -> None:
    for iteration in (100, 200):
        part = tmp_path / f"iter_{iteration:07}" / "mp_rank_00" / "model_optim_rng.pt"
        part.parent.mkdir(parents=True)
        part.write_text(f"weights of {iteration}")
        publish(part.parents[1], str(tmp_path / "safe"), step=iteration)
    (tmp_path / "best.pt").write_text("weights")
    publish(tmp_path / "best.pt", str(tmp_path / "safe"), step=210)
    fetched = tmp_path / "fetched"
    resume(Checkpoints(uri=str(tmp_path / "safe")), Fetching(fetched, OciAccess(), StopSwitch()))
    assert (fetched / "iter_0000200" / "mp_rank_00" / "model_optim_rng.pt").exists()
    assert (fetched / "latest_checkpointed_iteration.txt").read_text() == "200"


def test_a_run_starts_from_the_checkpoint_of_another(tmp_path: Path) -> None:
    (tmp_path / "step-20.txt").write_text("weights")
    other = publish(tmp_path / "step-20.txt", str(tmp_path / "other"), step=20)
    own = Checkpoints(start_from=other.uri)
    assert start_from(own, Fetching(tmp_path / "own", OciAccess(), StopSwitch())) == other.digest
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["step-20.txt"]

    damage(other.uri)
    with pytest.raises(AgentError, match=r"(?s)cannot be fetched: .*correct checkpoints\.start_from"):
        start_from(
            Checkpoints(start_from=other.uri),
            Fetching(tmp_path / "another machine", OciAccess(), StopSwitch()),
        )


def test_a_run_that_starts_from_no_other_has_fetched_no_content(tmp_path: Path) -> None:
    assert start_from(Checkpoints(), Fetching(tmp_path / "own", OciAccess(), StopSwitch())) == ""
    assert not (tmp_path / "own").exists()


def test_a_fetch_that_is_cancelled_puts_nothing_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "step-20.txt").write_text("weights")
    published = publish(tmp_path / "step-20.txt", str(tmp_path / "safe"), step=20)
    cancel, own = threading.Event(), tmp_path / "own"
    cancel.set()
    brought: Brought = {}
    settings = Checkpoints(uri=str(tmp_path / "safe"), start_from=published.uri)
    how = Fetching(own, OciAccess(), StopSwitch(), brought, cancel=cancel)
    for fetch in (resume, start_from):
        with pytest.raises(AgentError, match="was cancelled"):
            fetch(settings, how)
        assert not [path for path in own.iterdir() if not path.name.startswith(".")]
    assert brought == {}


def test_what_this_machine_cannot_put_in_its_place_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step-20.txt").write_text("weights")
    publish(tmp_path / "step-20.txt", str(tmp_path / "safe"), step=20)
    monkeypatch.setattr(checkpoints, "_REPLACE_TRIES", 0)
    damaged: set[str] = set()
    settings = Checkpoints(uri=str(tmp_path / "safe"))
    with pytest.raises(StoreUnavailable, match="other processes keep writing to it"):
        resume(settings, Fetching(tmp_path / "own", OciAccess(), StopSwitch(), damaged=damaged))
    assert damaged == set()


@pytest.mark.parametrize("way", ["resume", "start from"])
def test_what_another_node_has_sent_wrongly_is_read_again_from_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    (tmp_path / "step-20.txt").write_text("weights")
    published = publish(tmp_path / "step-20.txt", str(tmp_path / "safe"), step=20)
    sent = tmp_path / "sent"
    sent.mkdir()
    (sent / "step-20.txt").write_text("Weights")
    asked: list[tuple[Path, int]] = []

    def through(_: Store, place_of: Callable[[str], Path], size: int) -> Store:
        asked.append((place_of("step-20.txt"), size))
        return LocalStore(sent)

    own = tmp_path / "own"
    if way == "resume":
        settings = Checkpoints(uri=str(tmp_path / "safe"))
        assert resume(settings, Fetching(own, OciAccess(), StopSwitch(), through=through)) == published
    else:
        start_from(
            Checkpoints(start_from=published.uri), Fetching(own, OciAccess(), StopSwitch(), through=through)
        )
    assert (own / "step-20.txt").read_text() == "weights"
    assert asked == [(own / "step-20.txt", 7)]
    assert "reading it again, from the store alone" in caplog.text


def test_what_a_program_looks_for_by_its_name_comes_back_beside_the_newest(tmp_path: Path) -> None:
    source, safe = tmp_path / "source", str(tmp_path / "safe")
    source.mkdir()
    for name, step in (
        ("last.ckpt", 100),
        ("epoch=1-step=100.ckpt", 100),
        ("last.ckpt", 200),
        ("epoch=2-step=200.ckpt", 200),
    ):
        (source / name).write_text(f"weights of {step}")
        publish(source / name, safe, step=step)
    found = resume(Checkpoints(uri=safe), Fetching(tmp_path / "fetched", OciAccess(), StopSwitch()))
    assert found
    assert found.step == 200
    assert {path.name: path.read_text() for path in (tmp_path / "fetched").iterdir()} == {
        "epoch=2-step=200.ckpt": "weights of 200",
        "last.ckpt": "weights of 200",
    }


def test_beside_a_best_one_without_a_step_the_last_step_comes_back(tmp_path: Path) -> None:
    source, safe = tmp_path / "source", str(tmp_path / "safe")
    source.mkdir()
    for name, step in (("step-100.pt", 100), ("step-200.pt", 200), ("best.pt", 230)):
        (source / name).write_text(f"weights of {step}")
        publish(source / name, safe, step=step)
    assert resume(Checkpoints(uri=safe), Fetching(tmp_path / "fetched", OciAccess(), StopSwitch()))
    assert sorted(path.name for path in (tmp_path / "fetched").iterdir()) == ["best.pt", "step-200.pt"]


@pytest.mark.parametrize(
    "damaged, left", [(("step-200.pt",), "step-100.pt"), (("step-100.pt", "step-200.pt"), "step-50.pt")]
)
def test_of_a_series_beside_it_the_newest_comes_back_that_is_whole(
    tmp_path: Path, damaged: tuple[str, ...], left: str
) -> None:
    source, safe, known = tmp_path / "source", tmp_path / "safe", set[str]()
    source.mkdir()
    for name, step in (("step-50.pt", 50), ("step-100.pt", 100), ("step-200.pt", 200), ("best.pt", 230)):
        (source / name).write_text("weights")
        publish(source / name, str(safe), step=step)
    for name in damaged:
        (safe / name / name).write_text("changed")
    brought: dict[str, str] = {}
    settings = Checkpoints(uri=str(safe))
    assert resume(settings, Fetching(tmp_path / "fetched", OciAccess(), StopSwitch(), brought, damaged=known))
    assert (
        sorted(path.name for path in (tmp_path / "fetched").iterdir()) == sorted(brought) == ["best.pt", left]
    )
    assert known == {str(safe / name) for name in damaged}


def test_a_launch_that_goes_on_from_no_earlier_attempt_gets_nothing_of_one(tmp_path: Path) -> None:
    source, safe, own = tmp_path / "source", str(tmp_path / "safe"), Fence(attempt=2)
    source.mkdir()
    for name, fence in (("last.ckpt", Fence(attempt=1)), ("step-10.pt", own)):
        (source / name).write_text("weights")
        publish(source / name, safe, step=None, fence=fence)
    checkpoints = Checkpoints(uri=safe, resume=False)
    assert resume(checkpoints, Fetching(tmp_path / "fetched", OciAccess(), StopSwitch()), launched_before=own)
    assert [path.name for path in (tmp_path / "fetched").iterdir()] == ["step-10.pt"]


def test_a_launch_that_may_go_on_from_earlier_attempts_does_so_where_its_own_has_saved_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "step-10.pt").write_text("weights")
    earlier = publish(tmp_path / "step-10.pt", str(tmp_path / "safe"), step=10, fence=Fence(attempt=1))
    how = Fetching(tmp_path / "fetched", OciAccess(), StopSwitch())
    checkpoints = Checkpoints(uri=str(tmp_path / "safe"))
    assert resume(checkpoints, how, launched_before=Fence(attempt=2)) == earlier


def test_a_launch_that_goes_on_from_no_earlier_attempt_begins_anew_where_its_own_has_saved_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "step-10.pt").write_text("weights")
    publish(tmp_path / "step-10.pt", str(tmp_path / "safe"), step=10, fence=Fence(attempt=1))
    checkpoints = Checkpoints(uri=str(tmp_path / "safe"), resume=False)
    own = Fence(attempt=2)
    assert (
        resume(checkpoints, Fetching(tmp_path / "own", OciAccess(), StopSwitch()), launched_before=own)
        is None
    )


def test_instead_of_a_damaged_companion_the_one_before_it_is_fetched(tmp_path: Path) -> None:
    safe, source = str(tmp_path / "safe"), tmp_path / "source"
    source.mkdir()
    published = {}
    # The program resumes from those with a number only.
    names = ("step-80.pt", "step-90.pt", "step-100.pt", "last.pt", "best.pt")
    for name, step in zip(names, (80, 90, 100, 100, 100)):
        (source / name).write_text(f"weights of {name}")
        published[name] = publish(source / name, safe, step=step)
    damage(published["step-100.pt"].uri)
    damage(published["step-90.pt"].uri)
    brought: dict[str, CheckpointRef | None] = {}
    found = resume(Checkpoints(uri=safe), Fetching(tmp_path / "own", OciAccess(), StopSwitch(), brought))
    assert found == published["best.pt"]
    assert brought == {name: published[name] for name in ("best.pt", "last.pt", "step-80.pt")}
