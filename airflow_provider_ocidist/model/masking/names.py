"""What a name implies of its value: a secret, a possible secret, or none. Pure."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

from airflow_provider_ocidist.model.masking.patterns import lazily


class Weight(IntEnum):
    """How strongly a name marks its value as a secret."""

    NONE = 0
    POSSIBLE = 1
    """The value is a secret only if it looks random."""
    LIKELY = 2
    """The value is a secret, unless it is a small number or the name of a method."""
    SURE = 3
    """The value is a secret."""


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


_SURE = lazily(
    r"passw|pass_?phrase|passcode|secret|credential|auth_?header|authorization|key_content|key_?file_dict|cookie"
    r"|conn(ection)?_?str(ing)?(_|$)|webhook_url|service_account_(json|info|key)|htpasswd"
    r"|(api|access|account|encryption|private|secret|signing|ssh|storage|service|shared|subscription)_?key(_|$)"
)
_WORDS = word_set(
    """
    auth bearer cred creds dsn jwt pass passwd pat pw pwd sas sig signature token
    """
)
_STRONG_WORDS = word_set(
    """
    bearer cred creds dsn jwt passwd pwd
    """
)
_DESCRIBING = word_set(
    """
    algorithm class count counts dim dir directory dropout enabled endpoint env expires expiry file filename
    folder format helper host ids index kind len length level limit manager method mode name names ocid path
    paths policy port position provider rate ratio required scope size sock socket store timeout ttl type
    types uri url user username version weight weights
    """
)
"""Last words of names whose values describe a secret and are none: PASSWORD_FILE, token_type."""
_AFTER_A_SECRET = word_set(
    """
    b64 backup base64 default dev main new old primary prod production read ro rw secondary staging test
    value write
    """
)
"""Words that may follow the word for a secret: HF_TOKEN_READ, DB_PASS_PROD."""
_OF_TEXTS = word_set(
    """
    added audio begin bos class cls decoder drop each encoder end eos extra first forced image img input
    label last mask max min n next num one output pad padding patch per prompt register sep special speech
    start stop sub target text unk video vision word
    """
)
"""Words before `token` that make it a piece of a text."""
_OF_PROGRAMS = word_set(
    """
    backward by first forward high low multi n num one per second single two
    """
)
"""Words before `pass` that make it a step of work."""
_OF_SECRETS = word_set(
    """
    admin anthropic app application auth aws azure client comet consumer deploy gcp google hf huggingface
    license master mlflow neptune ngc openai server session stripe user wandb wb webhook
    """
)
"""Words before `key` that make it a secret, however it is written."""
_OF_TABLES = word_set(
    """
    answer any arrow attention attn audio batch best bucket cache check chosen col column config content
    context data dataset dict eval feature features field file foreign group hash host hot id image images
    img index input inputs join json kv label labels log lookup loss map merge message messages meta metric
    model monitor n name natural num object ocidist option output outputs param partition per prefix primary
    prompt public query question record rejected response rng root routing row run sample search shard sort
    state step tag target task test text train type unique val value video
    """
)
"""Words before `key` that make it the name of a column, a metric, an object."""


def is_secret_name(name: str) -> bool:
    """Return whether what bears this name is probably a secret: `DB_PASS`, `--hf-token`, `apiKey`, `wandb.key`."""
    return weight_of(name) >= Weight.LIKELY


@lru_cache(maxsize=4096)
def weight_of(name: str) -> Weight:
    """Return how strongly a name marks its value as a secret."""
    words = _words(name)
    own = _words(name.rstrip(".").rpartition(".")[2])
    if not own or (own[-1] in _DESCRIBING and not name.lower().endswith("webhook_url")):
        return Weight.NONE
    if _SURE().search("_".join(own)):
        return (
            Weight.POSSIBLE if own[-1] in ("id", "secrets", "credentials") and len(own) == 1 else Weight.SURE
        )
    place = _place_of_secret(own)
    if place is None:
        return Weight.NONE
    word, before = (
        own[place],
        words[len(words) - len(own) + place - 1] if len(words) > len(own) - place else "",
    )
    return _weight_of_word(word, before, in_capitals=name.upper() == name)


def _words(name: str) -> list[str]:
    """Return the words of a name in lower case; digits at the end of one are no part of it."""
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return [word.rstrip("0123456789") or word for word in re.split(r"[^A-Za-z0-9]+", apart.lower()) if word]


def _place_of_secret(words: list[str]) -> int | None:
    """Return the index of the word that marks a secret: the last one, or one followed by qualifiers only."""
    for place in range(len(words) - 1, -1, -1):
        word = words[place]
        if word in _WORDS or word == "key" or word.endswith(("apikey", "passwd")):
            return place
        if word not in _AFTER_A_SECRET:
            break
    # A token counts at any position, as in TOKEN_GITHUB, unless the word after it marks a piece of a text.
    return (
        0
        if words[0] == "token" and len(words) == 2 and words[1] not in ("id", "embedding", "budget")
        else None
    )


def _weight_of_word(word: str, before: str, *, in_capitals: bool) -> Weight:
    if word == "token":
        return Weight.NONE if before in _OF_TEXTS else Weight.LIKELY
    if word == "pass":
        return Weight.NONE if before in _OF_PROGRAMS else Weight.LIKELY
    if word == "key" and before in _OF_TABLES:
        return Weight.NONE
    if word == "key":
        return Weight.LIKELY if before in _OF_SECRETS or (in_capitals and before) else Weight.POSSIBLE
    return Weight.SURE if word in _STRONG_WORDS or word.endswith(("apikey", "passwd")) else Weight.LIKELY
