"""Where the secrets in a text are: tokens of known formats, assignments, flags, web addresses. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from airflow_provider_ocidist.model.masking.names import Weight, weight_of, word_set
from airflow_provider_ocidist.model.masking.patterns import lazily
from airflow_provider_ocidist.model.masking.values import is_ordinary, is_secret_of, looks_made, looks_random

Span = tuple[int, int]

_FORMATS = lazily(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?P<pem>.{1,20000}?)(?=-----END|$)"
    r"|(?<![A-Za-z0-9_-])(?:"
    r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}(?![0-9A-Za-z])"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|gl(?:pat|dt|rt|ptt)-[\w-]{20,}"
    r"|hf_[A-Za-z0-9]{20,}|api_org_[A-Za-z0-9]{20,}|wandb_v\d_[A-Za-z0-9_]{20,}"
    r"|sk-(?=[\w-]{0,200}\d)(?:proj-|ant-|svcacct-|or-)?[A-Za-z0-9_-]{20,}|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{20,}"
    r"|AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}|eyJhcGlf[A-Za-z0-9+/=_-]{30,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-AgEI[\w-]{30,}|dapi[0-9a-f]{32}|dckr_pat_[\w-]{20,}|hvs\.[\w-]{20,}|nvapi-[\w-]{20,}"
    r"|r8_[A-Za-z0-9]{30,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r")",
    re.DOTALL,
)
"""Tokens that are known by their form alone."""
_PLACES = lazily(
    r"hooks\.slack\.com/services/\w+/\w+/(\w+)"
    # As Object Storage writes the address of a pre-authenticated request.
    r"|/p/([^/\s]+)/n/[^/\s]+/b/"
    r"|\bauthorization(?:\\*[\"'])?\s*[:=]\s*(?:\\*[\"'])?(?:bearer|basic|token|apikey)\s+([^\s\"'\\,]+)"
    r"|\bwandb\W{1,3}(?:login|(?:api[ _-]?)?key)\W{1,4}(?:--relogin\s+)?([0-9a-f]{40})\b"
    r"|\blogin\s+\S+\s+password\s+(\S+)"
    r"|(?<!\S)(?:-u|--(?:proxy-)?user)[ =][\"']?[^\s:\"']+:(?!\d+\b)([^\s\"']+)",
    re.IGNORECASE,
)
_OF_PROGRAMS = lazily(
    r"\bsshpass\s+(?:-v\s+)?-p\s*[\"']?([^\s\"']+)"
    r"|\b(?:docker|podman|nerdctl|skopeo|buildah|helm|oras)\s[^|;&\n]{0,40}?\blogin\s"
    r"(?:[^|;&\n]{0,200}?\s)?-p[ =]?[\"']?([^\s\"'-][^\s\"']*)"
    r"|\b(?:mysql|mariadb)(?:-?(?:dump|admin|import))?\s(?:[^|;&\n]{0,200}?\s)?-p[\"']?([^\s\"']+)"
    r"|\bredis-cli\s(?:[^|;&\n]{0,200}?\s)?-a[ ]+[\"']?([^\s\"']+)",
    re.IGNORECASE,
)
"""Flags that hold a password with these programs only."""
_BEARER = lazily(r"\b(?:bearer|basic)\s+([A-Za-z0-9._~+/=-]{12,})", re.IGNORECASE)
_STEMS = r"pass|pwd|pw|secret|token|key|auth|cred|bearer|dsn|jwt|pat|sig|sas|cookie|conn|webhook_url|service_account"
_ASSIGNMENT = lazily(
    rf"""(?<![\w.-])(?<!://)
    (?P<flag>--?|\+{{1,2}})?
    (?P<name>[\w.-]{{0,60}}(?:{_STEMS})[\w.-]{{0,40}}?)
    (?P<close>\\*["'])?
    (?P<sign>\s{{0,3}}(?:=>?|:)\s{{0,3}}|\s{{1,3}})
    (?:(?P<quote>\\*["'])(?P<quoted>.*?)(?P=quote)|(?P<bare>[^\s;&|<>()"'`]+))
    """,
    re.IGNORECASE | re.VERBOSE,
)
_URL = lazily(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30})://(?P<rest>[^\s\"'<>`]{1,4000})")
_HINTS = tuple(
    word_set(
        """
        pass pw secret token key auth cred bearer dsn jwt pat sig sas cookie conn webhook_url service_account wandb
        login :// /p/ -u --user mysql mariadb redis-cli hooks.slack.com
        private basic akia asia abia acca ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt-
        glrt- glptt- pypi- hf_ api_org_ sk- sk_ rk_ xox xapp aiza ya29 gocspx eyj npm_ dapi hvs. nvapi r8_ sg.
        """
    )
)
"""Parts of a text that may hold a secret, in lower case: a text without any is not searched, as most lines of logs."""
_OAUTH_BASIC = "x-oauth-basic"
"""Password that GitHub expects where the user is a token."""
_SENTENCE = word_set(
    """
    and are argument as at can cannot expected expired failed for has have if in invalid is may missing must
    not of option or required requires should that the to was will with without wrong
    """
)
_SCHEMES = word_set(
    """
    apikey basic bearer digest signature token
    """
)
"""Schemes before a secret in a header."""
_WORD = lazily(r"[A-Za-z]?[a-z]+[.,:;!?]?")
_CODE = lazily(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|[A-Za-z_][\w.]*[\[(].*")
"""Code in a line of a traceback: `token=self.token`, `password=read(`."""


def spans_in(text: str, *, of_a_log: bool) -> list[Span]:
    """Return where the secrets are, from the first on; they do not overlap.

    `of_a_log`: a sentence, a line of code or a count of tokens is likelier there than a secret that nothing else shows.
    """
    lowered = text.lower()
    if not any(hint in lowered for hint in _HINTS):
        return []
    found = [*_formats(text), *_places(text), *_assigned(text, of_a_log=of_a_log), *_in_urls(text)]
    return _merged(sorted(span for span in found if span[0] < span[1]))


def _formats(text: str) -> Iterator[Span]:
    for match in _FORMATS().finditer(text):
        yield match.span("pem") if match["pem"] else match.span()


def _places(text: str) -> Iterator[Span]:
    for match in _PLACES().finditer(text):
        if not is_ordinary(match[match.lastindex or 0]):
            yield match.span(match.lastindex or 0)
    yield from flags_of_programs(text)
    for match in _BEARER().finditer(text):
        if looks_made(match[1]):
            yield match.span(1)


def flags_of_programs(text: str) -> Iterator[Span]:
    """Yield where the passwords are that programs take by flags of other names."""
    for match in _OF_PROGRAMS().finditer(text):
        if not is_ordinary(match[match.lastindex or 0]):
            yield match.span(match.lastindex or 0)


def _assigned(text: str, *, of_a_log: bool) -> Iterator[Span]:
    place = 0
    while match := _ASSIGNMENT().search(text, place):
        part = "bare" if match["bare"] is not None else "quoted"
        start, end = match.span(part)
        weight = weight_of(match["name"])
        # What is no assignment may hold one: `Error: password: x`.
        place = max(match.end("name") + 1, match.start() + 1)
        is_flag = match["flag"] is not None and match["flag"].startswith("-")
        if weight is Weight.NONE or (match["sign"].isspace() and not is_flag):
            continue
        value = text[start:end]
        if part == "bare":
            value = value if "=" in match["sign"] and not of_a_log else value.rstrip(",.]}")
            end = start + len(value)
        if part == "bare" and value.lower().rstrip(",.:;") in _SENTENCE | _SCHEMES:
            continue
        if _is_logged_secret(match, weight, value) if of_a_log else is_secret_of(weight, value):
            yield start, end
            place = end


def _is_logged_secret(match: re.Match[str], weight: Weight, value: str) -> bool:
    """Return whether a value under a name in a log is a secret rather than a part of a sentence or of a program."""
    if not is_secret_of(weight, value) or value == match["name"].rpartition(".")[2]:
        return False
    if match["bare"] is None:
        return weight is Weight.SURE or not value.isspace()
    if _CODE().fullmatch(value) or value.startswith(("[", "{")):
        return False
    as_shell = "=" in match["sign"] and not match["sign"].startswith(" ")
    if as_shell or match["sign"].isspace():
        of_something = match["flag"] is not None or match["name"].isupper() or "." in match["name"]
        return weight is Weight.SURE or of_something or looks_made(value)
    return looks_made(value) or (weight is Weight.SURE and not _WORD().fullmatch(value))


def _in_urls(text: str) -> Iterator[Span]:
    for match in _URL().finditer(text):
        if match["scheme"].lower() == "oci":
            # What is before the @ is the bucket in an address of OCI; alone, it may as well be a token.
            continue
        start, rest = match.start("rest"), match["rest"]
        is_web = match["scheme"].lower().endswith(("http", "https", "ftp"))
        if (user := _user_of(rest)) is not None:
            yield from ((start + first, start + last) for first, last in _secret_user(user, is_web=is_web))
        if is_web and "?" in rest:
            yield from _in_query(rest, start)


def _user_of(rest: str) -> str | None:
    """Return what stands before the @; a password may hold a slash, though it should not."""
    netloc = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in netloc:
        return netloc.rpartition("@")[0]
    # Redis has a password without a user.
    odd = re.match(r"[^/@\[]*:(?!\d+(?:[/?#]|$))[^@]*(?=@)", rest) if ":" in netloc else None
    return odd[0] if odd else None


def _secret_user(user: str, *, is_web: bool) -> Iterator[Span]:
    name, colon, word = user.partition(":")
    only_user = word in ("", _OAUTH_BASIC)
    if colon and not only_user and not is_ordinary(word):
        yield len(name) + 1, len(user)
    elif is_web and only_user and name not in ("", "git") and not is_ordinary(name):
        yield 0, len(name)


def _in_query(rest: str, start: int) -> Iterator[Span]:
    for match in re.finditer(r"[?&][^=&#]*=([^&#]*)", rest):
        if looks_random(match[1]):
            yield start + match.start(1), start + match.end(1)


def query_of(text: str) -> str | None:
    """Return the query of a text that is a web address; it often is a signature, whose parts have many names."""
    if not text.startswith(("http://", "https://")) or any(each.isspace() for each in text):
        return None
    try:
        return urlsplit(text).query or None
    except ValueError:
        return None


def _merged(spans: list[Span]) -> list[Span]:
    found: list[Span] = []
    for start, end in spans:
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
