"""Words in the names of checkpoints: numbers by themselves, and hashes, of which each save may have a new one. Pure."""

from __future__ import annotations

import re

NUMBER = re.compile(r"(?<![0-9A-Za-z])[0-9]+(?![0-9A-Za-z])")
HASH = re.compile("(?=.*[a-f])(?=.*[0-9])[0-9a-f]{6,}", re.IGNORECASE)
"""A whole word that is a hash in hexadecimal digits, whatever else the names of a program have shown."""
MAY_BE_HASH = re.compile(r"(?<![0-9A-Za-z])(?=[0-9A-Za-z]*[0-9][A-Za-z])[0-9A-Za-z]{5,}(?![0-9A-Za-z])")
"""Word of letters and digits that may be a hash or an id in any digits, and may also name a model: `resnet50x1`."""
MOST_MODELS = 2
"""Most names that differ only in their numbers and still name different models: `resnet18.pt`, `resnet50.pt`."""
