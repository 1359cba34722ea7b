"""The needed shell syntax: variables in a command, and whether the command needs a shell. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from airflow_provider_ocidist.launchers.command_line import CommandLine, without_quoted

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
    """Return whether a command needs a shell: operators, variables, leading assignments, built-in words, patterns."""
    splitter = shlex.shlex(text, posix=True, punctuation_chars=OPERATORS)
    splitter.whitespace = " \t\r"
    splitter.whitespace_split = True
    words = list(splitter)
    has_operators = not set(without_quoted(text)).isdisjoint(OPERATORS)
    first = words[0] if words else ""
    if has_operators or first in BUILT_IN:
        return True
    return bool(variables(text) or ASSIGNMENT.match(first)) or any(expansions(text))


BLANK = " \t\r\n"
PARAMETER = re.compile(r"\$[\w{(\[?!#@*$'\"-]")
TILDE = re.compile(r"(?:[A-Za-z_]\w*=(?:.*:)?)?~")
"""Beginning of a word whose `~` is a home folder."""
OF_OPTION = re.compile(r"-.*=.*|[^/]*=[^/]*\[")
"""Beginning of a word, up to a pattern, that no file has: `--shards=data/*`, `layers=[1,2]`. It stays as it is."""


def expansions(text: str) -> Iterator[str]:
    """Yield the beginning of each word up to each place of which a shell makes something else.

    That are patterns, home folders, braces, parameters, commands and operators; not in quotes, nor after a backslash.
    """
    word, quote, place = "", "", 0
    while place < len(text):
        character, after = text[place], text[place + 1 :]
        place += 1
        if character == "\\" and quote != "'":
            # Within double quotes shlex keeps this backslash, and a shell does not.
            if quote and after[:1] in ("$", "`"):
                yield word
            word += character + after[:1]
            place += 1
            continue
        if character in ("'", '"') and quote in ("", character):
            quote = "" if quote else character
        elif not quote and character in BLANK:
            word = ""
            continue
        word += character
        if quote != "'" and (character == "`" or PARAMETER.match(character + after[:1])):
            # At the end of a quotation it is a plain dollar.
            if not (quote and after[:1] == quote):
                yield word
        elif not quote and _is_special(word, re.split(f"[{BLANK}]", after, maxsplit=1)[0]):
            yield word


def _is_special(word: str, rest: str) -> bool:
    """Return whether a shell expands what a word ends with; `rest`: of the word."""
    match word[-1]:
        case "*" | "?":
            return True
        case "[":
            return "]" in rest
        case "~":
            return bool(TILDE.fullmatch(word))
        case "{":
            return not word.endswith("${") and "}" in rest and ("," in rest or ".." in rest)
        case "#":
            return len(word) == 1
        case last:
            return last in OPERATORS


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
