"""Secrets put into a job at every place where people put them, each of another form, so that outputs can be scanned."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

NAMES = (
    *(
        "DB_PASS",
        "DB_PASSWORD",
        "WANDB_KEY",
        "WANDB_API_KEY",
        "HF_TOKEN",
        "GITHUB_PAT",
        "MYSQL_PWD",
        "SENTRY_DSN",
    ),
    *("AWS_SECRET_ACCESS_KEY", "COMET_KEY", "API_SECRET", "SSH_PRIVATE_KEY", "apiKey", "neptune_api_token"),
    *(
        "AZURE_CONNECTION_STRING",
        "APP_CREDENTIAL",
        "REDIS_AUTH",
        "PROXY_PASSWD",
        "db.passphrase",
        "SESSION_COOKIE",
    ),
)
FLAGS = (
    "wandb.api_key",
    "hf-token",
    "db_pass",
    "password",
    "api-key",
    "auth.token",
    "client_secret",
    "wandb-key",
)
LETTERS = string.ascii_lowercase + string.digits


@dataclass
class Canaries:
    """Makes secrets of random form and remembers each; a test prints the seed when it fails."""

    rng: random.Random
    known: dict[str, str] = field(default_factory=dict)
    """Each secret, and where it was put."""

    def secret(self, where: str, extra: str = "") -> str:
        body = "".join(self.rng.choices(LETTERS, k=self.rng.randint(6, 24)))
        value = f"cnry{body}{self.rng.choice(extra) if extra else ''}{self.rng.randint(0, 9)}"
        self.known[value] = where
        return value

    def known_format(self) -> str:
        """Return a token in the form of its issuer, which needs no name to be known for one."""
        letters = string.ascii_letters + string.digits
        kind, body = self.rng.choice(
            [
                ("hf_", letters * 1),
                ("ghp_", letters),
                ("github_pat_", letters),
                ("glpat-", letters),
                ("sk-proj-", letters),
                ("xoxb-", string.digits),
                ("AKIA", string.ascii_uppercase + string.digits),
                ("wandb_v1_", letters),
            ]
        )
        length = 16 if kind == "AKIA" else 40
        value = kind + "".join(self.rng.choices(body, k=length - 1)) + "7"
        self.known[value] = f"{kind} token"
        return value

    def leaked(self, *texts: str) -> list[str]:
        """Return where the secrets were put that can be read in these texts."""
        found = "\n".join(texts)
        return sorted(
            {where for value, where in self.known.items() if value in found or quote(value) in found}
        )


def environment(canaries: Canaries, many: int = 6) -> dict[str, str]:
    """Return variables with secrets under names of secrets, in URLs, in JSON, in shell text, and by format alone."""
    rng = canaries.rng
    found = {
        name.replace(".", "_"): canaries.secret(f"env {name}", "!%+=:-_.") for name in rng.sample(NAMES, many)
    }
    secret = canaries.secret
    found["DATABASE"] = (
        f"postgresql+psycopg://trainer:{quote(secret('password in a URL'))}@db.internal:5432/runs"
    )
    found["TRACKING"] = f"https://{secret('user of a URL')}@tracking.example.com/api"
    found["SETTINGS"] = json.dumps(
        {
            "steps": 3,
            "db": {"password": secret("JSON in env", '"')},
            "args": ["--token", secret("args in JSON")],
        }
    )
    found["SETUP"] = (
        f"export DB_PASS={secret('shell in env')}; run --hf-token {secret('flag in shell')} --epochs 3"
    )
    found["EXTRA"] = f"{canaries.known_format()} and {canaries.known_format()}"
    return found


def arguments(canaries: Canaries) -> list[str]:
    """Return arguments with a secret in every form in which a program takes one."""
    rng, secret = canaries.rng, canaries.secret
    forms: list[Callable[[str], list[str]]] = [
        lambda flag: [f"--{flag}={secret(f'--{flag}=value')}"],
        lambda flag: [f"--{flag}", secret(f"--{flag} value")],
        lambda flag: [f"{flag}={secret(f'{flag}=value')}"],
        lambda flag: [f"+{flag}={secret(f'+{flag}=value')}"],
        lambda flag: ["bash", "-c", _script(canaries, flag)],
        lambda _: ["--logger", json.dumps({"name": "w", "api_key": secret("JSON in an argument")})],
        lambda _: ["--db", f"mysql://root:{secret('password in a URL argument')}@host/db"],
        lambda _: ["--header", f"Authorization: Bearer {secret('bearer')}"],
        lambda _: ["--note", f"see {canaries.known_format()}"],
        lambda _: ["curl", "-u", f"me:{secret('curl -u')}", "https://example.com"],
    ]
    found = ["--epochs", "3"]
    for form in rng.sample(forms, len(forms)):
        found += form(rng.choice(FLAGS))
    return [*found, "--lr", "0.1"]


def _script(canaries: Canaries, flag: str) -> str:
    variable = flag.upper().replace("-", "_").replace(".", "_")
    quoted = canaries.secret("quoted in shell", " ;")
    return f"FOO=1 {variable}={canaries.secret('shell variable')} python x.py --{flag} '{quoted}'"


def every_text(value: Any) -> Iterable[str]:
    """Go through all texts of a tree."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from every_text(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from every_text(item)
    elif isinstance(value, str):
        yield value
