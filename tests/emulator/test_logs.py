"""Logging: groups and logs as the SDK manages them, pushed entries, search, lag, and what each costs."""

from __future__ import annotations

import datetime as dt
import json
import os
import time

import oci
import pytest
from oci.exceptions import ServiceError
from oci.logging import models
from oci.loggingingestion.models import LogEntry, LogEntryBatch, PutLogsDetails
from oci.loggingsearch.models import SearchLogsDetails

from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.logs.files import Line, StoredLog
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import Cloud

TYPE = "com.example.test"


def status_of(call, *arguments, **more) -> tuple[int, str]:
    with pytest.raises(ServiceError) as caught:
        call(*arguments, **more)
    return caught.value.status, caught.value.code


@pytest.fixture
def logging(cloud):
    return cloud.client(oci.logging.LoggingManagementClient)


@pytest.fixture
def group(cloud) -> str:
    return cloud.access.log_group_id


def made_by(logging, accepted) -> str:
    """Return what a work request made, as a client that waits for it does."""
    request = oci.wait_until(
        logging, logging.get_work_request(accepted.headers["opc-work-request-id"]), "status", "SUCCEEDED"
    ).data
    return request.resources[0].identifier


# Log groups and logs


def test_log_groups_are_made_found_changed_and_deleted(cloud, logging):
    place = cloud.access.compartment_id
    details = models.CreateLogGroupDetails(compartment_id=place, display_name="g", description="d")
    group_id = made_by(logging, logging.create_log_group(details, opc_retry_token="t"))
    assert made_by(logging, logging.create_log_group(details, opc_retry_token="t")) == group_id
    assert status_of(logging.create_log_group, details) == (409, "Conflict")
    assert [each.id for each in logging.list_log_groups(place, display_name="g").data] == [group_id]
    found = logging.get_log_group(group_id)
    changes = models.UpdateLogGroupDetails(display_name="h", freeform_tags={"a": "b"})
    assert status_of(logging.update_log_group, group_id, changes, if_match="other")[0] == 412
    logging.update_log_group(group_id, changes, if_match=found.headers["etag"])
    changed = logging.get_log_group(group_id).data
    assert (changed.display_name, changed.description, changed.freeform_tags) == ("h", "d", {"a": "b"})
    logging.delete_log_group(group_id)
    assert status_of(logging.get_log_group, group_id) == (404, "NotAuthorizedOrNotFound")


def test_log_groups_are_listed_over_a_subtree_and_can_move(cloud, logging, group):
    details = oci.identity.models.CreateCompartmentDetails(
        compartment_id=cloud.access.compartment_id, name="c", description="d"
    )
    inner = cloud.client(oci.identity.IdentityClient).create_compartment(details).data.id
    logging.change_log_group_compartment(group, models.ChangeLogGroupCompartmentDetails(compartment_id=inner))
    assert [each.id for each in logging.list_log_groups(inner).data] == [group]
    tenancy_id = cloud.access.tenancy_id
    assert logging.list_log_groups(tenancy_id).data == []
    found = logging.list_log_groups(tenancy_id, is_compartment_id_in_subtree=True).data
    assert [each.id for each in found] == [group]


def test_a_log_has_a_retention_and_can_be_disabled(logging, group):
    details = models.CreateLogDetails(display_name="mine", log_type="CUSTOM", retention_duration=60)
    log_id = made_by(logging, logging.create_log(group, details))
    log = logging.get_log(group, log_id).data
    assert (log.retention_duration, log.lifecycle_state, log.is_enabled) == (60, "ACTIVE", True)
    logging.update_log(group, log_id, models.UpdateLogDetails(is_enabled=False, retention_duration=180))
    log = logging.get_log(group, log_id).data
    assert (log.retention_duration, log.lifecycle_state) == (180, "INACTIVE")
    wrong = models.UpdateLogDetails(retention_duration=45)
    assert status_of(logging.update_log, group, log_id, wrong) == (400, "InvalidParameter")
    logging.delete_log(group, log_id)
    assert status_of(logging.get_log, group, log_id)[0] == 404


