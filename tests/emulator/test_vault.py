"""Secrets with versions and stages, as the SDK manages and reads them."""

from __future__ import annotations

import base64
import datetime as dt
import logging

import oci
import pytest
from oci.exceptions import ServiceError
from oci.vault import models

from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import Cloud


def encoded(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def content(value: str, **more) -> models.Base64SecretContentDetails:
    return models.Base64SecretContentDetails(content=encoded(value), **more)


def status_of(call, *arguments, **more) -> tuple[int, str]:
    with pytest.raises(ServiceError) as caught:
        call(*arguments, **more)
    return caught.value.status, caught.value.code


class Safe:
    """The three clients, and short words for what tests do with them."""

    def __init__(self, cloud: Cloud) -> None:
        self.compartment_id = cloud.access.compartment_id
        self.secrets = cloud.client(oci.vault.VaultsClient)
        self.bundles = cloud.client(oci.secrets.SecretsClient)
        vaults = cloud.client(oci.key_management.KmsVaultClient)
        self.vault = vaults.list_vaults(self.compartment_id).data[0]
        keys = cloud.client(oci.key_management.KmsManagementClient)
        self.key = keys.list_keys(self.compartment_id).data[0]

    def details(self, name="wandb", value="one", **more) -> models.CreateSecretDetails:
        return models.CreateSecretDetails(
            compartment_id=self.compartment_id,
            vault_id=self.vault.id,
            key_id=self.key.id,
            secret_name=name,
            secret_content=content(value),
            **more,
        )

    def make(self, *values: str, name="wandb") -> str:
        secret_id = self.secrets.create_secret(self.details(name, values[0])).data.id
        for value in values[1:]:
            self.add(secret_id, value)
        return secret_id

    def add(self, secret_id: str, value: str, **more) -> None:
        details = models.UpdateSecretDetails(secret_content=content(value, **more))
        self.secrets.update_secret(secret_id, details)

    def read(self, secret_id: str, **version) -> str:
        bundle = self.bundles.get_secret_bundle(secret_id, **version).data
        return base64.b64decode(bundle.secret_bundle_content.content).decode()

    def stages(self, secret_id: str) -> dict[int, list[str]]:
        versions = self.secrets.list_secret_versions(secret_id).data
        return {each.version_number: sorted(each.stages) for each in versions}


@pytest.fixture
def safe(cloud) -> Safe:
    return Safe(cloud)


def test_each_version_is_in_its_stages(safe):
    secret_id = safe.make("one", "two", "three")
    assert safe.stages(secret_id) == {1: ["DEPRECATED"], 2: ["PREVIOUS"], 3: ["CURRENT", "LATEST"]}
    safe.add(secret_id, "four", stage="PENDING", name="next")
    assert safe.stages(secret_id)[4] == ["LATEST", "PENDING"]
    stages = ("CURRENT", "PENDING", "LATEST", "PREVIOUS", "DEPRECATED")
    assert [safe.read(secret_id, stage=stage) for stage in stages] == ["three", "four", "four", "two", "one"]
    safe.secrets.update_secret(secret_id, models.UpdateSecretDetails(current_version_number=4))
    assert safe.stages(secret_id) == {
        1: ["DEPRECATED"], 2: ["DEPRECATED"], 3: ["PREVIOUS"], 4: ["CURRENT", "LATEST"],
    }  # fmt: skip
    assert status_of(safe.read, secret_id, stage="PENDING")[0] == 404


def test_a_version_is_read_by_number_and_by_name(safe):
    secret_id = safe.make("one")
    safe.add(secret_id, "two", name="second")
    assert safe.read(secret_id) == "two"
    assert safe.read(secret_id, version_number=1) == "one"
    assert safe.read(secret_id, secret_version_name="second") == "two"
    assert status_of(safe.read, secret_id, version_number=3)[0] == 404
    assert status_of(safe.read, secret_id, secret_version_name="third")[0] == 404
    assert status_of(safe.add, secret_id, "three", name="second") == (409, "Conflict")
    found = safe.bundles.list_secret_bundle_versions(secret_id).data
    assert [(each.version_number, each.version_name) for each in found] == [(2, "second"), (1, None)]
    assert safe.secrets.get_secret_version(secret_id, 2).data.stages == ["CURRENT", "LATEST"]


def test_a_secret_is_read_by_name(safe):
    safe.make("one", name="hf")
    read = safe.bundles.get_secret_bundle_by_name
    bundle = read("hf", safe.vault.id).data
    assert bundle.secret_bundle_content.content == encoded("one")
    assert status_of(read, "other", safe.vault.id)[0] == 404
    assert status_of(read, "hf", "ocid1.vault.oc1.iad.a")[0] == 404


def test_secrets_are_listed_unique_and_created_once(safe):
    made = safe.secrets.create_secret(safe.details(), opc_retry_token="t").data.id
    assert safe.secrets.create_secret(safe.details(), opc_retry_token="t").data.id == made
    assert status_of(safe.secrets.create_secret, safe.details()) == (409, "Conflict")
    names = [each.secret_name for each in safe.secrets.list_secrets(safe.compartment_id, sort_by="NAME").data]
    assert names == ["ocidist", "wandb"]
    found = safe.secrets.list_secrets(safe.compartment_id, name="wandb", vault_id=safe.vault.id).data
    assert [each.id for each in found] == [made]


@pytest.mark.parametrize(
    "change,status",
    [
        ({"secret_content": models.Base64SecretContentDetails(content="no base64!")}, 400),
        ({"secret_content": content("x" * 25_601)}, 400),
        ({"secret_content": models.Base64SecretContentDetails(content="")}, 400),
        ({"secret_content": None}, 400),
        ({"key_id": "ocid1.key.oc1.iad.other"}, 404),
        ({"vault_id": "ocid1.vault.oc1.iad.other"}, 404),
        ({"compartment_id": "ocid1.compartment.oc1..other"}, 404),
    ],
)
def test_a_secret_that_makes_no_sense_is_refused(safe, change, status):
    details = safe.details()
    for name, value in change.items():
        setattr(details, name, value)
    assert status_of(safe.secrets.create_secret, details)[0] == status


def test_what_is_known_of_a_secret_can_change(safe):
    secret_id = safe.make("one")
    etag = safe.secrets.get_secret(secret_id).headers["etag"]
    details = models.UpdateSecretDetails(description="d", metadata={"a": "b"}, freeform_tags={"c": "d"})
    assert status_of(safe.secrets.update_secret, secret_id, details, if_match="other")[0] == 412
    changed = safe.secrets.update_secret(secret_id, details, if_match=etag).data
    assert (changed.description, changed.metadata, changed.freeform_tags) == ("d", {"a": "b"}, {"c": "d"})
    assert changed.current_version_number == 1
    both = models.UpdateSecretDetails(secret_content=content("x"), current_version_number=1)
    assert status_of(safe.secrets.update_secret, secret_id, both)[0] == 400


def test_a_secret_that_will_be_deleted_cannot_be_read(safe):
    secret_id = safe.make("one")
    now = dt.datetime.now(dt.timezone.utc)
    for days, status in ((0.5, 400), (31, 400)):
        details = models.ScheduleSecretDeletionDetails(time_of_deletion=now + dt.timedelta(days=days))
        assert status_of(safe.secrets.schedule_secret_deletion, secret_id, details)[0] == status
    details = models.ScheduleSecretDeletionDetails(time_of_deletion=now + dt.timedelta(days=7))
    safe.secrets.schedule_secret_deletion(secret_id, details)
    assert safe.secrets.get_secret(secret_id).data.lifecycle_state == "PENDING_DELETION"
    assert status_of(safe.read, secret_id)[0] == 404
    assert status_of(safe.add, secret_id, "two") == (409, "IncorrectState")
    safe.secrets.cancel_secret_deletion(secret_id)
    assert safe.read(secret_id) == "one"


def test_only_a_deprecated_version_can_be_deleted(safe):
    secret_id = safe.make("one", "two", "three")
    details = models.ScheduleSecretVersionDeletionDetails()
    delete = safe.secrets.schedule_secret_version_deletion
    assert status_of(delete, secret_id, 2, details) == (409, "IncorrectState")
    delete(secret_id, 1, details)
    assert status_of(safe.read, secret_id, version_number=1)[0] == 404
    safe.secrets.cancel_secret_version_deletion(secret_id, 1)
    assert safe.read(secret_id, version_number=1) == "one"


def test_values_are_in_no_log_and_no_recorded_call(safe, cloud, caplog):
    caplog.set_level(logging.DEBUG)
    value = "very-secret-value"
    secret_id = safe.make(value)
    safe.read(secret_id)
    safe.add(secret_id, value, name="again")
    status_of(safe.add, secret_id, value, name="again")
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("airflow_provider")]
    for text in (value, encoded(value), cloud.access.secret_value):
        assert text not in str(cloud.control("GET", "/calls"))
        assert text not in str(cloud.control("GET", ""))
        assert text not in str(ours)


def test_secrets_survive_a_restart(folder):
    with Emulator(state=folder) as emulator:
        safe = Safe(Cloud.of(emulator.access))
        secret_id = safe.make("one", "two")
    with Emulator(state=folder) as emulator:
        cloud = Cloud.of(emulator.access)
        safe = Safe(cloud)
        assert (safe.read(secret_id), safe.read(secret_id, stage="PREVIOUS")) == ("two", "one")
        cloud.control("POST", "/reset")
        assert status_of(safe.read, secret_id)[0] == 404
        assert safe.read(cloud.access.secret_id) == cloud.access.secret_value
