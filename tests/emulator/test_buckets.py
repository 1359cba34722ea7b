"""Buckets and namespaces with the real SDK, and what a bucket lets strangers do."""

from __future__ import annotations

import datetime as dt

import pytest
from oci.object_storage import models

from tests.emulator.conftest import HTTP
from tests.emulator.test_object_storage import read, refusal


def create(cloud, name: str, **more) -> models.Bucket:
    details = models.CreateBucketDetails(name=name, compartment_id=cloud.access.compartment_id, **more)
    return cloud.objects.create_bucket(cloud.access.namespace, details).data


def url(cloud, bucket: str, rest: str = "") -> str:
    return f"{cloud.access.url}/n/{cloud.access.namespace}/b/{bucket}{rest}"


def test_buckets_have_a_life(cloud):
    namespace, _ = cloud.place
    made = create(cloud, "b2", freeform_tags={"a": "b"})
    assert (made.name, made.freeform_tags, made.versioning) == ("b2", {"a": "b"}, "Disabled")
    details = models.CreateBucketDetails(name="b2", compartment_id=cloud.access.compartment_id)
    assert refusal(cloud.objects.create_bucket, namespace, details) == (409, "BucketAlreadyExists")
    found = cloud.objects.list_buckets(namespace, cloud.access.compartment_id).data
    assert [bucket.name for bucket in found] == ["b2", "ocidist"]
    cloud.objects.put_object(namespace, "b2", "o", b"")
    assert refusal(cloud.objects.delete_bucket, namespace, "b2") == (409, "BucketNotEmpty")
    cloud.objects.delete_object(namespace, "b2", "o")
    cloud.objects.delete_bucket(namespace, "b2")
    assert refusal(cloud.objects.get_bucket, namespace, "b2") == (404, "BucketNotFound")
    assert cloud.objects.head_bucket(*cloud.place).status == 200


def test_a_bucket_goes_only_when_nothing_is_left_in_it(cloud):
    namespace, _ = cloud.place
    create(cloud, "b2")
    upload = models.CreateMultipartUploadDetails(object="o")
    upload_id = cloud.objects.create_multipart_upload(namespace, "b2", upload).data.upload_id
    assert refusal(cloud.objects.delete_bucket, namespace, "b2") == (409, "BucketNotEmpty")
    cloud.objects.abort_multipart_upload(namespace, "b2", "o", upload_id)
    details = models.CreatePreauthenticatedRequestDetails(
        name="p",
        access_type="AnyObjectRead",
        time_expires=dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=1),
    )
    request = cloud.objects.create_preauthenticated_request(namespace, "b2", details).data
    assert refusal(cloud.objects.delete_bucket, namespace, "b2") == (409, "BucketNotEmpty")
    cloud.objects.delete_preauthenticated_request(namespace, "b2", request.id)
    assert cloud.objects.delete_bucket(namespace, "b2").status == 204


def test_a_renamed_bucket_keeps_its_objects(cloud):
    namespace, _ = cloud.place
    create(cloud, "old", metadata={"a": "b"})
    cloud.objects.put_object(namespace, "old", "o", b"hello")
    changed = models.UpdateBucketDetails(name="new", freeform_tags={"c": "d"})
    bucket = cloud.objects.update_bucket(namespace, "old", changed).data
    assert (bucket.name, bucket.metadata, bucket.freeform_tags) == ("new", {"a": "b"}, {"c": "d"})
    assert cloud.objects.get_object(namespace, "new", "o").data.content == b"hello"
    assert refusal(cloud.objects.get_bucket, namespace, "old") == (404, "BucketNotFound")
    taken = models.UpdateBucketDetails(name=cloud.access.bucket)
    assert refusal(cloud.objects.update_bucket, namespace, "new", taken) == (409, "BucketAlreadyExists")


def test_conditions_hold_for_buckets_too(cloud):
    bucket = cloud.objects.get_bucket(*cloud.place).data
    assert refusal(cloud.objects.get_bucket, *cloud.place, if_none_match=bucket.etag)[0] == 304
    changed = models.UpdateBucketDetails(freeform_tags={})
    wrong = refusal(cloud.objects.update_bucket, *cloud.place, changed, if_match="other")
    assert wrong == (412, "IfMatchFailed")
    assert refusal(cloud.objects.delete_bucket, *cloud.place, if_match="other") == (412, "IfMatchFailed")


def test_a_bucket_counts_what_it_holds_when_asked(cloud):
    for name in ("a", "b"):
        cloud.objects.put_object(*cloud.place, name, b"12345")
    told = cloud.objects.get_bucket(*cloud.place, fields=["approximateCount", "approximateSize"]).data
    assert (told.approximate_count, told.approximate_size) == (2, 10)
    assert cloud.objects.get_bucket(*cloud.place).data.approximate_count is None


def test_buckets_come_in_pages_and_with_tags_when_asked(cloud):
    for name in ("b", "c"):
        create(cloud, name, freeform_tags={"n": name})
    where = (cloud.access.namespace, cloud.access.compartment_id)
    first = cloud.objects.list_buckets(*where, limit=2)
    second = cloud.objects.list_buckets(*where, limit=2, page=first.next_page, fields=["tags"])
    assert [bucket.name for bucket in first.data] == ["b", "c"]
    assert [(bucket.name, bucket.freeform_tags) for bucket in second.data] == [("ocidist", {})]
    assert first.data[0].freeform_tags is None


