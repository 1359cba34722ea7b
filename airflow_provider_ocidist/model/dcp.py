"""DCP: the names of the files in which torch.distributed.checkpoint saves."""

from __future__ import annotations

import re

METADATA = ".metadata"
"""File that is written last, on one node, with the names of all processes' files: a folder that has it is whole."""
ENDING = ".distcp"
"""Ending of the names of the processes' files, which hold the state."""
PART = rf"__\d+_\d+{re.escape(ENDING)}"
"""Names of the processes' files, as a regular expression."""
