"""Which values are secrets under which names, and what of arguments, lists and JSON is masked: docs/security.md."""

from __future__ import annotations

import json
import random
import string
from urllib.parse import quote

import pytest

from airflow_provider_ocidist.model.masking import (
    is_secret_name,
    masked,
    masked_messages,
    masked_text,
    secrets_in,
    without_secrets,
)
from airflow_provider_ocidist.model.masking.names import Weight, weight_of
from airflow_provider_ocidist.model.masking.texts import query_of
from airflow_provider_ocidist.model.masking.values import is_ordinary, is_secret, looks_made

RANDOM = "Xk29fLq8ZpW3vTy7"
"""As a machine draws it."""
WORD = "correcthorse"
SURE, LIKELY, POSSIBLE, NONE = "DB_PASSWORD", "DB_PASS", "some_key", "sort_key"


@pytest.mark.parametrize(
    "value, secret_under",
    [
        (RANDOM, {SURE, LIKELY, POSSIBLE}),
        (WORD, {SURE, LIKELY}),
        ("x", {SURE, LIKELY}),
        # Small numbers and the names of methods are settings.
        *((number, {SURE}) for number in ("3", "12", "-300", "0.5", "+.25", "1.5e-4")),
        *((number, {SURE, LIKELY}) for number in ("1234", "1.5e", "--3", "12a")),
        *((method, {SURE}) for method in ("basic", "api_key", "instance-principal", "resource_principal")),
        *((word, {SURE, LIKELY}) for word in ("basics", "Basic", "basic_x", "basic key", "_basic")),
        # Nothing, references, paths: no secret under any name.
        *(
            (nothing, set())
            for nothing in ("", "None", "null", "off", "AUTO", "true", "***", "'none'", '"no"')
        ),
        *(
            (reference, set())
            for reference in ("ocid1.vaultsecret.oc1..x", "{{ x }}", "{% x %}", "oci://b@n/x")
        ),
        *(
            (reference, set())
            for reference in ("${X}", "$(x)", "<your key>", "vault://x/y", "%(x)s", "$HOME_1")
        ),
        # A password may begin as a reference does.
        *(
            (begun, {SURE, LIKELY})
            for begun in ("<k8J2mQ9v", "%(k8J2mQ9v", "$(k8J2mQ9v", "{{k8J2mQ9v", "${k8J2mQ9v", "{%k8J2mQ9v")
        ),
        *((path, set()) for path in ("/run/secrets/db", "~/x.pem", "./a/b/", "../key", "/a")),
        *((word, {SURE, LIKELY}) for word in ("$1", "a/b", "/a//b", "x ocid1.", "$A-B", "X", "/")),
        (f"/run/{RANDOM}", {SURE, LIKELY, POSSIBLE}),
        # What names a thing is not drawn.
        ("550e8400-e29b-41d4-a716-446655440000", {SURE, LIKELY}),
        ("550E8400-E29B-41D4-A716-446655440000", {SURE, LIKELY}),
        ("0123456789abcdef" * 2, {SURE, LIKELY}),
        ("0123456789abcdef" * 8, {SURE, LIKELY}),
        ("0123456789abcdef" * 8 + "0", {SURE, LIKELY, POSSIBLE}),
        ("0123456789abcdef0123456789abcde", {SURE, LIKELY, POSSIBLE}),
        ("abcdefghijklmnop", {SURE, LIKELY}),
        ("2839471650283947", {SURE, LIKELY}),
        ("aaaaaaaaaaaaaaa1", {SURE, LIKELY}),
        ("Xk29fLq8ZpW3vTy", {SURE, LIKELY}),
        ("Xk29 fLq8ZpW3vTy7", {SURE, LIKELY}),
    ],
)
def test_how_sure_a_name_is_says_which_values_under_it_are_secrets(value: str, secret_under: set[str]):
    assert {name for name in (SURE, LIKELY, POSSIBLE, NONE) if is_secret(name, value)} == secret_under
    for name in (SURE, LIKELY, POSSIBLE, NONE):
        assert masked({name: value}) == {name: "***" if name in secret_under else value}


@pytest.mark.parametrize(
    "value, is_one",
    [(999, False), (1000, True), (-1000, True), (-999, False), (123456, True), (True, False), (None, False)],
)
def test_a_number_is_a_password_from_four_digits_on_under_a_name_that_is_sure(value: object, is_one: bool):
    assert is_secret(SURE, value) is is_one
    for name in (LIKELY, POSSIBLE, NONE):
        assert is_secret(name, value) is False
    assert is_secret(SURE, [RANDOM]) is False


