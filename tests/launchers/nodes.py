"""The interpreter of nodes that have Accelerate, DeepSpeed and scikit-learn; `make test` installs it."""

from __future__ import annotations

from pathlib import Path

CACHE = {"PYTHONDONTWRITEBYTECODE": ""}
"""Variables of such nodes: one gang imports DeepSpeed six times; compiling it anew takes longer than the rest."""

PYTHON = str(Path(__file__).parents[2] / ".venv-launchers" / "bin" / "python")