def test_logs_are_unique_by_name_and_can_change_groups(cloud, logging, group):
    details = models.CreateLogDetails(display_name="mine", log_type="CUSTOM")
    log_id = made_by(logging, logging.create_log(group, details))
    assert status_of(logging.create_log, group, details) == (409, "Conflict")
    other = models.CreateLogGroupDetails(compartment_id=cloud.access.compartment_id, display_name="other")
    other_id = made_by(logging, logging.create_log_group(other))
    assert status_of(logging.delete_log_group, group)[0] == 409
    target = models.ChangeLogLogGroupDetails(target_log_group_id=other_id)
    logging.change_log_log_group(group, log_id, target)
    assert [log.id for log in logging.list_logs(other_id).data] == [log_id]


def test_logs_of_services_are_found_by_source(cloud, logging, group):
    source = models.OciService(
        service="ml-pipeline", resource="ocid1.x", category="step", source_type="OCISERVICE"
    )
    details = models.CreateLogDetails(
        display_name="service", log_type="SERVICE", configuration=models.Configuration(source=source)
    )
    log_id = made_by(logging, logging.create_log(group, details))
    found = logging.list_logs(
        group, log_type="SERVICE", source_service="ml-pipeline", source_resource="ocid1.x"
    )
    assert [log.id for log in found.data] == [log_id]
    assert logging.list_logs(group, source_service="other").data == []


def test_work_requests_are_listed(cloud, logging, group):
    details = models.CreateLogDetails(display_name="mine", log_type="CUSTOM")
    request_id = logging.create_log(group, details).headers["opc-work-request-id"]
    found = logging.list_work_requests(cloud.access.compartment_id).data
    assert [(each.id, each.operation_type) for each in found] == [(request_id, "CREATE_LOG")]
    assert logging.list_work_request_errors(request_id).data == []
    assert status_of(logging.get_work_request, "ocid1.logworkrequest.oc1..a")[0] == 404


# Pushed entries


def push(cloud: Cloud, *entries: LogEntry, log_id=None, **more):
    batch = LogEntryBatch(
        entries=list(entries),
        source="web",
        type=TYPE,
        subject="s",
        **{"defaultlogentrytime": dt.datetime.now(dt.timezone.utc), **more},
    )
    details = PutLogsDetails(specversion="1.0", log_entry_batches=[batch])
    client = cloud.client(oci.loggingingestion.LoggingClient)
    return client.put_logs(log_id or cloud.access.log_id, details)


def test_pushed_entries_are_found_with_all_they_say(cloud):
    push(
        cloud, LogEntry(id="1", data="hello"), LogEntry(id="2", data=json.dumps({"level": 3, "message": "m"}))
    )
    first, second = cloud.search(f'search "{cloud.log_scope}" | sort by datetime asc')
    assert {**first, "time": 0, "oracle": 0} == {
        "id": "1", "source": "web", "type": TYPE, "subject": "s", "specversion": "1.0",
        "data": {"message": "hello"}, "time": 0, "oracle": 0,
    }  # fmt: skip
    assert first["oracle"]["logid"] == cloud.access.log_id
    assert second["data"] == {"level": 3, "message": "m"}


@pytest.mark.parametrize(
    "where,found",
    [
        ("data.level > 2", ["2"]),
        ("data.level = 3", ["2"]),
        ("data.level <= 2", []),
        ("data.level != 3", ["1"]),
        ("data.level != 4", ["1", "2"]),
        ("data.message = 'h*'", ["1"]),
        ("logContent.data.message != 'h*'", ["2"]),
        ("subject = 's' and source in ('web', 'other')", ["1", "2"]),
        ("source not in ('web')", []),
        ("not id = '1'", ["2"]),
        ("oracle.logid = '{log}'", ["1", "2"]),
        ("oracle.logid = 'other'", []),
        ("logContent.time > '2020-01-01T00:00:00Z'", ["1", "2"]),
        ("logContent.time > '2999-01-01'", []),
    ],
)
def test_conditions_look_into_entries(cloud, where, found):
    push(
        cloud, LogEntry(id="1", data="hello"), LogEntry(id="2", data=json.dumps({"level": 3, "message": "m"}))
    )
    where = where.replace("{log}", cloud.access.log_id)
    entries = cloud.search(f'search "{cloud.log_scope}" | where {where} | sort by logContent.time asc')
    assert [entry["id"] for entry in entries] == found


