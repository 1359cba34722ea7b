"""Output masking: masks this node's secrets in forwarded output, logs and reports."""

from __future__ import annotations

import logging
from collections.abc import Collection

from airflow_provider_ocidist.model.masking import MASK, forms_of, masked_text

LONGEST_HELD = 4096
"""Most bytes of output that are held back as a possible start of a secret."""


class OutputMask:
    """Masks secrets in a stream that comes in pieces, also where one is cut in two."""

    def __init__(self, secrets: Collection[str]) -> None:
        self._secrets = [form.encode(errors="surrogateescape") for form in forms_of(secrets)]
        self._held = b""

    def __call__(self, piece: bytes) -> bytes:
        """Return the output that can be forwarded; the rest may be the start of a secret."""
        if not self._secrets:
            return piece
        text = self._masked(self._held + piece)
        kept = len(text) - self._begun(text)
        self._held = text[kept:]
        return text[:kept]

    def rest(self) -> bytes:
        """Return what was held back, at the end of the stream."""
        held, self._held = self._held, b""
        return held

    def _masked(self, text: bytes) -> bytes:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK.encode())
        return text

    def _begun(self, text: bytes) -> int:
        """Return how many bytes at the end of a text may begin a secret."""
        if text.endswith((b"\n", b"\r")):
            return 0
        return max((_overlap(text, secret) for secret in self._secrets), default=0)


def _overlap(text: bytes, secret: bytes) -> int:
    for length in range(min(len(text), len(secret) - 1, LONGEST_HELD), 0, -1):
        if text.endswith(secret[:length]):
            return length
    return 0


class MaskingFormatter(logging.Formatter):
    """Formats as another formatter, and masks secrets."""

    def __init__(self, inner: logging.Formatter, secrets: Collection[str]) -> None:
        super().__init__()
        self.inner = inner
        self._secrets = frozenset(secrets)

    def format(self, record: logging.LogRecord) -> str:
        return masked_text(self.inner.format(record), self._secrets)


def keep_from_log(secrets: Collection[str]) -> None:
    """Mask these secrets, and what has the form of one, in all that this process logs from now on."""
    for handler in logging.getLogger().handlers:
        inner = handler.formatter or logging.Formatter()
        if isinstance(inner, MaskingFormatter):
            inner = inner.inner
        handler.setFormatter(MaskingFormatter(inner, secrets))
