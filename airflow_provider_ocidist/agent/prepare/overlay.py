"""Overlay: a folder of packages above those of this node's interpreter, which stay as they are."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Overlay:
    """A virtual environment that sees everything that the interpreter sees; what is installed in it comes first.

    On a dedicated node it needs no write access to the image; where nodes share an interpreter, as on the emulator,
    no job changes another's packages.
    """

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def scripts(self) -> Path:
        return self.folder / "bin"

    @property
    def site_packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(self.folder)}))


def make_overlay(folder: Path) -> Overlay:
    """Make an empty overlay. Written out, as some distributions ship Python without the module `venv`."""
    overlay = Overlay(folder)
    # As the module `venv` does: an environment of an environment would see neither.
    base = Path(getattr(sys, "_base_executable", sys.executable))
    overlay.scripts.mkdir(parents=True)
    overlay.python.symlink_to(base)
    settings = f"home = {base.parent}\ninclude-system-site-packages = true\n"
    (folder / "pyvenv.cfg").write_text(settings)
    overlay.site_packages.mkdir(parents=True)
    below = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    # `addsitedir`, and not the bare path, so that path files in there count too, as of editable installs.
    lines = [f"import site; site.addsitedir({os.fspath(path)!r})\n" for path in below]
    (overlay.site_packages / "_below.pth").write_text("".join(lines))
    return overlay
