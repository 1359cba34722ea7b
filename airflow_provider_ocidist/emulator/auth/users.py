"""Users of the tenancy and their API keys. There are no policies: every signer may do everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)
from starlette.responses import Response

from airflow_provider_ocidist.emulator.auth.signatures import Credential
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import (
    ApiError,
    conflict,
    invalid,
    limit_exceeded,
    not_authenticated,
    not_found,
)
from airflow_provider_ocidist.emulator.fields import changes, require, required_text
from airflow_provider_ocidist.emulator.installation import fingerprint_of, new_ocid
from airflow_provider_ocidist.emulator.store import Table
from airflow_provider_ocidist.emulator.wire import (
    Call,
    Principal,
    Route,
    answer,
    check_if_match,
    new_etag,
    now,
    page,
)

BASE = "/20160918/users"
MAX_KEYS = 3
MIN_KEY_BITS = 2048
FIELDS = {"description": "description", "email": "email", "freeformTags": "freeform_tags"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TenancyUser:
    """A user of the tenancy."""

    id: str
    name: str
    description: str = ""
    email: str | None = None
    freeform_tags: Mapping[str, str] = field(default_factory=dict)
    time_created: str = field(default_factory=now)
    etag: str = field(default_factory=new_etag)


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiKey:
    """The public half of a key that signs for a user."""

    user_id: str
    fingerprint: str
    key_value: str
    time_created: str = field(default_factory=now)


class TenancyUsers:
    """Answers /users, and finds the key of every keyId."""

    def __init__(self, context: Context) -> None:
        self._installation = context.installation
        self._tenancy_id = context.ids.tenancy_id
        self._users: Table[TenancyUser] = Table(context.store, "user", TenancyUser)
        self._keys: Table[ApiKey] = Table(context.store, "api_key", ApiKey)
        self._credentials: dict[str, Credential] = {}
        self._seed()

    def _seed(self) -> None:
        if not self._users.values():
            user_id, key = self._installation.ids.user_id, self._installation.api_key.public_key()
            user = TenancyUser(id=user_id, name="ocidist", description="Who the config file speaks for")
            self._users.put(user.id, user)
            self._add_key(user_id, key)

    def routes(self) -> list[Route]:
        user = f"{BASE}/{{id}}"
        return [
            Route("POST", BASE, self.create),
            Route("GET", BASE, self.list_users),
            Route("GET", user, self.get),
            Route("PUT", user, self.update),
            Route("DELETE", user, self.delete),
            Route("POST", f"{user}/apiKeys", self.upload_key),
            Route("GET", f"{user}/apiKeys", self.list_keys),
            Route("DELETE", f"{user}/apiKeys/{{fingerprint}}", self.delete_key),
        ]

    def reset(self) -> None:
        self._users.clear()
        self._keys.clear()
        self._credentials.clear()
        self._seed()

    def credential(self, key_id: str) -> Credential:
        """Return the key that `tenancy/user/fingerprint` names. Raises 401 that names the unknown part."""
        credential = self._credentials.get(key_id)
        if credential is None:
            credential = self._credentials[key_id] = self._find_credential(key_id)
        return credential

    def _find_credential(self, key_id: str) -> Credential:
        tenancy_id, _, rest = key_id.partition("/")
        user_id, _, fingerprint = rest.partition("/")
        if tenancy_id != self._tenancy_id:
            raise not_authenticated(
                f"there is no tenancy {tenancy_id!r} here; keyId is tenancy/user/fingerprint"
            )
        if self._users.get(user_id) is None:
            raise not_authenticated(f"there is no user {user_id!r} here")
        key = self._keys.get(f"{user_id}/{fingerprint}")
        if key is None:
            raise not_authenticated(f"the user has no API key with the fingerprint {fingerprint!r}")
        return Credential(
            key=_public_key(key.key_value), principal=Principal(id=user_id, tenancy_id=tenancy_id)
        )

    def _find(self, call: Call) -> TenancyUser:
        user = self._users.get(call.params["id"])
        if user is None:
            raise not_found()
        return user

    def _check_name(self, name: str, *, own: TenancyUser | None = None) -> None:
        if any(user.name == name and user != own for user in self._users.values()):
            raise ApiError(409, "UserAlreadyExists", f"There is a user {name!r} already.")

    async def create(self, call: Call) -> Response:
        details = await call.json()
        require(details, "compartmentId", "name", "description")
        if details["compartmentId"] != self._tenancy_id:
            raise invalid("compartmentId must be the tenancy: users belong to it.")
        self._check_name(details["name"])
        user = TenancyUser(id=new_ocid("user"), name=details["name"], **changes(details, FIELDS))
        self._users.put(user.id, user)
        return answer(self._body(user), etag=user.etag)

    async def list_users(self, call: Call) -> Response:
        if call.required_query("compartmentId") != self._tenancy_id:
            raise not_found()
        name = call.query.get("name")
        found = [user for user in self._users.values() if name in (None, user.name)]
        chosen, headers = page(call, found, lambda user: (user.name, user.id), default="ASC")
        return answer([self._body(user) for user in chosen], headers=headers)

    async def get(self, call: Call) -> Response:
        user = self._find(call)
        return answer(self._body(user), etag=user.etag)

    async def update(self, call: Call) -> Response:
        given = changes(await call.json(), FIELDS)
        user = self._find(call)
        check_if_match(call, user.etag)
        user = replace(user, **given, etag=new_etag())
        self._users.put(user.id, user)
        return answer(self._body(user), etag=user.etag)

    async def delete(self, call: Call) -> Response:
        user = self._find(call)
        check_if_match(call, user.etag)
        for key in self._keys_of(user):
            self._remove_key(key)
        self._users.delete(user.id)
        return answer()

    def _keys_of(self, user: TenancyUser) -> list[ApiKey]:
        return [key for key in self._keys.values() if key.user_id == user.id]

    async def upload_key(self, call: Call) -> Response:
        text = required_text(await call.json(), "key")
        user = self._find(call)
        public = _public_key(text)
        if self._keys.get(f"{user.id}/{fingerprint_of(public)}"):
            raise conflict(f"The user has the key {fingerprint_of(public)} already.")
        if len(self._keys_of(user)) >= MAX_KEYS:
            raise limit_exceeded(f"A user may have at most {MAX_KEYS} API keys; delete one first.")
        return answer(self._key_body(self._add_key(user.id, public)))

    def _add_key(self, user_id: str, public: RSAPublicKey) -> ApiKey:
        text = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        key = ApiKey(user_id=user_id, fingerprint=fingerprint_of(public), key_value=text)
        self._keys.put(f"{user_id}/{key.fingerprint}", key)
        return key

    async def list_keys(self, call: Call) -> Response:
        return answer([self._key_body(key) for key in self._keys_of(self._find(call))])

    async def delete_key(self, call: Call) -> Response:
        key = self._keys.get(f"{self._find(call).id}/{call.params['fingerprint']}")
        if key is None:
            raise not_found()
        self._remove_key(key)
        return answer()

    def _remove_key(self, key: ApiKey) -> None:
        self._keys.delete(f"{key.user_id}/{key.fingerprint}")
        self._credentials.clear()

    def _body(self, user: TenancyUser) -> dict[str, Any]:
        return {
            "id": user.id,
            "compartmentId": self._tenancy_id,
            "name": user.name,
            "description": user.description,
            "email": user.email,
            "emailVerified": True,
            "lifecycleState": "ACTIVE",
            "timeCreated": user.time_created,
            "isMfaActivated": False,
            "capabilities": {"canUseApiKeys": True},
            "freeformTags": user.freeform_tags,
            "definedTags": {},
        }

    def _key_body(self, key: ApiKey) -> dict[str, Any]:
        return {
            "keyId": f"{self._tenancy_id}/{key.user_id}/{key.fingerprint}",
            "keyValue": key.key_value,
            "fingerprint": key.fingerprint,
            "userId": key.user_id,
            "timeCreated": key.time_created,
            "lifecycleState": "ACTIVE",
        }


def _public_key(text: str) -> RSAPublicKey:
    """Read a public key in PEM. Raises 400 for anything that could not sign here."""
    try:
        key = load_pem_public_key(text.encode())
    except ValueError as error:
        raise invalid("key must be an RSA public key in PEM format.") from error
    if not isinstance(key, RSAPublicKey) or key.key_size < MIN_KEY_BITS:
        raise invalid(f"key must be an RSA key of at least {MIN_KEY_BITS} bits.")
    return key
