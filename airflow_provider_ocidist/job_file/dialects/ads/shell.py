"""The little that must be known of a shell: variables in a command, and whether it takes a shell to run it. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from airflow_provider_ocidist.launchers.command_line import Command

TOKEN = re.compile(
    r"(?P<single>'[^']*')|(?P<escaped>\\.)|(?P<quote>\")|\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)\})",
    re.DOTALL,
)
"""What has a meaning of its own for variables; in single quotes and after a backslash nothing is one."""
VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
OPERATORS = "();<>|&`\n"
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
BUILT_IN = {
    "cd",
    "exec",
    "export",
    "set",
    "source",
    ".",
    "eval",
    "if",
    "for",
    "while",
    "test",
    "ulimit",
    "unset",
}
"""First words that are no program."""


def one_line(text: str) -> str:
    """Return a command whose lines end in a backslash as the one line that they are to a shell."""
    return text.replace("\\\n", " ").strip()


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a command in which known variables are replaced by their values, quoted so that they stay one word."""
    in_double_quotes = False

    def value(found: re.Match[str]) -> str:
        nonlocal in_double_quotes
        if found["quote"]:
            in_double_quotes = not in_double_quotes
        name = found["name"] or found["braced"]
        if name not in values:
            return found[0]
        if in_double_quotes:
            return re.sub(r'([\\"$`])', r"\\\1", values[name])
        return shlex.quote(values[name])

    return TOKEN.sub(value, text)


def expanded(text: str, values: Mapping[str, str]) -> str:
    """Return one argument in which known variables are replaced."""
    return VARIABLE.sub(lambda found: values.get(found[1] or found[2], found[0]), text)


def variables(text: str) -> list[str]:
    """Return the names of the variables that a shell would still replace."""
    found = (match["name"] or match["braced"] for match in TOKEN.finditer(text))
    return [name for name in found if name]


def needs_shell(text: str) -> bool:
    """Return whether only a shell can run a command: operators, variables, assignments before it, built-in words."""
    splitter = shlex.shlex(text, posix=True, punctuation_chars=OPERATORS)
    splitter.whitespace = " \t\r"
    splitter.whitespace_split = True
    words = list(splitter)
    operators = any(set(word) <= set(OPERATORS) for word in words if word)
    first = words[0] if words else ""
    return operators or bool(variables(text) or ASSIGNMENT.match(first)) or "$(" in text or first in BUILT_IN


def split(text: str) -> list[str]:
    """Return the words of a command. Raises ValueError when a quotation has no end."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"cannot be split into arguments: {str(error).lower()}") from error


def command(text: str, arguments: Sequence[str]) -> Command:
    """Return a shell that runs the user's own command, as ADS's driver has it run."""
    script = " ".join([text, *map(shlex.quote, arguments)])
    return Command(launcher="command", script="bash", args=("-c", script))
