"""The needed shell syntax: variables in a command, and whether the command needs a shell. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from airflow_provider_ocidist.launchers.command_line import CommandLine

TOKEN = re.compile(
    r"(?P<single>'[^']*')|(?P<escaped>\\.)|(?P<quote>\")|\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)\})",
    re.DOTALL,
)
"""Syntax that affects variables; there are none in single quotes and after a backslash."""
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
"""First words that are not programs."""


def joined_lines(text: str) -> str:
    """Join lines that end in a backslash, as a shell does."""
    return text.replace("\\\n", " ").strip()


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a command with known variables replaced by their values, each quoted as one word."""
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


def argument_with(text: str, values: Mapping[str, str]) -> str:
    """Return one argument with known variables replaced."""
    return VARIABLE.sub(lambda found: values.get(found[1] or found[2], found[0]), text)


def variables(text: str) -> list[str]:
    """Return the names of variables that a shell would still replace."""
    found = (match["name"] or match["braced"] for match in TOKEN.finditer(text))
    return [name for name in found if name]


def needs_shell(text: str) -> bool:
    """Return whether a command needs a shell: operators, variables, leading assignments, built-in words."""
    splitter = shlex.shlex(text, posix=True, punctuation_chars=OPERATORS)
    splitter.whitespace = " \t\r"
    splitter.whitespace_split = True
    words = list(splitter)
    operators = any(set(word) <= set(OPERATORS) for word in words if word)
    first = words[0] if words else ""
    return operators or bool(variables(text) or ASSIGNMENT.match(first)) or "$(" in text or first in BUILT_IN


def split(text: str) -> list[str]:
    """Return the words of a command. Raises ValueError for an unclosed quotation."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"cannot be split into arguments: {str(error).lower()}") from error


def command(text: str, arguments: Sequence[str]) -> CommandLine:
    """Return a shell that runs the user's own command, as ADS's driver does."""
    script = " ".join([text, *map(shlex.quote, arguments)])
    return CommandLine(launcher="command", script="bash", args=("-c", script))
