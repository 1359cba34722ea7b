"""`ocidist checkpoints`: a person looks after what trainings have stored."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors import torch as safetensors

from airflow_provider_ocidist.cli import dcp_weights, main, weight_files
from airflow_provider_ocidist.storage import catalog, checkpoints
from tests.storage.published import publish

WEIGHTS = {"layer.weight": torch.arange(6.0).reshape(2, 3), "layer.bias": torch.ones(2)}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Three checkpoints of a program that saves its model, its optimizer and its step together."""
    monkeypatch.chdir(tmp_path)
    for step in (10, 20, 30):
        file = tmp_path / "program" / f"step-{step}.pt"
        file.parent.mkdir(exist_ok=True)
        torch.save({"model": WEIGHTS, "optimizer": {"state": {0: torch.ones(3)}}, "step": step}, file)
        publish(file, str(tmp_path / "place"), step=step, loss=round(1 / step, 3))
    return tmp_path / "place"


def ocidist(*arguments: object) -> int:
    return main(["checkpoints", *map(str, arguments)])


def test_list_is_a_table_with_the_newest_first(place, capsys):
    assert ocidist("list", place) == 0
    where, title, *rows = capsys.readouterr().out.splitlines()
    assert where == str(place)
    assert title.split()[:6] == ["CHECKPOINT", "STEP", "LOSS", "SIZE", "AGE", "ATTEMPT"]
    assert [row.split()[1] for row in rows] == ["30", "20", "10"]
    assert all("g0-a1" in row and row.endswith("the test says so") for row in rows)


def test_list_as_json_has_what_a_script_needs(place, capsys):
    assert ocidist("list", place, "--json") == 0
    first, *_ = json.loads(capsys.readouterr().out)
    assert (first["step"], first["loss"], first["state"]) == (30, 0.033, "whole")
    assert first["uri"] == f"{place}/step-30.pt"


def test_a_damaged_one_is_named_and_the_exit_code_says_so(place, capsys):
    assert ocidist("verify", place) == 0
    file = place / "step-20.pt" / "step-20.pt"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    capsys.readouterr()
    assert ocidist("verify", place) == 1
    out = capsys.readouterr().out
    assert f"{place}/step-20.pt: step-20.pt/step-20.pt is not what was published" in out
    assert "3 checkpoints read: 1 damaged" in out
    assert ocidist("verify", place, "--step", 30) == 0


def test_prune_deletes_nothing_until_it_is_confirmed(place, capsys):
    assert ocidist("prune", place, "--keep", 1) == 0
    out = capsys.readouterr().out
    assert "2 checkpoints, " in out
    assert "would be deleted; --yes deletes" in out
    assert len(checkpoints.complete(str(place))) == 3
    assert ocidist("prune", place, "--keep", 1, "--yes") == 0
    assert [ref.step for ref in checkpoints.complete(str(place))] == [30]


def test_prune_keeps_the_best_and_the_young(place):
    assert ocidist("prune", place, "--keep", 1, "--keep-best", "loss:max", "--yes") == 0
    assert [ref.step for ref in checkpoints.complete(str(place))] == [30, 10]
    assert ocidist("prune", place, "--keep", 1, "--older-than", "1h", "--yes") == 0
    assert len(checkpoints.complete(str(place))) == 2