def test_entries_are_found_by_their_own_time_however_late_they_come(cloud):
    now = dt.datetime.now(dt.timezone.utc)
    for minutes in (1, 3, 2):
        push(cloud, LogEntry(id=str(minutes), data="x", time=now - dt.timedelta(minutes=minutes)))
    assert [entry["id"] for entry in cloud.search(f'search "{cloud.log_scope}"')] == ["1", "2", "3"]
    paged = cloud.search(f'search "{cloud.log_scope}" | sort by datetime asc', limit=1)
    assert [entry["id"] for entry in paged] == ["3", "2", "1"]


def test_long_fields_are_cut_and_long_entries_refused(cloud):
    push(cloud, LogEntry(id="1", data="x" * 10_001))
    assert len(cloud.search(f'search "{cloud.log_scope}"')[0]["data"]["message"]) == 10_000
    assert status_of(push, cloud, LogEntry(id="1", data="x" * 1_000_000)) == (400, "InvalidParameter")


def test_text_that_is_no_unicode_is_refused(cloud):
    assert status_of(push, cloud, LogEntry(id="1", data="\ud800 ü"))[0] == 400
    assert cloud.search(f'search "{cloud.log_scope}"') == []


def test_a_wrong_push_adds_nothing(cloud, logging, group):
    entry = LogEntry(id="1", data="x")
    assert status_of(push, cloud, entry, LogEntry(id="2"))[0] == 400
    assert status_of(push, cloud)[0] == 400
    assert status_of(push, cloud, entry, log_id="ocid1.log.oc1.iad.aaaa")[0] == 404
    logging.update_log(group, cloud.access.log_id, models.UpdateLogDetails(is_enabled=False))
    assert status_of(push, cloud, entry)[0] == 400
    assert cloud.search(f'search "{cloud.log_scope}"') == []


# Search


def test_places_may_be_named_and_listed(cloud):
    push(cloud, LogEntry(id="1", data="x"))
    access = cloud.access
    for scope in (
        f'"{access.compartment_id}/ocidist/ocidist"',
        f'"ocid1.compartment.oc1..other", "{cloud.log_scope}"',
        f'"{access.compartment_id}" "{cloud.log_scope}"',
    ):
        assert [entry["id"] for entry in cloud.search(f"search {scope}")] == ["1"]


def search_details(cloud: Cloud, **more) -> SearchLogsDetails:
    now = dt.datetime.now(dt.timezone.utc)
    times = {"time_start": now - dt.timedelta(hours=1), "time_end": now + dt.timedelta(minutes=1)}
    return SearchLogsDetails(search_query=f'search "{cloud.log_scope}"', **{**times, **more})


def test_a_page_has_100_entries_unless_asked_and_1000_at_most(cloud):
    push(cloud, *(LogEntry(id=str(number), data="x") for number in range(1100)))
    search = cloud.log_search.search_logs
    details = search_details(cloud)
    assert len(search(details).data.results) == 100
    assert len(search(details, limit=500).data.results) == 500
    first = search(details, limit=1000)
    second = search(details, limit=1000, page=first.next_page)
    assert (len(first.data.results), len(second.data.results)) == (1000, 100)
    ids = {each.data["logContent"]["id"] for page in (first, second) for each in page.data.results}
    assert len(ids) == 1100
    assert not second.has_next_page
    assert status_of(search, details, limit=1001)[0] == 400
    assert status_of(search, details, page="nonsense")[0] == 400