@pytest.mark.parametrize("weight", Weight)
def test_a_sure_name_weighs_more_than_a_likely_one_and_that_more_than_a_possible_one(weight: Weight):
    names = {Weight.SURE: SURE, Weight.LIKELY: LIKELY, Weight.POSSIBLE: POSSIBLE, Weight.NONE: NONE}
    assert weight_of(names[weight]) is weight
    assert is_secret_name(names[weight]) == (weight >= Weight.LIKELY)
    assert sorted([SURE, NONE, LIKELY, POSSIBLE], key=weight_of) == [NONE, POSSIBLE, LIKELY, SURE]


@pytest.mark.parametrize(
    "text, is_made",
    [("abc12345", True), ("abc1234", False), ("abcdefgh", False), ("12345678", False), ("ab c12345", False)],
)
def test_a_word_of_letters_and_digits_of_the_length_of_a_token_is_made(text: str, is_made: bool):
    assert looks_made(text) is is_made
    assert (text not in masked_text(f"token: {text}")) is is_made


@pytest.mark.parametrize("size", range(1, 10))
def test_a_secret_of_five_characters_is_masked_wherever_it_occurs(size: int):
    secret = "q7Zr4Xw9K"[:size]
    assert masked({"DB_PASSWORD": secret, "note": f"it is {secret}."})["DB_PASSWORD"] == "***"
    assert (secret not in masked({"DB_PASSWORD": secret, "note": f"<{secret}>"})["note"]) == (size >= 5)


@pytest.mark.parametrize("size", range(9, 15))
def test_a_line_of_a_longer_secret_is_masked_by_itself_from_twelve_characters_on(size: int):
    line = "Ab3dEf6hIj9kLm2"[:size]
    secrets = secrets_in({"KEY_CONTENT": f"{line}\nother line of it all"})
    assert (line in secrets) == (size >= 12)


@pytest.mark.parametrize(
    "arguments, hidden",
    [
        (["--password", "hunter22"], {1}),
        (["--password=hunter22"], {0}),
        (["++password=hunter22"], {0}),
        (["+password=hunter22"], {0}),
        (["-p", "hunter22"], set()),
        (["--password", "--verbose"], set()),
        (["--password=", "hunter22"], set()),
        (["--epochs", "3", "--password", "hunter22"], {3}),
        (["-u", "me:hunter22"], {1}),
        (["--user", "me:hunter22"], {1}),
        (["--proxy-user", "me:hunter22"], {1}),
        (["--user", "me:80"], set()),
        (["--user", "me"], set()),
        (["--user", "a/b:c"], set()),
        (["--use", "me:hunter22"], set()),
        (["DB_PASSWORD=hunter22"], {0}),
        (["db.password=hunter22"], {0}),
        (["9DB_PASSWORD hunter22"], set()),
        (["sh", "-c", "echo DB_PASSWORD"], set()),
    ],
)
def test_which_arguments_hold_a_secret(arguments: list[str], hidden: set[int]):
    shown_ones = masked(arguments)
    assert {number for number, item in enumerate(shown_ones) if item != arguments[number]} == hidden
    assert "hunter22" not in "".join(shown_ones) or not hidden
    for number in hidden:
        assert shown_ones[number].endswith("***")
        assert arguments[number].startswith(shown_ones[number].removesuffix("***"))


def test_what_a_page_shows_is_masked_as_a_log_is_and_by_name_and_where_it_is_known():
    value = {
        "DB_PASSWORD": "hunter22",
        "lines": ["export DB_PASS=hunter33", "known-one here", {"x": ("known-one",)}],
        "count": 3,
        "none": None,
    }
    assert masked_messages(value, {"known-one"}) == {
        "DB_PASSWORD": "***",
        "lines": ["export DB_PASS=***", "*** here", {"x": ["***"]}],
        "count": 3,
        "none": None,
    }


def test_a_list_under_a_name_that_is_sure_is_a_list_of_secrets():
    assert masked({"passwords": ["hunter22", "correct"]}) == {"passwords": "***"}
    assert secrets_in({"passwords": ["hunter22", "correct"]}) == {"hunter22", "correct"}
    for value in ([], ["hunter22", 3], ["hunter22", "none"], "none"):
        assert masked({"passwords": value}) == {"passwords": value}


def test_what_is_held_as_json_is_masked_within_it():
    text = json.dumps({"DB_PASSWORD": "hunter22", "x": ["ü", 1]})
    assert masked([text]) == ['{"DB_PASSWORD":"***","x":["ü",1]}']
    assert secrets_in([text]) == {"hunter22"}
    assert masked(["{no json", "[", "3"]) == ["{no json", "[", "3"]


