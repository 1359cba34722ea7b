"""What the documents hold: blocks to paste, links, headings; and how each block is tried."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_FENCE = re.compile(r"^([ ]*)```(\w*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A fenced block, without the spaces that its list item puts before it; `number` counts from 0 in its page."""

    document: str
    number: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.document}-{self.number}"


def name_of(path: Path) -> str:
    """Return a document's path below the root of the repository."""
    return path.relative_to(ROOT).as_posix()


def blocks_in(text: str, document: str = "") -> list[Block]:
    return [
        Block(document=document, number=number, language=language, text=textwrap.dedent(body))
        for number, (_, language, body) in enumerate(_FENCE.findall(text))
    ]


def blocks(*languages: str) -> list[Block]:
    """Return the blocks of all documents, or those in some languages."""
    found = (block for path in DOCUMENTS for block in blocks_in(path.read_text(), name_of(path)))
    return [block for block in found if not languages or block.language in languages]


def block(document: str, number: int) -> Block:
    return blocks_in((ROOT / document).read_text(), document)[number]


def modules_named_in(text: str) -> list[str]:
    """Return the files of Python that a document names in code with their folder, less the test after `::`."""
    spans = [span.strip("`") for span in (match[0] for match in _CODE.finditer(_FENCE.sub("", text)))]
    return [
        path
        for path in (span.partition("::")[0] for span in spans)
        if re.fullmatch(r"[\w./-]+/\w+\.py", path)
    ]


def prose(text: str) -> str:
    """Return a document without its code, in which brackets are no links and signs of a number no headings."""
    return _CODE.sub("code", _FENCE.sub("", text))


def links(text: str) -> list[str]:
    return _LINK.findall(prose(text))


def anchors(text: str) -> set[str]:
    """Return the fragments by which GitHub lets a document's headings be reached."""
    return set(_slugs(_HEADING.findall(_FENCE.sub("", text))))


def _slugs(headings: list[str]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for heading in headings:
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = seen[slug] = seen.get(slug, -1) + 1
        yield f"{slug}-{count}" if count else slug


@cache
def _anchors_of(path: Path) -> set[str]:
    return anchors(path.read_text())


def broken_links(text: str, path: Path) -> list[str]:
    """Return the links of a document at `path` that lead to no file, or to no heading of one."""
    return [link for link in links(text) if "://" not in link and not _leads(link, text, path)]


def _leads(link: str, text: str, path: Path) -> bool:
    place, _, anchor = unquote(link).partition("#")
    if not place:
        return anchor in anchors(text)
    target = (path.parent / place).resolve()
    if not anchor:
        return target.exists()
    return target.suffix == ".md" and target.exists() and anchor in _anchors_of(target)


def uneven_rows(text: str) -> Iterator[str]:
    """Yield the rows of tables that have another number of cells than the first row of their table."""
    columns = 0
    for line in _FENCE.sub("", text).splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        columns = columns or cells if cells else 0
        if cells != columns:
            yield line