def test_the_time_range_is_at_least_a_millisecond_and_14_days_at_most(cloud):
    now = dt.datetime.now(dt.timezone.utc).replace(microsecond=0)
    search = cloud.log_search.search_logs
    for wrong in (dt.timedelta(0), dt.timedelta(seconds=-1), dt.timedelta(days=14, seconds=1)):
        details = search_details(cloud, time_start=now - wrong, time_end=now)
        assert status_of(search, details) == (400, "InvalidParameter")
    for right in (dt.timedelta(seconds=1), dt.timedelta(days=14)):
        search(search_details(cloud, time_start=now - right, time_end=now))


def test_a_deleted_log_takes_its_lines_with_it(cloud, logging, group):
    push(cloud, LogEntry(id="1", data="x"))
    logging.delete_log(group, cloud.access.log_id)
    compartment = cloud.access.compartment_id
    assert cloud.search(f'search "{compartment}"') == []


# Lag


def test_entries_are_found_only_after_the_lag():
    with Emulator(options=Options(log_lag_s=2)) as emulator:
        cloud = Cloud.of(emulator.access)
        push(cloud, LogEntry(id="1", data="x"))
        pushed = time.monotonic()
        query = f'search "{cloud.log_scope}"'
        assert cloud.search(query) == []
        while not cloud.search(query):
            assert time.monotonic() - pushed < 30
            time.sleep(0.02)
        assert time.monotonic() - pushed >= 1.9


def test_with_jitter_entries_appear_out_of_order():
    with Emulator(options=Options(log_jitter_s=3)) as emulator:
        cloud = Cloud.of(emulator.access)
        push(cloud, *(LogEntry(id=str(number), data="x") for number in range(20)))
        query, seen = f'search "{cloud.log_scope}" | sort by datetime asc', []
        while len(seen) < 20:
            found = {entry["id"] for entry in cloud.search(query)}
            assert set(seen) <= found
            seen += sorted(found - set(seen), key=int)
        assert seen != sorted(seen, key=int)


# Life


def test_logs_and_lines_survive_a_restart(folder):
    with Emulator(state=folder) as emulator:
        cloud = Cloud.of(emulator.access)
        cloud.run("print('from a run')")
        push(cloud, LogEntry(id="1", data="pushed"))
        client = cloud.client(oci.logging.LoggingManagementClient)
        details = models.CreateLogDetails(display_name="mine", log_type="CUSTOM")
        request = client.create_log(cloud.access.log_group_id, details).headers["opc-work-request-id"]
    with Emulator(state=folder) as emulator:
        cloud = Cloud.of(emulator.access)
        push(cloud, LogEntry(id="2", data="later"))
        entries = cloud.search(f'search "{cloud.log_scope}" | sort by datetime asc')
        assert [entry["data"]["message"] for entry in entries] == ["from a run", "pushed", "later"]
        client = cloud.client(oci.logging.LoggingManagementClient)
        assert client.get_work_request(request).data.operation_type == "CREATE_LOG"
        cloud.control("POST", "/reset")
        assert cloud.search(f'search "{cloud.access.compartment_id}"') == []
        assert [log.display_name for log in client.list_logs(cloud.access.log_group_id).data] == ["ocidist"]


# Files


def lines(*said: tuple[int, str]) -> list[Line]:
    return [Line(time_ms, 0, text.encode()) for time_ms, text in said]


def test_a_log_file_is_read_by_time(tmp_path):
    file = StoredLog(tmp_path / "a.log")
    file.append([*lines((100, "a"), (100, "b")), Line(100, 1, b"c")], 100)
    file.append(lines((200, "")), 200)
    assert [file.read(number) for number in file.between(0, 200)] == ["a", "b", "c"]
    assert [file.stream_of(number) for number in range(4)] == [0, 0, 1, 0]
    file.close()
    again = StoredLog(tmp_path / "a.log")
    again.append(lines((300, "d"), (150, "late")), 310)
    assert [again.read(number) for number in again.between(0, 301)] == ["a", "b", "c", "late", "", "d"]
    assert (again.written_at(0), again.written_at(5), again.last_ms) == (100, 310, 300)
    again.close()