def test_a_secret_is_found_in_the_forms_in_which_texts_have_it():
    secret = 'a"b/c d\u00fc'.encode().decode("unicode_escape")
    for text in (secret, json.dumps(secret)[1:-1], quote(secret), quote(secret, safe="")):
        assert without_secrets(f"<{text}>", {secret}) == "<***>"
    assert without_secrets("ab abc", {"ab", "abc"}) == "*** ***", "the longer one first"
    assert without_secrets("x", {""}) == "x"
    assert without_secrets(3, {"3"}) == 3


def drawn(dice: random.Random, alphabet: str, size: int) -> str:
    # A digit and a letter, as all but a few of those that are drawn have.
    return "a1" + "".join(dice.choices(alphabet, k=size - 2))


WORDS = string.ascii_letters + string.digits
FORMS = {
    **{f"{each}": (string.ascii_uppercase + string.digits, 16) for each in ("AKIA", "ASIA", "ABIA", "ACCA")},
    **dict.fromkeys(("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "hf_", "api_org_"), (WORDS, 36)),
    **dict.fromkeys(("glpat-", "gldt-", "glrt-", "glptt-", "wandb_v1_", "sk-", "sk-or-"), (WORDS, 24)),
    **dict.fromkeys(("sk_live_", "rk_live_", "sk_test_", "rk_test_"), (WORDS, 24)),
    **dict.fromkeys(("xoxb-", "xoxp-", "xoxa-", "xoxs-", "xapp-", "ya29.", "GOCSPX-"), (WORDS, 28)),
    **dict.fromkeys(("npm_", "r8_", "pypi-AgEI", "eyJhcGlf", "dckr_pat_", "hvs.", "nvapi-"), (WORDS, 40)),
    "AIza": (WORDS, 35),
    "dapi": ("0123456789abcdef", 32),
}
"""How tokens of services begin, and what follows."""


@pytest.mark.parametrize("begin", FORMS)
def test_a_token_is_known_by_how_it_begins(begin: str):
    print("seed", begin)
    dice = random.Random(begin)
    alphabet, size = FORMS[begin]
    for _ in range(5):
        rest = drawn(dice, alphabet, size)
        secret = begin + (rest.upper() if alphabet.isupper() else rest)
        assert masked_text(f"using {secret} now") == "using *** now", secret
        assert masked_text(f"of a word: x{secret[:-1]}") == f"of a word: x{secret[:-1]}", secret


@pytest.mark.parametrize("part", range(2))
def test_a_token_in_parts_is_known_by_them(part: int):
    dice = random.Random(part)
    parts = [drawn(dice, WORDS, 20) for _ in range(3)]
    for secret in (f"SG.{parts[0]}.{parts[1]}", f"eyJ{parts[0]}.eyJ{parts[1]}.{parts[2]}"):
        assert masked_text(f"with {secret}: refused") == "with ***: refused"


@pytest.mark.parametrize(
    "text, in_a_log, elsewhere",
    [
        # What a shell reads as one word is the value; a sentence goes on after it.
        ("run DB_PASSWORD=hunter22, then", "run DB_PASSWORD=***, then", "run DB_PASSWORD=*** then"),
        ("password: hunter22.", "password: ***.", "password: ***."),
        ("{password: hunter22}", "{password: ***}", "{password: ***}"),
        # A word of a sentence under a name is none in a log.
        ("password: Sent.", "password: Sent.", "password: ***."),
        ("password=expired: try again", "password=expired: try again", "password=expired: try again"),
        ("password=missing, x", "password=missing, x", "password=missing, x"),
        ("password=nothing-of-it", "password=***", "password=***"),
        # Parts of an address whose names say nothing.
        (f"https://x/a?q={RANDOM}", "https://x/a?q=***", "https://x/a?***"),
        (f"at https://x/a?n=3&q={RANDOM} .", "at https://x/a?n=3&q=*** .", "at https://x/a?n=3&q=*** ."),
        (f"at https://x/a?q={RANDOM}&n=3 .", "at https://x/a?q=***&n=3 .", "at https://x/a?q=***&n=3 ."),
        (f"at https://x/?q={RANDOM}&r={RANDOM}", "at https://x/?q=***&r=***", "at https://x/?q=***&r=***"),
        (f"at file:///a?q={RANDOM} .", f"at file:///a?q={RANDOM} .", f"at file:///a?q={RANDOM} ."),
        # A password may hold what an address has elsewhere.
        ("postgresql://me:p/w@db/x now", "postgresql://me:***@db/x now", "postgresql://me:***@db/x now"),
        ("postgresql://me:p?w@db/x now", "postgresql://me:***@db/x now", "postgresql://me:***@db/x now"),
        ("postgresql://db:5432/x@y", "postgresql://db:5432/x@y", "postgresql://db:5432/x@y"),
    ],
)
def test_where_a_secret_ends_depends_on_what_it_stands_in(text: str, in_a_log: str, elsewhere: str):
    assert masked_text(text) == in_a_log
    assert masked(text) == elsewhere


@pytest.mark.parametrize(
    "text, query",
    [
        ("http://h/x?sig=a", "sig=a"),
        ("https://h/x?sig=a&n=1", "sig=a&n=1"),
        ("https://h/x", None),
        ("file:///h/x?sig=a", None),
        ("see http://h/x?sig=a", None),
        ("http://h/x?sig=a or", None),
    ],
)
def test_a_query_is_that_of_a_web_address_alone(text: str, query: str | None) -> None:
    assert query_of(text) == query


def test_a_path_is_no_secret_unless_a_part_of_it_is_one() -> None:
    assert is_ordinary("/data/of/models/file.txt")
    for place in (f"/data/{RANDOM}/file.txt", f"/{RANDOM}", f"/data/{RANDOM}"):
        assert not is_ordinary(place)


@pytest.mark.parametrize(
    "text, masked_as",
    [
        # A password may hold the signs that end it elsewhere.
        ("at postgresql://me:p@w1x@db/x now", "at postgresql://me:***@db/x now"),
        ("at redis://:p/w1x@db/0 now", "at redis://:***@db/0 now"),
        ("at redis://:8080/p@w now", "at redis://:8080/p@w now"),
        # A user alone is a secret only of the web, and not where everybody has it.
        ("clone https://git@github.com/x now", "clone https://git@github.com/x now"),
        ("clone ssh://a1b2c3d4e5@github.com/x now", "clone ssh://a1b2c3d4e5@github.com/x now"),
        # What is none does not hide what follows.
        ("password=missing, DB_PASSWORD=hunter22", "password=missing, DB_PASSWORD=***"),
        ("lr=0.1 DB_PASSWORD=hunter22", "lr=0.1 DB_PASSWORD=***"),
        ("token_count=5 DB_PASSWORD=hunter22", "token_count=5 DB_PASSWORD=***"),
        ("the password is DB_PASSWORD=hunter22", "the password is DB_PASSWORD=***"),
        # As code and JSON have it, what begins a list is no value yet.
        ("password: [hunter22x1 and", "password: [hunter22x1 and"),
        ('DB_PASSWORD="" and no more', 'DB_PASSWORD="" and no more'),
    ],
)
def test_what_is_a_secret_in_an_address_or_after_another_name(text: str, masked_as: str) -> None:
    assert masked_text(text) == masked_as


@pytest.mark.parametrize(
    "name, weight",
    [
        ("hf.token", Weight.LIKELY),
        ("hf.token.", Weight.LIKELY),
        (".token", Weight.LIKELY),
        ("keyX", Weight.NONE),
        ("KEY", Weight.POSSIBLE),
        ("X_KEY", Weight.LIKELY),
        ("x_key", Weight.POSSIBLE),
        ("myapikey", Weight.SURE),
        ("rootpasswd", Weight.SURE),
        ("SENTRY_DSN", Weight.SURE),
        ("jwt", Weight.SURE),
        ("db_pwd", Weight.SURE),
        ("DB_PASS", Weight.LIKELY),
        ("apikeys_of", Weight.NONE),
        ("TOKEN_GITHUB", Weight.LIKELY),
        ("TOKEN_ID", Weight.NONE),
        ("prompt.token_github", Weight.NONE),
    ],
)
def test_how_sure_a_name_is(name: str, weight: Weight):
    assert weight_of(name) is weight


@pytest.mark.parametrize("argument", ["--password={}", "++password={}", "DB_PASSWORD={}"])
def test_all_of_an_argument_after_its_name_is_the_secret(argument: str):
    assert masked([argument.format("two words")]) == [argument.format("***")]
    assert secrets_in([argument.format("two words")]) >= {"two words"}


def test_the_password_of_a_secret_address_is_a_secret_by_itself():
    address = "postgresql://me:hunter22@db/x"
    assert secrets_in({"DB_PASSWORD": address}) == {address, "hunter22"}
