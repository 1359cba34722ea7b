"""Trees of files for tests: made, and read back as a mapping."""

from __future__ import annotations

import random
from pathlib import Path

from airflow_provider_ocidist.storage.stores.base import Store

ODD_NAMES = (
    "plain.txt",
    "with space.txt",
    "ünïcödé/日本語 名.bin",
    ".hidden/.dotfile",
    "deep/er/and/deeper/file",
    "percent%20and+plus&amp;=?#.txt",
    "quote'and\"double.txt",
    "[brackets]*{braces}.txt",
    "trailing.dots...",
    "-dash",
    "~tilde",
    "a" * 200,
    "line\\backslash",
)


def make_tree(root: Path, sizes: dict[str, int] | None = None) -> dict[str, bytes]:
    """Write files and return what is in them, by name."""
    chosen = sizes if sizes is not None else {name: 10 + 37 * index for index, name in enumerate(ODD_NAMES)}
    noise = random.Random(7)
    tree = {name: noise.randbytes(size) for name, size in chosen.items()}
    if sizes is None:
        tree["empty"] = b""
        tree["deep/empty too"] = b""
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tree


def read_tree(root: Path) -> dict[str, bytes]:
    """Return every file below a folder, whatever its name."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def read_store(store: Store) -> dict[str, bytes]:
    return {entry.name: store.read(entry.name) for entry in store.list()}
