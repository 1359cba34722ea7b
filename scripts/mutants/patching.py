"""Put a mutant into the functions that its module has already made, where nothing differs but what functions do.

To import the module anew, and whatever imported it, takes longer than most of the tests.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from types import CodeType, FunctionType

AT_ONCE = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Functions that run where they stand."""

Place = tuple[str, int]
"""A function's name and its first line."""


def place_of(code: CodeType) -> Place:
    return code.co_name, code.co_firstlineno


@dataclass(frozen=True)
class Functions:
    """The functions of a file that are there after all was imported."""

    code: CodeType
    """Code of the module."""
    alive: Mapping[Place, list[FunctionType]]
    ran: frozenset[Place]
    """Functions whose effect is there already: they have run."""

    def changed_by(self, text: str) -> Mapping[Place, CodeType] | None:
        """Return the code that a mutant has in place of ours; None when it differs in what has run at the import."""
        mutant = compile(text, self.code.co_filename, "exec", dont_inherit=True)
        if _shape(self.code, whole=False) != _shape(mutant, whole=False):
            return None
        ours, theirs = list(_inner(self.code)), list(_inner(mutant))
        if [code.co_name for code in ours] != [code.co_name for code in theirs]:
            return None
        places = [place_of(code) for code in ours]
        changed = {
            place: new
            for place, old, new in zip(places, ours, theirs, strict=True)
            if _shape(old, whole=True) != _shape(new, whole=True)
        }
        if any(place in self.ran or places.count(place) > 1 for place in changed):
            return None
        return changed

    def put(self, changed: Mapping[Place, CodeType]) -> bool:
        """Have functions run the code of a mutant; return whether all could take it, and there is one at all."""
        if changed and not any(self.alive.get(place) for place in changed):
            return False
        try:
            for place, code in changed.items():
                for function in self.alive.get(place, ()):
                    function.__code__ = code
        except ValueError:  # it has other variables of the functions around it
            return False
        return True


def functions_of(path: str, text: str, ran: Iterable[Place]) -> Functions:
    """Find the functions that a file has made."""
    # Ours and the tests may have frozen what they have: none of it would be found.
    gc.unfreeze()
    alive: dict[Place, list[FunctionType]] = {}
    for each in gc.get_objects():
        # Not `isinstance`: that asks stand-ins for their class, and torch's warn when they are asked.
        if type(each) is FunctionType and each.__code__.co_filename == path:
            alive.setdefault(place_of(each.__code__), []).append(each)
    return Functions(compile(text, path, "exec", dont_inherit=True), alive, frozenset(ran))


def _inner(code: CodeType) -> Iterator[CodeType]:
    """Return the code of all functions that the import makes or that those make, from the top of the file."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if _is_made(constant):
                yield constant
            yield from _inner(constant)


def _is_made(code: CodeType) -> bool:
    """Return whether the code makes a function that is called later; the body of a class runs at once."""
    return bool(code.co_flags & CO_OPTIMIZED) and code.co_name not in AT_ONCE


def _shape(code: CodeType, *, whole: bool) -> tuple[object, ...]:
    """Return what code does but for line numbers; unless `whole`, of functions that it makes only their names."""
    constants = [
        each.co_name
        if isinstance(each, CodeType) and _is_made(each) and not whole
        else _shape(each, whole=whole)
        if isinstance(each, CodeType)
        else (type(each), repr(each))
        for each in code.co_consts
    ]
    return (
        code.co_name,
        code.co_code,
        getattr(code, "co_exceptiontable", None),  # from Python 3.11 on
        code.co_flags,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        tuple(constants),
    )