@pytest.mark.parametrize(
    "arguments, remedy",
    [
        (["prune", "place", "--keep", "0"], "--keep 0: at least the newest one stays; write 1 or more"),
        (["prune", "place", "--keep-every", "0"], "--keep-every 0: write a number of steps, 1 or more"),
        (["prune", "place", "--keep-best", "loss:least"], "write METRIC, METRIC:min or METRIC:max"),
        (
            ["prune", "place", "--older-than", "soon"],
            "--older-than soon: write seconds, or 90s, 15m, 2h, 30d",
        ),
        (
            ["list", "plaice"],
            "plaice: does not exist; name a folder of checkpoints, a URI, or the info.yaml of a run",
        ),
        (["verify", "place", "--step", "7"], "there is no published checkpoint of step 7"),
        (["fetch", "place", "new", "--step", "7"], "no whole checkpoint of step 7 found"),
        (["export", "place", "place"], "place: exists already; name a new path"),
        (["export", "place", "new", "--to", "huggingface"], "has no config.json"),
        (
            ["export", "place", "new", "--to", "safetensors", "--key", "x"],
            "no such entry of tensors; it has: model",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_with_a_remedy(place, capsys, arguments, remedy):
    assert ocidist(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert remedy in line
    assert len(checkpoints.complete(str(place))) == 3


def test_fetch_takes_the_newest_or_the_wanted_step(place, tmp_path, capsys):
    assert ocidist("fetch", place, tmp_path / "here") == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "here" / "step-30.pt")
    assert ocidist("fetch", place, tmp_path / "here", "--step", 10) == 0
    assert torch.load(tmp_path / "here" / "step-10.pt")["step"] == 10
    assert ocidist("fetch", place / "step-20.pt", tmp_path / "here") == 0
    assert (tmp_path / "here" / "step-20.pt").exists()


def test_fetch_deletes_nothing_of_the_users_without_force(tmp_path, capsys):
    program = tmp_path / "program" / "step-10"
    program.mkdir(parents=True)
    (program / "model.pt").write_bytes(b"published")
    publish(program, str(tmp_path / "place"), step=10)
    here = tmp_path / "here" / "step-10"
    here.mkdir(parents=True)
    (here / "my-notes.txt").write_text("mine")
    assert ocidist("fetch", tmp_path / "place", tmp_path / "here") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{here}: exists already, and my-notes.txt is not of the checkpoint" in line
    assert "--force" in line
    assert [path.name for path in here.iterdir()] == ["my-notes.txt"]
    (here / "my-notes.txt").unlink()
    for other in (b"half", b"PUBLISHED"):
        (here / "model.pt").write_bytes(other)
        assert ocidist("fetch", tmp_path / "place", tmp_path / "here") == 2
        assert "model.pt is not as it was published" in capsys.readouterr().err
        assert (here / "model.pt").read_bytes() == other
    assert ocidist("fetch", tmp_path / "place", tmp_path / "here", "--force") == 0
    assert (here / "model.pt").read_bytes() == b"published"
    assert ocidist("fetch", tmp_path / "place", tmp_path / "here") == 0, "it is the same"
    (here / "model.pt").unlink()
    assert ocidist("fetch", tmp_path / "place", tmp_path / "here") == 0, "what is missing is added"
    assert (here / "model.pt").read_bytes() == b"published"
    shutil.rmtree(here)
    here.symlink_to(program)
    assert ocidist("fetch", tmp_path / "place", tmp_path / "here") == 2
    assert "is a link" in capsys.readouterr().err
    assert here.is_symlink()


def test_a_damaged_one_is_exit_code_1_also_if_nobody_reads_its_name(place):
    file = place / "step-20.pt" / "step-20.pt"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    command = [sys.executable, "-m", "airflow_provider_ocidist.cli", "checkpoints", "verify", str(place)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=env, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_verify_takes_one_checkpoint_and_whole_work_directories(place, tmp_path, capsys):
    assert ocidist("verify", place / "step-20.pt") == 0
    assert "1 checkpoint read: 0 damaged" in capsys.readouterr().out
    work = tmp_path / "work"
    shutil.copytree(place, work / "checkpoints" / "train-g0")
    for folder in ("run-1/wheels", "checkpoints/train-g0/step-20.pt/onnx"):
        (work / folder).mkdir(parents=True)
        (work / folder / "manifest.json").write_text('{"torch-2.whl": "sha256"}')
    assert ocidist("verify", work) == 0
    assert "3 checkpoints read: 0 damaged" in capsys.readouterr().out
    assert ocidist("list", place / "step-20.pt") == 0
    content = (place / "step-20.pt" / "step-20.pt").read_bytes()
    (place / "step-20.pt" / "step-20.pt").write_bytes(content[:-1] + b"?")
    assert ocidist("verify", place / "step-20.pt") == 1
    assert "step-20.pt is not what was published" in capsys.readouterr().out


def test_what_is_deleted_while_it_is_verified_is_damaged_only_where_its_manifest_stays(
    place, monkeypatch, capsys
):
    """A training may go on meanwhile, and delete its old ones."""
    compare, gone = catalog.what_differs, [place / "step-30.pt", place / "step-20.pt" / "step-20.pt"]

    def slowly(store, item):
        for path in gone:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return compare(store, item)

    monkeypatch.setattr(catalog, "what_differs", slowly)
    assert ocidist("verify", place) == 1
    shown = capsys.readouterr().out
    assert "step-30.pt" not in shown
    assert f"{place}/step-20.pt: a file of it was deleted while it was read" in shown
    assert "2 checkpoints read: 1 damaged" in shown


@pytest.mark.parametrize("action", ["fetch", "export"])
def test_a_target_that_the_system_refuses_is_one_line(place, tmp_path, capsys, action):
    (tmp_path / "file").write_text("x")
    assert ocidist(action, place, tmp_path / "file" / "x") == 2
    shown = capsys.readouterr().err
    assert shown.startswith("ocidist: ")
    assert f"{tmp_path}/file" in shown
    assert shown.count("\n") == 1


def test_weights_that_have_no_room_are_one_line_and_leave_nothing(tmp_path):
    part = torch.ones(1 << 19, dtype=torch.uint8)
    # Tied: three times as large in safetensors.
    torch.save({"a": part, "b": part, "c": part}, tmp_path / "m.pt")
    publish(tmp_path / "m.pt", str(tmp_path / "place"), step=1)
    (tmp_path / "out").mkdir()
    limited = (
        "import resource, sys\n"
        "from airflow_provider_ocidist.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = ["checkpoints", "export", tmp_path / "place", tmp_path / "out" / "new", "--to", "safetensors"]
    done = subprocess.run(
        [sys.executable, "-c", limited, *words], stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("ocidist: the weights cannot be written: ")
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []


def test_a_manifest_of_another_program_above_a_place_is_in_no_commands_way(place, tmp_path, capsys):
    work = tmp_path / "work"
    shutil.copytree(place, work / "checkpoints" / "train-g0")
    (work / "target").mkdir()
    for folder in (".", "checkpoints", "target"):
        (work / folder / "manifest.json").write_text('{"metadata": {"dbt_version": "1.8"}, "nodes": {}}')
    assert ocidist("list", work, "--json") == 0
    assert [each["step"] for each in json.loads(capsys.readouterr().out)] == [30, 20, 10]
    assert ocidist("verify", work) == 0
    assert "3 checkpoints read: 0 damaged" in capsys.readouterr().out
    assert ocidist("fetch", work, tmp_path / "here") == 0
    assert (tmp_path / "here" / "step-30.pt").exists()


def test_prune_leaves_a_checkpoint_that_is_named_by_itself(place, capsys):
    assert ocidist("prune", place / "step-10.pt", "--keep", 1, "--remains", "--yes") == 0
    assert "0 checkpoints" in capsys.readouterr().out
    assert len(checkpoints.complete(str(place))) == 3


def _equal(found: dict[str, torch.Tensor]) -> bool:
    return found.keys() == WEIGHTS.keys() and all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS)


def test_the_weights_in_a_file_of_torch_become_safetensors(place, tmp_path):
    assert ocidist("export", place, tmp_path / "model.safetensors", "--to", "safetensors") == 0
    assert _equal(safetensors.load_file(tmp_path / "model.safetensors"))
    assert {path.name for path in tmp_path.iterdir()} == {"program", "place", "model.safetensors"}


def test_a_distributed_checkpoint_becomes_safetensors(tmp_path):
    from torch.distributed import checkpoint as dcp

    folder = tmp_path / "program" / "step-5"
    dcp.save({"model": WEIGHTS, "optimizer": {"state": torch.ones(3)}}, checkpoint_id=folder, no_dist=True)
    publish(folder, str(tmp_path / "place"), step=5)
    assert ocidist("export", tmp_path / "place", tmp_path / "new", "--to", "safetensors") == 0
    assert _equal(safetensors.load_file(tmp_path / "new"))


BESIDE_A_MODEL = {
    "rng": {"rng": torch.get_rng_state()},
    "loss": {"best_loss": torch.tensor(0.25)},
    "both": {"cuda_rng_state": torch.ones(8, dtype=torch.uint8), "epoch": torch.tensor(3)},
    "optimizer": {"optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}, "lr": torch.tensor([0.1])}},
}


@pytest.mark.parametrize("beside", BESIDE_A_MODEL)
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("depth", [1, 3])
def test_tensors_beside_a_model_are_not_taken_for_it(tmp_path, beside, is_first, depth):
    model = {"model": WEIGHTS} if depth == 1 else {"state": {"net": {"model": WEIGHTS}}}
    parts = [BESIDE_A_MODEL[beside], model] if is_first else [model, BESIDE_A_MODEL[beside]]
    torch.save({name: value for part in parts for name, value in part.items()}, tmp_path / "m.pt")
    publish(tmp_path / "m.pt", str(tmp_path / "place"), step=1)
    key = next(iter(model)) if depth == 1 else "state.net.model"
    assert ocidist("export", tmp_path / "place", tmp_path / "new", "--to", "safetensors") == 0
    assert ocidist("export", tmp_path / "place", tmp_path / "named", "--to", "safetensors", "--key", key) == 0
    assert _equal(safetensors.load_file(tmp_path / "new"))
    assert _equal(safetensors.load_file(tmp_path / "named"))


def test_weights_at_two_depths_are_asked_for_rather_than_halved(tmp_path, capsys):
    torch.save({"head": torch.ones(2, 2), "trunk": WEIGHTS}, tmp_path / "m.pt")
    publish(tmp_path / "m.pt", str(tmp_path / "place"), step=1)
    assert ocidist("export", tmp_path / "place", tmp_path / "new", "--to", "safetensors") == 2
    assert "--key NAME; it has: ., trunk" in capsys.readouterr().err
    assert ocidist("export", tmp_path / "place", tmp_path / "new", "--to", "safetensors", "--key", ".") == 0
    assert set(safetensors.load_file(tmp_path / "new")) == {"head"}


def test_tied_weights_are_written_twice_rather_than_refused(tmp_path):
    tied = torch.ones(4, 4)
    torch.save({"embedding": tied, "head": tied}, tmp_path / "m.pt")
    publish(tmp_path / "m.pt", str(tmp_path / "place"), step=1)
    assert ocidist("export", tmp_path / "place", tmp_path / "new", "--to", "safetensors") == 0
    assert set(safetensors.load_file(tmp_path / "new")) == {"embedding", "head"}


def test_the_layout_of_hugging_face_has_the_weights_and_what_stands_beside(tmp_path):
    folder = tmp_path / "program" / "checkpoint-5"
    folder.mkdir(parents=True)
    torch.save(WEIGHTS, folder / "pytorch_model.bin")
    torch.save({}, folder / "optimizer.pt")
    beside = {"config.json", "tokenizer.json", "spiece.model", "added_tokens.json", "modeling_own.py"}
    of_the_training = {
        "trainer_state.json",
        "rng_state.pth",
        "training_args.bin",
        "scheduler.pt",
        "__0_0.distcp",
    }
    # A description that is none would be an error.
    assert weight_files.is_of_the_training(".metadata")
    for name in beside | of_the_training:
        (folder / name).write_text("{}")
    publish(folder, str(tmp_path / "place"), step=5)
    assert ocidist("export", tmp_path / "place", tmp_path / "new", "--to", "huggingface") == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"model.safetensors", *beside}
    assert _equal(safetensors.load_file(tmp_path / "new" / "model.safetensors"))


class Evil:
    """What writes a file when it is unpickled."""

    def __init__(self, proof):
        self.proof = proof

    def __reduce__(self):
        return (self.proof.write_text, ("x",))


def test_code_in_a_checkpoint_is_never_run(tmp_path, capsys):
    (tmp_path / "m.pt").write_bytes(pickle.dumps(Evil(tmp_path / "run")))
    publish(tmp_path / "m.pt", str(tmp_path / "place"), step=1)
    assert ocidist("export", tmp_path / "place", tmp_path / "new", "--to", "safetensors") == 2
    assert "torch cannot load it without running its code" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "new").exists()


def _distributed(tmp_path, state=None, change=lambda metadata: metadata):
    """Publish a checkpoint of torch.distributed.checkpoint whose description is changed; return its place."""
    from torch.distributed import checkpoint as dcp

    folder = tmp_path / "program" / "step-5"
    dcp.save({"model": WEIGHTS, **(state or {})}, checkpoint_id=folder, no_dist=True)
    description = folder / ".metadata"
    description.write_bytes(pickle.dumps(change(pickle.loads(description.read_bytes()))))
    publish(folder, str(tmp_path / "place"), step=5)
    return tmp_path / "place"


def test_code_in_the_description_of_a_distributed_checkpoint_is_never_run(tmp_path, capsys):
    place = _distributed(tmp_path, change=lambda _: Evil(tmp_path / "run"))
    assert ocidist("export", place, tmp_path / "new", "--to", "safetensors") == 2
    assert "step-5: its .metadata cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("field", ["planner_data", "storage_meta", "version"])
def test_code_beside_a_true_description_is_never_run(tmp_path, field):
    place = _distributed(
        tmp_path, change=lambda metadata: dataclasses.replace(metadata, **{field: Evil(tmp_path / "run")})
    )
    ocidist("export", place, tmp_path / "new", "--to", "safetensors")
    assert not (tmp_path / "run").exists()


def test_an_object_that_is_code_is_left_out_of_a_distributed_checkpoint(tmp_path):
    place = _distributed(tmp_path, {"extra": Evil(tmp_path / "run"), "step": 5})
    assert ocidist("export", place, tmp_path / "new", "--to", "safetensors") == 0
    assert not (tmp_path / "run").exists()
    assert _equal(safetensors.load_file(tmp_path / "new"))


def test_a_distributed_checkpoint_names_no_file_outside_it(tmp_path, capsys):
    def moved(metadata):
        for info in metadata.storage_data.values():
            info.relative_path = f"../step-5/{info.relative_path}"
        return metadata

    assert (
        ocidist("export", _distributed(tmp_path, change=moved), tmp_path / "new", "--to", "safetensors") == 2
    )
    assert "names a file outside the checkpoint" in capsys.readouterr().err


def test_the_objects_of_a_distributed_checkpoint_have_their_places_and_types(tmp_path):
    state = {
        "layers": [torch.ones(2, dtype=torch.bfloat16), {"a": torch.zeros(1)}],
        "step": 7,
        "names": ("x", 1),
    }
    _distributed(tmp_path, state)
    found = dcp_weights.read(tmp_path / "program" / "step-5")
    assert _equal(found["model"])
    assert found["layers"][0].dtype == torch.bfloat16
    assert torch.equal(found["layers"][1]["a"], torch.zeros(1))
    assert (found["step"], found["names"]) == (7, ("x", 1))


def test_a_cut_off_description_is_one_line(tmp_path, capsys):
    place = _distributed(tmp_path)
    folder = tmp_path / "program" / "step-5"
    (folder / ".metadata").write_bytes((folder / ".metadata").read_bytes()[:100])
    publish(folder, str(place), step=6)
    assert ocidist("export", place, tmp_path / "new", "--to", "safetensors") == 2
    assert ".metadata cannot be read" in capsys.readouterr().err


OTHER = {name: tensor + 1 for name, tensor in WEIGHTS.items()}
FIRST_PART, SECOND_PART = (dict([item]) for item in WEIGHTS.items())


def _files(tmp_path, files):
    """Publish safetensors files, and texts; return the place."""
    folder = tmp_path / "program" / "step-5"
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            (folder / name).write_text(content)
        elif name.endswith("safetensors"):
            safetensors.save_file(content, folder / name)
        else:
            torch.save(content, folder / name)
    publish(folder, str(tmp_path / "place"), step=5)
    return tmp_path / "place"


TWO_MODELS = {
    "two of Accelerate": ("model.safetensors", "model_1.safetensors"),
    "a model and its average": ("model.safetensors", "ema.safetensors"),
    "a folder of diffusers": (
        "unet/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
    ),
}


@pytest.mark.parametrize("names", TWO_MODELS.values(), ids=TWO_MODELS)
def test_two_models_in_safetensors_are_asked_for_rather_than_merged(tmp_path, capsys, names):
    place = _files(tmp_path, dict(zip(names, (WEIGHTS, OTHER), strict=True)))
    assert ocidist("export", place, tmp_path / "new", "--to", "safetensors") == 2
    err = capsys.readouterr().err
    assert "which file contains the model's weights?" in err
    assert all(name in err for name in names)
    assert ocidist("export", place, tmp_path / "new", "--to", "safetensors", "--file", names[0]) == 0
    assert _equal(safetensors.load_file(tmp_path / "new"))


INDEX = json.dumps({"weight_map": {"layer.weight": "a.safetensors", "layer.bias": "b.safetensors"}})
SHARDS = {
    "by number": {
        "model-00001-of-00002.safetensors": FIRST_PART,
        "model-00002-of-00002.safetensors": SECOND_PART,
    },
    "by index": {
        "a.safetensors": FIRST_PART,
        "b.safetensors": SECOND_PART,
        "m.safetensors.index.json": INDEX,
    },
    "of torch": {
        "pytorch_model-00001-of-00002.bin": FIRST_PART,
        "pytorch_model-00002-of-00002.bin": SECOND_PART,
    },
}


@pytest.mark.parametrize("files", SHARDS.values(), ids=SHARDS)
@pytest.mark.parametrize("beside", [{}, {"sub/ema.safetensors": OTHER}], ids=["alone", "beside another"])
def test_the_shards_of_one_model_become_one_file(tmp_path, files, beside):
    place = _files(tmp_path, files | beside)
    named = ["--file", next(iter(files))] if beside else []
    assert ocidist("export", place, tmp_path / "new", "--to", "safetensors", *named) == 0
    assert _equal(safetensors.load_file(tmp_path / "new"))


@pytest.mark.parametrize("files", SHARDS.values(), ids=SHARDS)
def test_a_model_without_one_of_its_shards_is_refused(tmp_path, capsys, files):
    first, *_ = files
    place = _files(tmp_path, {name: content for name, content in files.items() if name != first})
    assert ocidist("export", place, tmp_path / "new", "--to", "safetensors") == 2
    assert "not there" in (err := capsys.readouterr().err) or "only 1 of 2 parts are there" in err


def test_a_tensor_in_two_shards_is_refused(tmp_path, capsys):
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    place = _files(tmp_path, dict.fromkeys(names, WEIGHTS))
    assert ocidist("export", place, tmp_path / "new", "--to", "safetensors") == 2
    assert "has layer.bias, which another part" in capsys.readouterr().err


def test_the_named_file_is_taken_though_it_lies_beside_a_distributed_checkpoint(tmp_path):
    _distributed(tmp_path, {"model": OTHER})
    place = _files(tmp_path, {"averaged.safetensors": WEIGHTS})
    named = ["--file", "averaged.safetensors"]
    assert ocidist("export", place, tmp_path / "new", "--to", "safetensors", *named) == 0
    assert _equal(safetensors.load_file(tmp_path / "new"))


def test_a_file_that_is_not_the_checkpoint_is_refused(place, tmp_path, capsys):
    assert ocidist("export", place, tmp_path / "new", "--to", "safetensors", "--file", "ema.pt") == 2
    assert "--file ema.pt: the checkpoint is one file, step-30.pt" in capsys.readouterr().err


def test_a_key_is_refused_where_a_format_has_no_entries(tmp_path, capsys):
    place = _files(tmp_path, {"model.safetensors": WEIGHTS})
    assert ocidist("export", place, tmp_path / "new", "--to", "safetensors", "--key", "model") == 2
    assert "--key model: model.safetensors has no entries" in capsys.readouterr().err


def test_deepspeeds_parts_are_left_to_deepspeed(tmp_path, capsys):
    folder = tmp_path / "program" / "global_step5"
    folder.mkdir(parents=True)
    for rank in (0, 1):
        torch.save({}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    torch.save({}, folder / "mp_rank_00_model_states.pt")
    publish(folder, str(tmp_path / "place"), step=5)
    assert ocidist("export", tmp_path / "place", tmp_path / "new", "--to", "safetensors") == 2
    assert "run the zero_to_fp32.py" in capsys.readouterr().err


def test_a_plain_folder_is_what_the_program_wrote(place, tmp_path):
    assert ocidist("export", place, tmp_path / "plain.pt") == 0
    assert (tmp_path / "plain.pt").read_bytes() == (tmp_path / "program" / "step-30.pt").read_bytes()
