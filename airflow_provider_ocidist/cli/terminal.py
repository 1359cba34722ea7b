"""What all commands share: how they print, and how they end."""

from __future__ import annotations

import json
import sys
from typing import Any

FINE, WRONG, UNUSABLE, FAILED = 0, 1, 2, 3
"""Exit codes: all is well; the job file is wrong; the command could not be carried out; the training failed."""


class Unusable(Exception):
    """The command cannot be carried out; the message is one line for the user."""


def print_yaml(value: Any) -> None:
    import yaml

    say(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=2**20).rstrip())


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def say(text: str, style: str = "", *, stderr: bool = False) -> None:
    stream = sys.stderr if stderr else sys.stdout
    if not stream.isatty():
        print(text, file=stream)
        return
    from rich.console import Console
    from rich.text import Text

    Console(stderr=stderr, highlight=False).print(Text(text, style=style), soft_wrap=True)
