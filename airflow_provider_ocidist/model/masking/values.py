"""Which values are secrets: by their name, by their form. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

from airflow_provider_ocidist.model.masking.names import Weight, weight_of, word_set
from airflow_provider_ocidist.model.masking.patterns import lazily

MASK = "***"
_REFERENCE = lazily(
    r"(?:ocid1\.|oci://|vault://).*|(?:\{\{.*\}\}|\{%.*%\}|\$\{.*\}|\$\(.*\)|%\(.*\)s).*|<.*>"
    # In a text a value ends at the first space or brace.
    r"|\{\{|\{%|<[A-Za-z_-]*|\$\{[A-Z_][A-Z0-9_]*",
    re.DOTALL,
)
"""Values that only refer to a secret, as an OCID of Vault, or are placeholders: a password may begin with any sign."""
_VARIABLE = lazily(r"\$[A-Za-z_]\w*")
_NOTHING = word_set(
    """
    auto default false no none null off on true yes
    """
) | {"", MASK}
_PATH = lazily(r"(?:~|\.{1,2})?/(?:[\w.+@-]+/)*[\w.+@-]+/?")
_NUMBER = lazily(r"[-+]?\d{1,3}|[-+]?\d*\.\d+(?:[eE][-+]?\d+)?")
_METHOD = lazily(r"[a-z]+(?:[_-][a-z]+)*")
_METHODS = word_set(
    """
    anonymous api basic bearer config digest identity instance kerberos key ldap oauth oidc principal
    resource security session token user workload
    """
)
"""Words in the names of ways to authenticate: `auth: resource_principal`."""
_TOKENISH = lazily(r"[\w+/=.~!@#%^*:-]{8,}")
_RANDOM = lazily(r"[A-Za-z0-9+/_=-]{16,}")
_UUID = lazily(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_DIGEST = lazily(r"[0-9a-f]{32,128}")
_LEAST_NUMBER = 1000
"""Least number that is a password where it is no text."""
_LEAST_ENTROPY = 3.2
"""Least bits per character of a secret; words and dates of the length in question have fewer, or no digits."""


def is_secret(name: Any, value: Any) -> bool:
    """Return whether a value under this name, in a mapping or after a flag, is a secret."""
    weight = weight_of(str(name))
    if isinstance(value, int) and not isinstance(value, bool):
        return weight is Weight.SURE and abs(value) >= _LEAST_NUMBER
    return isinstance(value, str) and is_secret_of(weight, value)


def is_secret_of(weight: Weight, value: str) -> bool:
    """Return whether a value is a secret under a name of this weight."""
    if weight is Weight.NONE or is_ordinary(value):
        return False
    if weight is Weight.POSSIBLE:
        return looks_random(value)
    return weight is Weight.SURE or not (_NUMBER().fullmatch(value) or _is_method(value))


def is_ordinary(value: str) -> bool:
    """Return whether a value is no secret under any name: nothing, a reference, a path."""
    value = value.strip("'\"")
    if value.lower() in _NOTHING or _REFERENCE().fullmatch(value) or _VARIABLE().fullmatch(value):
        return True
    return bool(_PATH().fullmatch(value)) and not any(looks_random(part) for part in value.split("/"))


def looks_random(value: str) -> bool:
    """Return whether a value looks randomly generated; digests and UUIDs name things."""
    if not _RANDOM().fullmatch(value) or _UUID().fullmatch(value) or _DIGEST().fullmatch(value):
        return False
    has_both = any(each.isdigit() for each in value) and any(each.isalpha() for each in value)
    return has_both and _entropy(value) >= _LEAST_ENTROPY


def looks_made(value: str) -> bool:
    """Return whether a value has letters and digits and the length of a token: no word of a sentence has."""
    has_both = any(each.isdigit() for each in value) and any(each.isalpha() for each in value)
    return has_both and bool(_TOKENISH().fullmatch(value))


def _is_method(value: str) -> bool:
    return bool(_METHOD().fullmatch(value)) and all(word in _METHODS for word in re.split("[_-]", value))


def _entropy(value: str) -> float:
    counts = Counter(value)
    return -sum(count / len(value) * math.log2(count / len(value)) for count in counts.values())
