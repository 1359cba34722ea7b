"""Accelerate's own test of its own machinery, which trains on all processes and on one, and compares."""

from __future__ import annotations

import os
from pathlib import Path

import death
from accelerate.test_utils.scripts.test_script import main

here = Path.cwd()
# It wants a folder that all processes see.
os.chdir(os.environ["SHARED"])
main()
os.chdir(here)
death.write_end()
