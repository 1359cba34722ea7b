"""The interpreter of nodes that have Accelerate, DeepSpeed and scikit-learn; `make test-launchers` installs it."""

from __future__ import annotations

from pathlib import Path

PYTHON = str(Path(__file__).parents[2] / ".venv-launchers" / "bin" / "python")
