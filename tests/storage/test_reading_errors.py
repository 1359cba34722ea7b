"""What a request for the content of an object raises: absence, change and refusal are errors of their own."""

from __future__ import annotations

from typing import Any

import pytest
from oci.exceptions import ConnectTimeout, ServiceError

from airflow_provider_ocidist.errors import BackendError, OcidistError, StorageError
from airflow_provider_ocidist.storage.stores.oci_http import reading

PLACE = "oci://bucket@space/folder/file"


def refusal(status: int, code: str) -> ServiceError:
    return ServiceError(status, code, {}, "refused")


@pytest.mark.parametrize(
    "raised, kind, text",
    [
        (refusal(404, "ObjectNotFound"), FileNotFoundError, PLACE),
        (refusal(404, "BucketNotFound"), BackendError, f"reading {PLACE}: not found"),
        (refusal(404, "NotAuthorizedOrNotFound"), BackendError, f"reading {PLACE}: not found"),
        (refusal(412, "IfMatchFailed"), StorageError, f"{PLACE} changed while it was read"),
        (refusal(503, "ServiceUnavailable"), BackendError, f"reading {PLACE}: the service failed"),
        (ConnectTimeout("no route"), BackendError, f"reading {PLACE}: "),
    ],
)
def test_what_the_service_answers_is_raised_as_an_error_of_ours(
    raised: Exception, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as found, reading(PLACE):
        raise raised
    assert str(found.value).startswith(text)
    assert isinstance(found.value, (OcidistError, FileNotFoundError))
    assert root_of(found.value) is raised


@pytest.mark.parametrize("raised", [ValueError("ours"), KeyboardInterrupt(), GeneratorExit()])
def test_what_is_not_of_the_service_stays_as_it_is(raised: BaseException) -> None:
    with pytest.raises(type(raised)) as found, reading(PLACE):
        raise raised
    assert found.value is raised


def root_of(error: Any) -> Any:
    return error if error.__cause__ is None else root_of(error.__cause__)
