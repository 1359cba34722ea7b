"""Two checkpoints are compared by their numbers."""

from __future__ import annotations

import pickle
import random
import zipfile
from pathlib import Path

import pytest

from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest, ManifestFile
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.storage.weights import weights_digest


def stored(folder: Path, files: dict[str, bytes]) -> str:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    known = tuple(
        ManifestFile(path=name, size=len(content), sha256=str(hash(content)))
        for name, content in files.items()
    )
    manifest = Manifest(version=2, name="step-1", created_at=1.0, files=known)
    (folder / MANIFEST).write_bytes(manifest.to_json())
    return weights_digest(open_store(str(folder), None), "")


def archive(path: Path, tensors: list[bytes], pickled: object) -> bytes:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("step/data.pkl", pickle.dumps(pickled))
        for number, tensor in enumerate(tensors):
            file.writestr(f"step/data/{number}", tensor)
    return path.read_bytes()


@pytest.mark.parametrize("number", range(10))
def test_a_bit_of_a_tensor_counts_and_the_pickle_beside_it_does_not(tmp_path: Path, number: int) -> None:
    chance = random.Random(number)
    tensors = [chance.randbytes(chance.randint(1, 50)) for _ in range(chance.randint(1, 12))]
    changed = list(tensors)
    place = chance.randrange(len(tensors))
    changed[place] = bytes([changed[place][0] ^ 1]) + changed[place][1:]
    own, same, other = (
        stored(tmp_path / name, {"model.pt": archive(tmp_path / f"{name}.zip", content, pickled)})
        for name, content, pickled in (("a", tensors, 1), ("b", tensors, "two"), ("c", changed, 1))
    )
    assert own == same
    assert own != other


@pytest.mark.parametrize("number", range(10))
def test_each_file_of_a_distributed_checkpoint_counts_whole_and_its_description_does_not(
    tmp_path: Path, number: int
) -> None:
    chance = random.Random(number)
    tensors = [chance.randbytes(chance.randint(1, 50)) for _ in range(chance.randint(2, 6))]
    # As torch writes it: one archive after another in one file.
    files = {
        f"__{rank}_0.distcp": b"".join(
            archive(tmp_path / f"{rank}.{at}", [tensor], 1) for at, tensor in enumerate(tensors)
        )
        for rank in range(2)
    }
    first = files["__1_0.distcp"]
    changed = {**files, "__1_0.distcp": bytes([first[0] ^ 1]) + first[1:]}
    own, same, other = (
        stored(tmp_path / name, {**content, ".metadata": described})
        for name, content, described in (("a", files, b"x"), ("b", files, b"y"), ("c", changed, b"x"))
    )
    assert own == same
    assert own != other


def test_real_tensors_are_the_same_after_their_state_was_loaded_once(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: there is none for PyPy")

    def saved(state: object) -> bytes:
        path = tmp_path / "file.pt"
        torch.save(state, path)
        return path.read_bytes()

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    first = saved(state)
    loaded = torch.load(tmp_path / "file.pt", weights_only=True)
    optimizer.load_state_dict(loaded["optimizer"])
    again = saved({"model": loaded["model"], "optimizer": optimizer.state_dict()})
    assert stored(tmp_path / "a", {"m.pt": first}) == stored(tmp_path / "b", {"m.pt": again})
    with torch.no_grad():
        model.weight[0, 0] += 1
    assert stored(tmp_path / "c", {"m.pt": saved(state)}) != stored(tmp_path / "d", {"m.pt": first})


def test_a_file_of_another_kind_counts_whole(tmp_path: Path) -> None:
    assert stored(tmp_path / "a", {"w.bin": b"one"}) != stored(tmp_path / "b", {"w.bin": b"two"})