def test_a_log_file_of_a_killed_emulator_goes_on(tmp_path):
    file = StoredLog(tmp_path / "a.log")
    file.append(lines((100, "a"), (101, "b")), 101)
    file.close()
    with (tmp_path / "a.log").open("ab") as text, (tmp_path / "a.lines").open("ab") as index:
        text.write(b"half a li")
        index.write(b"half a row")
    again = StoredLog(tmp_path / "a.log")
    again.append(lines((102, "c")), 102)
    again.close()
    third = StoredLog(tmp_path / "a.log")
    assert [third.read(number) for number in third.between(0, 1000)] == ["a", "b", "c"]
    third.close()


def test_logs_that_are_only_read_stay_closed(tmp_path):
    logs = [StoredLog(tmp_path / f"{number}.log") for number in range(40)]
    for log in logs:
        log.append(lines((1, "x")), 1)
        log.close()
    before = len(os.listdir("/proc/self/fd"))
    assert {log.read(0) for log in logs} == {"x"}
    # Other threads of this process may open one meanwhile.
    assert len(os.listdir("/proc/self/fd")) < before + len(logs)
    logs[0].append(lines((2, "y")), 2)
    assert [logs[0].read(number) for number in range(2)] == ["x", "y"]
    logs[0].close()


def test_lines_longer_than_a_block_are_whole(tmp_path):
    file = StoredLog(tmp_path / "a.log")
    texts = ["x" * size for size in (10, 70_000, 0, 65_536, 5, 200_000)]
    file.append(lines(*((number, text) for number, text in enumerate(texts))), 0)
    for order in (range(6), reversed(range(6))):
        for number in order:
            assert file.read(number) == texts[number]
    file.close()


def test_a_poll_of_a_long_log_reads_its_end_only(cloud):
    """The newest of 100,000 lines come in milliseconds: no poll reads the whole file."""
    program = "print('\\n'.join(f'line {number} {\"x\" * 80}' for number in range(100_000)))"
    run = cloud.run(program)
    time.sleep(0.1)
    cloud.control("DELETE", "/calls")
    for _ in range(5):
        newest = cloud.last_entries(run.id, 10)
        assert newest[0]["data"]["message"].startswith("line 99999 ")
    calls = [each for each in cloud.control("GET", "/calls") if each["path"].startswith("/20190909")]
    assert min(call["duration_s"] for call in calls) < 0.1


def lines_by_time(cloud: Cloud, start: dt.datetime, page: int) -> list[str]:
    """Read a log as a client does that asks from the last line's time on, `page` lines at a time, without tokens."""
    search = cloud.client(oci.loggingsearch.LogSearchClient)
    place = f"{cloud.access.compartment_id}/{cloud.access.log_group_id}/{cloud.access.log_id}"
    end = start + dt.timedelta(days=1)
    seen: dict[str, str] = {}
    while True:
        details = SearchLogsDetails(
            search_query=f'search "{place}" | sort by datetime asc', time_start=start, time_end=end
        )
        found = search.search_logs(details, limit=page).data.results
        new = {result.data["logContent"]["id"]: result.data for result in found} if found else {}
        if not new.keys() - seen.keys():
            return list(seen.values())
        seen |= {name: data["logContent"]["data"]["message"] for name, data in new.items()}
        last = max(data["datetime"] for data in new.values())
        start = dt.datetime.fromtimestamp(last / 1000, dt.timezone.utc)


@pytest.mark.parametrize("page", [60, 100, 1000])
def test_a_client_that_reads_by_time_gets_every_line_of_a_burst(cloud: Cloud, page: int) -> None:
    before = dt.datetime.now(dt.timezone.utc).replace(microsecond=0)
    run = cloud.run("print('\\n'.join(map(str, range(2000))))")
    assert run.lifecycle_state == "SUCCEEDED"
    lines = [line for line in lines_by_time(cloud, before, page) if line.isdigit()]
    assert sorted(map(int, lines)) == list(range(2000))
    assert [line for line in cloud.messages(run.id) if line.isdigit()] == [str(n) for n in range(2000)]
