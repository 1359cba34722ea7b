"""What the page hides of texts and settings: passwords in addresses, and no name of a bucket."""

from __future__ import annotations

import random
import string

import pytest

from airflow_provider_ocidist.emulator.status_page.secrets import HIDDEN, hide, secrets_in
from airflow_provider_ocidist.model import masking

SEED = 20
AROUND = [
    "",
    "saving to ",
    "(",
    "'",
    '"',
    "--out=",
    "a,",
    "x:",
    "-",
    "+",
    ".",
    "7",
    "\u00e9",
    "file.",
    "see\t",
]
SCHEMES = ["http", "https", "git+https", "postgresql", "redis", "s3", "mysql+pymysql", "ftp", "ocis", "xoci"]


def _name(dice: random.Random) -> str:
    return dice.choice(string.ascii_lowercase) + "".join(
        dice.choices(string.ascii_letters + string.digits + "-_.", k=dice.randint(4, 20))
    )


@pytest.mark.parametrize("number", range(100))
def test_the_name_of_a_bucket_is_no_secret_wherever_its_address_stands(number: int) -> None:
    print("seed", SEED + number)
    dice = random.Random(SEED + number)
    uri = f"oci://bucket-{_name(dice)}@ns{number}/{_name(dice)}"
    text = f"{dice.choice(AROUND)}{uri}{dice.choice(['', ' ', ')', ' and ' + uri])}"
    assert secrets_in({"A": text}) == secrets_in([text]) == set()
    assert hide(text) == text
    assert masking.secrets_in({"A": text}) == set()


@pytest.mark.parametrize("number", range(100))
def test_the_password_of_an_address_is_hidden_whatever_stands_before_it(number: int) -> None:
    print("seed", SEED + number)
    dice = random.Random(SEED + number)
    secret = f"pw{_name(dice)}"
    text = f"{dice.choice(AROUND)}{dice.choice(SCHEMES)}://user:{secret}@host.example/x"
    beside = dice.choice(["", " oci://bucket-a@ns/x"])
    assert secrets_in({"A": text + beside}) == {secret}
    shown = hide(text + beside)
    assert secret not in shown
    assert HIDDEN in shown
    assert shown.endswith(beside)
    assert secret in masking.secrets_in({"A": text})