@pytest.mark.parametrize(
    "wrong", [{"public_access_type": "All"}, {"storage_tier": "Cold"}, {"auto_tiering": "Yes"}]
)
def test_unknown_values_are_refused(cloud, wrong):
    details = {"name": "b", "compartmentId": cloud.access.compartment_id}
    (name, value), *_ = wrong.items()
    words = name.split("_")
    details[words[0] + "".join(word.title() for word in words[1:])] = value
    assert refusal(cloud.objects.create_bucket, cloud.access.namespace, details) == (400, "InvalidParameter")


def test_versions_are_refused_rather_than_ignored(cloud):
    details = models.CreateBucketDetails(
        name="b", compartment_id=cloud.access.compartment_id, versioning="Enabled"
    )
    assert refusal(cloud.objects.create_bucket, cloud.access.namespace, details) == (501, "NotImplemented")


def test_a_namespace_remembers_its_compartments(cloud):
    namespace = cloud.access.namespace
    assert cloud.objects.get_namespace(compartment_id=cloud.access.tenancy_id).data == namespace
    told = cloud.objects.get_namespace_metadata(namespace).data
    assert told.default_swift_compartment_id == cloud.access.tenancy_id
    details = models.UpdateNamespaceMetadataDetails(default_s3_compartment_id=cloud.access.compartment_id)
    cloud.objects.update_namespace_metadata(namespace, details)
    told = cloud.objects.get_namespace_metadata(namespace).data
    assert told.default_s3_compartment_id == cloud.access.compartment_id
    assert told.default_swift_compartment_id == cloud.access.tenancy_id


def test_a_bucket_has_no_policies(cloud):
    policy = refusal(cloud.objects.get_object_lifecycle_policy, *cloud.place)
    assert policy == (404, "LifecyclePolicyNotFound")
    assert cloud.objects.list_retention_rules(*cloud.place).data.items == []
    assert cloud.objects.list_replication_policies(*cloud.place).data == []
    assert cloud.objects.list_replication_sources(*cloud.place).data == []


@pytest.mark.parametrize(
    "access,object_status,list_status",
    [("NoPublicAccess", 404, 404), ("ObjectRead", 200, 200), ("ObjectReadWithoutList", 200, 404)],
)
def test_strangers_may_do_what_the_bucket_says(cloud, access, object_status, list_status):
    create(cloud, "pub", public_access_type=access)
    cloud.objects.put_object(cloud.access.namespace, "pub", "o", b"hello")
    got = HTTP.get(url(cloud, "pub", "/o/o"))
    assert got.status_code == object_status
    assert got.content == b"hello" or got.json()["code"] == "BucketNotFound"
    assert HTTP.get(url(cloud, "pub", "/o")).status_code == list_status
    assert HTTP.put(url(cloud, "pub", "/o/o"), content=b"other").status_code == 401
    assert HTTP.delete(url(cloud, "pub", "/o/o")).status_code == 401
    assert HTTP.get(url(cloud, "pub")).status_code == 401


def test_a_wrong_signature_is_refused_where_none_is_needed(cloud):
    create(cloud, "pub", public_access_type="ObjectRead")
    cloud.objects.put_object(cloud.access.namespace, "pub", "o", b"hello")
    got = HTTP.get(url(cloud, "pub", "/o/o"), headers={"authorization": 'Signature version="1"'})
    assert got.status_code == 401


def test_objects_take_the_storage_tier_of_their_bucket(cloud):
    create(cloud, "cold", storage_tier="Archive")
    place = (cloud.access.namespace, "cold")
    cloud.objects.put_object(*place, "o", b"hello")
    assert cloud.objects.head_object(*place, "o").headers["archival-state"] == "Archived"
    assert refusal(cloud.objects.get_object, *place, "o") == (409, "NotRestored")
    cloud.objects.restore_objects(*place, models.RestoreObjectsDetails(object_name="o", hours=1))
    assert cloud.objects.get_object(*place, "o").data.content == b"hello"
    assert cloud.objects.head_object(*place, "o").headers["archival-state"] == "Restored"


def test_an_object_moves_between_storage_tiers(cloud):
    cloud.objects.put_object(*cloud.place, "o", b"hello", storage_tier="InfrequentAccess")
    assert cloud.objects.head_object(*cloud.place, "o").headers["storage-tier"] == "InfrequentAccess"
    details = models.UpdateObjectStorageTierDetails(object_name="o", storage_tier="Standard")
    cloud.objects.update_object_storage_tier(*cloud.place, details)
    assert cloud.objects.head_object(*cloud.place, "o").headers["storage-tier"] == "Standard"
    assert read(cloud, "o") == b"hello"
    wrong = refusal(cloud.objects.put_object, *cloud.place, "o", b"", storage_tier="Warm")
    assert wrong == (400, "InvalidParameter")
