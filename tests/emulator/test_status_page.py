"""The status page: what it shows, to which browsers, and that hostile names and lines stay text."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from oci.data_science import models

from airflow_provider_ocidist.emulator import status_page
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator
from airflow_provider_ocidist.emulator.status_page import call_list, log_tail
from tests.emulator.conftest import HTTP, Cloud

STATIC = Path(status_page.__file__).with_name("static")
HOSTILE = "<img src=x onerror=alert(1)>"


def get(cloud, path, expected=200, headers=None, **query):
    response = HTTP.get(f"{cloud.access.url}{path}", params=query, headers=headers)
    assert response.status_code == expected, response.text
    return response


def ui(cloud, path, **query):
    return get(cloud, f"/_emulator/ui{path}", **query).json()


def lines_of(answer):
    return [line["text"] for line in answer["lines"]]


def test_the_page_and_all_that_it_loads_come_from_here(cloud):
    page = get(cloud, "/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    loaded = re.findall(r'(?:src|href)="(/[^"]+)"', page.text)
    modules = [f"/_emulator/ui/static/{path.name}" for path in STATIC.glob("*.js")]
    for path in {*loaded, *modules}:
        part = get(cloud, path)
        assert not re.search(r"https?://(?!www\.w3\.org/)", part.text), path
        assert part.headers["x-content-type-options"] == "nosniff"


def test_the_policy_lets_nothing_run_but_the_pages_own_files(cloud):
    policy = get(cloud, "/").headers["content-security-policy"]
    for rule in ("default-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"):
        assert rule in policy
    assert "unsafe" not in policy


def test_the_page_makes_text_nodes_only():
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|javascript:"
    )
    for path in STATIC.iterdir():
        assert not re.search(forbidden, path.read_text()), path
    assert not re.search(
        r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", (STATIC / "index.html").read_text()
    )


def test_files_beside_the_page_are_not_served(cloud):
    for name in ("service.py", "..%2Fservice.py", "%2Fetc%2Fpasswd", "__pycache__"):
        get(cloud, f"/_emulator/ui/static/{name}", expected=404)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", ""]
)
@pytest.mark.parametrize(
    "path", ["/", "/_emulator/ui/overview", "/_emulator/calls", "/opc/v2/instance/region"]
)
def test_a_name_that_was_pointed_at_this_machine_is_refused(cloud, host, path):
    get(cloud, path, expected=403, headers={"host": host})


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1:1", "[::1]:80"])
def test_this_machines_own_names_are_welcome(cloud, host):
    get(cloud, "/_emulator/ui/rules", headers={"host": host})


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_other_pages_neither_look_nor_touch(cloud, headers):
    get(cloud, "/_emulator/ui/calls", expected=403, headers=headers)
    url = f"{cloud.access.url}/_emulator"
    assert HTTP.post(f"{url}/faults", json={"status": 500}, headers=headers).status_code == 403
    assert HTTP.delete(f"{url}/calls", headers=headers).status_code == 403
    assert ui(cloud, "/rules")["faults"] == []


def test_the_page_itself_may_add_and_clear_rules(cloud):
    ours = {"origin": cloud.access.url, "sec-fetch-site": "same-origin"}
    url = f"{cloud.access.url}/_emulator/faults"
    assert HTTP.post(url, json={"path": "/n", "status": 503}, headers=ours).status_code == 200
    (fault,) = ui(cloud, "/rules")["faults"]
    assert (fault["path"], fault["status"], fault["left"]) == ("/n", 503, None)
    assert HTTP.delete(url, headers=ours).status_code == 204
    assert ui(cloud, "/rules")["faults"] == []


def test_the_overview_says_how_to_get_here(cloud):
    cloud.objects.get_namespace()
    overview = ui(cloud, "/overview")
    assert overview["url"] == cloud.access.url
    assert (
        overview["counts"] | {"jobs": 0, "runs": 0, "buckets": 1, "calls": 1, "rules": 0}
        == overview["counts"]
    )
    assert sum(overview["rate"]["calls"]) == 1
    told = "\n".join(client["text"] for client in overview["clients"])
    assert cloud.access.url in told
    assert cloud.access.config_file in told
    assert overview["ids"]["compartment_id"] == cloud.access.compartment_id


def test_no_secret_is_shown(cloud, emulator):
    job_id = cloud.job("pass", environment_variables={"HF_TOKEN": "hf_abc", "STEPS": "7"})
    answers = [
        get(cloud, f"/_emulator/ui{path}").text
        for path in ("/overview", "/jobs", f"/jobs/{job_id}", "/buckets", "/calls", "/rules")
    ]
    for secret in (emulator.access.secret_value, "PRIVATE KEY", "hf_abc"):
        assert not any(secret in answer for answer in answers)
    settings = dict(ui(cloud, f"/jobs/{job_id}")["settings"])
    assert settings["jobConfigurationDetails.environmentVariables.STEPS"] == "7"
    assert settings["jobConfigurationDetails.environmentVariables.HF_TOKEN"] == "(hidden)"


def test_the_bucket_of_a_job_is_named_in_its_lines_and_settings(cloud):
    uri = f"oci://{cloud.access.bucket}@{cloud.access.namespace}/work"
    job_id = cloud.job(f"print('saved to {uri}')", environment_variables={"PLACE": uri})
    cloud.wait(cloud.start(job_id))
    assert lines_of(ui(cloud, f"/jobs/{job_id}/logs")) == [f"saved to {uri}"]
    assert (
        dict(ui(cloud, f"/jobs/{job_id}")["settings"])["jobConfigurationDetails.environmentVariables.PLACE"]
        == uri
    )


def test_the_url_of_a_pre_authenticated_request_is_not_shown(cloud):
    HTTP.get(f"{cloud.access.url}/p/the-secret/n/{cloud.access.namespace}/b/ocidist/o/x")
    (call,) = ui(cloud, "/calls")["calls"]
    assert call["path"] == f"/p/(hidden)/n/{cloud.access.namespace}/b/ocidist/o/x"


def test_what_the_page_asks_is_not_recorded(cloud):
    ui(cloud, "/jobs")
    ui(cloud, "/buckets")
    get(cloud, "/")
    assert ui(cloud, "/calls") == {"calls": [], "last": None, "total": 0}


def test_a_jobs_runs_are_reported_with_times_and_states(cloud):
    job_id = cloud.job("import sys; sys.exit(3)", environment_variables={"A": "b"})
    runs = [cloud.start(job_id, display_name=f"{HOSTILE}-{rank}") for rank in range(2)]
    for run_id in runs:
        cloud.wait(run_id)
    (row,) = ui(cloud, "/jobs")["jobs"]
    assert (row["id"], row["states"]) == (job_id, {"FAILED": 2})
    job = ui(cloud, f"/jobs/{job_id}")
    assert job["artifact"] == {"name": "program.py", "size": 23}
    assert {run["name"] for run in job["runs"]} == {f"{HOSTILE}-{rank}" for rank in range(2)}
    for run in job["runs"]:
        assert run["state"] == "FAILED"
        assert "exit code 3" in run["details"]
        assert run["accepted"] <= run["started"] <= run["finished"]
    get(cloud, "/_emulator/ui/jobs/ocid1.datasciencejob.oc1.iad.none", expected=404)


def test_jobs_are_found_by_name_and_come_in_pages(cloud):
    for name in ("one", "two", "three"):
        details = cloud.job_details()
        details.display_name = name
        cloud.jobs.create_job(details)
        time.sleep(0.002)
    assert [job["name"] for job in ui(cloud, "/jobs", search="THREE")["jobs"]] == ["three"]
    second = ui(cloud, "/jobs", start=1, limit=1)
    assert ([job["name"] for job in second["jobs"]], second["total"]) == (["two"], 3)


def test_logs_of_a_gang_are_one_stream_that_goes_on(cloud, tmp_path):
    gate = tmp_path / "gate"
    program = f"""
import os, pathlib, sys, time
print("{HOSTILE}")
sys.stderr.write("warning\\n")
while not pathlib.Path({str(gate)!r}).exists():
    time.sleep(0.01)
print("more")
"""
    job_id = cloud.job(program)
    runs = [cloud.start(job_id, display_name=f"rank-{rank}") for rank in range(2)]
    path = f"/jobs/{job_id}/logs"
    deadline = time.monotonic() + 20
    while len((first := ui(cloud, path))["lines"]) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert sorted(lines_of(first)) == [HOSTILE, HOSTILE, "warning", "warning"]
    assert {line["run"] for line in first["lines"]} == set(runs)
    assert all(line["error"] is (line["text"] == "warning") for line in first["lines"])
    assert ui(cloud, path, after=first["after"])["lines"] == []
    gate.touch()
    for run_id in runs:
        cloud.wait(run_id)
    time.sleep(0.01)
    assert lines_of(ui(cloud, path, after=first["after"])) == ["more", "more"]
    assert lines_of(ui(cloud, path, run=runs[0])) == [HOSTILE, "warning", "more"]


def test_long_logs_come_in_pieces_both_ways_and_none_is_missing(cloud):
    job_id = cloud.job("for i in range(1700): print(i)")
    start = ui(cloud, f"/jobs/{job_id}/logs")
    cloud.wait(cloud.start(job_id))
    path = f"/jobs/{job_id}/logs"
    # A burst is stamped with the milliseconds that follow, and nobody reads the future.
    deadline = time.monotonic() + 20
    while (found := lines_of(newest := ui(cloud, path)))[-1:] != ["1699"]:
        assert time.monotonic() < deadline
    assert len(found) == 500
    while newest["before"]:
        newest = ui(cloud, path, before=newest["before"])
        found = lines_of(newest) + found
    assert found == [str(i) for i in range(1700)]
    forward, answer = [], {"more": True, "after": start["after"]}
    while answer["more"]:
        answer = ui(cloud, path, after=answer["after"])
        assert len(answer["lines"]) <= 500
        forward += lines_of(answer)
    assert forward == found
    get(cloud, f"/_emulator/ui{path}", expected=400, after="nonsense")


def test_a_job_without_logging_has_no_lines(cloud):
    job_id = cloud.job("print(1)", logging=False)
    cloud.wait(cloud.start(job_id))
    assert ui(cloud, f"/jobs/{job_id}/logs")["lines"] == []


def test_nodes_of_a_multi_node_run_are_distinguished(cloud):
    group = models.JobNodeGroupConfigurationDetails(
        name="workers",
        replicas=2,
        job_configuration_details=models.DefaultJobConfigurationDetails(),
        job_infrastructure_configuration_details=models.MultiNodeJobInfrastructureConfigurationDetails(
            shape_name="VM.Standard.E4.Flex", block_storage_size_in_gbs=50
        ),
    )
    details = cloud.job_details()
    details.job_configuration_details = details.job_infrastructure_configuration_details = None
    details.job_node_configuration_details = models.MultiNodeJobNodeConfigurationDetails(
        job_network_configuration=models.JobDefaultNetworkConfiguration(),
        job_node_group_configuration_details_list=[group],
    )
    job_id = cloud.jobs.create_job(details).data.id
    program = b"import os; print(os.environ['NODE_RANK'])"
    cloud.jobs.create_job_artifact(job_id, program, content_disposition="attachment; filename=p.py")
    cloud.wait(cloud.start(job_id))
    time.sleep(0.01)
    (run,) = ui(cloud, f"/jobs/{job_id}")["runs"]
    assert [each["name"] for each in run["groups"]] == ["workers"]
    assert [(node["rank"], node["group"], node["exit_code"]) for node in run["nodes"]] == [
        (0, "workers", 0),
        (1, "workers", 0),
    ]
    for node in run["nodes"]:
        assert node["state"] == "SUCCEEDED"
        assert node["accepted"] <= node["started"] <= node["finished"]
        assert node["address"].startswith("127.")
    lines = ui(cloud, f"/jobs/{job_id}/logs")["lines"]
    assert sorted((line["text"], line["node"]) for line in lines) == [("0", "node-0"), ("1", "node-1")]


def test_objects_are_listed_by_prefix_under_any_name(cloud):
    names = ["a/b.txt", "a/c/d.txt", f"{HOSTILE}.html", "träin #?%.txt", "../up", "x//y", "."]
    for name in names:
        cloud.objects.put_object(*cloud.place, name, b"x" * len(name))
    (bucket,) = ui(cloud, "/buckets")["buckets"]
    top = ui(cloud, f"/buckets/{bucket['name']}/objects")
    assert top["prefixes"] == ["../", "a/", "x/"]
    assert [each["name"] for each in top["objects"]] == sorted([f"{HOSTILE}.html", "träin #?%.txt", "."])
    inside = ui(cloud, f"/buckets/{bucket['name']}/objects", prefix="a/")
    assert (inside["prefixes"], [each["size"] for each in inside["objects"]]) == (["a/c/"], [7])
    get(cloud, "/_emulator/ui/buckets/absent/objects", expected=404)


def test_a_large_bucket_comes_in_pages(cloud):
    for name in "abc":
        cloud.objects.put_object(*cloud.place, name, b"")
    path = f"/buckets/{cloud.access.bucket}/objects"
    first = ui(cloud, path, limit=2)
    second = ui(cloud, path, limit=2, start=first["next"])
    assert [each["name"] for each in first["objects"]] == ["a", "b"]
    assert ([each["name"] for each in second["objects"]], second["next"]) == (["c"], None)


def test_an_object_is_handed_out_so_that_a_browser_runs_nothing_of_it(cloud):
    put = cloud.objects.put_object
    put(
        *cloud.place,
        "a/page.html",
        b"<script>alert(1)</script>",
        content_type="text/html",
        content_encoding="gzip",
    )
    put(*cloud.place, "picture.svg", b"<svg onload='alert(1)'/>")
    base = f"/_emulator/ui/buckets/{cloud.access.bucket}/objects"
    page = HTTP.build_request("GET", f"{cloud.access.url}{base}/a%2Fpage%2Ehtml")
    answer = HTTP.send(page)
    assert answer.content == b"<script>alert(1)</script>"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''page%2Ehtml"
    picture = get(cloud, f"{base}/picture.svg")
    assert picture.headers["content-type"] == "image/svg+xml"
    for each in (answer, picture):
        assert each.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        assert each.headers["x-content-type-options"] == "nosniff"
    part = get(cloud, f"{base}/picture.svg", expected=206, headers={"range": "bytes=0-3"})
    assert part.content == b"<svg"
    get(cloud, f"{base}/absent", expected=404)


def test_what_clients_store_is_no_page_of_ours_when_a_browser_opens_it():
    with Emulator(options=Options(verify_signatures=False)) as emulator:
        url = f"{emulator.url}/n/{emulator.ids.namespace}/b/{emulator.ids.bucket}/o/page.html"
        page = b"<script>fetch('/_emulator/ui/overview')</script>"
        HTTP.put(url, content=page, headers={"content-type": "text/html"}).raise_for_status()
        opened = HTTP.get(url, headers={"sec-fetch-mode": "navigate", "sec-fetch-site": "none"})
        assert opened.content == page
        assert opened.headers["content-security-policy"] == "sandbox"
        assert "content-security-policy" not in HTTP.get(url).headers


def test_calls_come_newest_first_and_then_only_the_new_ones(cloud):
    for _ in range(3):
        cloud.objects.get_namespace()
    first = ui(cloud, "/calls")
    assert [(call["method"], call["path"], call["status"]) for call in first["calls"]] == [
        ("GET", "/n", 200)
    ] * 3
    assert first["calls"][0]["ms"] > 0
    assert ui(cloud, "/calls", last=first["last"])["calls"] == []
    HTTP.get(f"{cloud.access.url}/{HOSTILE}")
    (call,) = ui(cloud, "/calls", last=first["last"])["calls"]
    assert (call["status"], call["error"]) == (404, False)
    assert HTTP.post(f"{cloud.access.url}/{HOSTILE}").status_code == 404
    (error,) = ui(cloud, "/calls", errors="true")["calls"]
    assert (error["method"], error["error"]) == ("POST", True)
    assert len(ui(cloud, "/calls", search="get /n ")["calls"]) == 3
    assert len(ui(cloud, "/calls", limit=2)["calls"]) == 2


def test_the_page_misses_no_call_however_many_come_between_two_of_its_looks(cloud):
    kept = int(re.search(r"MAX_ROWS = (\d+)", get(cloud, "/_emulator/ui/static/calls.js").text)[1])
    assert kept == call_list.MAX_ROWS
    HTTP.get(f"{cloud.access.url}/{HOSTILE}")
    first = ui(cloud, "/calls")
    with httpx.Client(verify=False, trust_env=False) as client:
        for number in range(250):
            client.get(f"{cloud.access.url}/{number}")
    found = ui(cloud, "/calls", last=first["last"])["calls"]
    assert [call["path"] for call in found] == [f"/{number}" for number in reversed(range(250))]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_is_not_there_yet_is_counted_apart_from_errors(cloud, method):
    for status in (404, 404, 409, 500):
        HTTP.post(
            f"{cloud.access.url}/_emulator/faults", json={"path": "/n/.*", "status": status, "times": 1}
        )
        HTTP.request(method, f"{cloud.access.url}/n/x/b/y/o/board.json")
    rate = ui(cloud, "/overview")["rate"]
    assert {name: sum(counts) for name, counts in rate.items()} == {"calls": 4, "errors": 2, "absent": 2}


@pytest.mark.parametrize(
    "text, level",
    [
        ("ocidist: node 0 has joined; 0 errors", ""),
        ("ocidist: WARNING: 3 checkpoints wait", "warning"),
        ("[node 1] ocidist: ERROR: node 1 of 2 failed: USER: exit code 1", "error"),
        ("step 3/9 loss 0.5", ""),
        ("2026-11-28 02:20:00,000 WARNING train: the disk is slow", "warning"),
        ("train.py:3: UserWarning: deprecated", "warning"),
        ("[rank1] 2026-11-28 02:20:00,000 ERROR train: node 1 has failed", "error"),
        ("Traceback (most recent call last):", "error"),
        ("ValueError: no data", "error"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory", "error"),
        ("KeyboardInterrupt", "error"),
    ],
)
def test_lines_are_coloured_by_their_level_and_not_by_their_stream(text, level):
    assert log_tail.level_of(text) == level


def test_a_late_log_is_late_here_too():
    with Emulator(options=Options(log_lag_s=3)) as emulator:
        cloud = Cloud.of(emulator.access)
        job_id = cloud.job("print('late')")
        start = ui(cloud, f"/jobs/{job_id}/logs")
        cloud.wait(cloud.start(job_id))
        early = ui(cloud, f"/jobs/{job_id}/logs", after=start["after"])
        assert early["lines"] == []
        deadline = time.monotonic() + 30
        while not (found := lines_of(ui(cloud, f"/jobs/{job_id}/logs", after=early["after"]))):
            assert time.monotonic() < deadline, "no line has come"
            time.sleep(0.1)
        assert found == ["late"]


def test_the_page_works_in_a_browser(cloud):
    """Chromium alone, without a driver: it draws the page and prints what it has drawn."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed; it would only draw what the other tests have asked for")
    job_id = cloud.job(f"print({HOSTILE!r})")
    cloud.wait(cloud.start(job_id, display_name=HOSTILE))
    page = drawn(browser, f"{cloud.access.url}/#/jobs/{job_id}")
    text = HOSTILE.replace("<", "&lt;").replace(">", "&gt;")
    assert f'<th scope="row">{text}</th>' in page
    assert f'<span class="text">{text}</span>' in page
    assert "<img src=x" not in page


@pytest.mark.parametrize(
    "place, title",
    [
        ("", "Overview"),
        ("overview", "Overview"),
        ("rules", "Faults"),
        ("faults", "Faults"),
        ("nonsense", "No such page"),
    ],
)
def test_an_address_shows_its_page_or_that_there_is_none(cloud, place, title):
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed; it would only draw what the other tests have asked for")
    assert f"<h1>{title}</h1>" in drawn(browser, f"{cloud.access.url}/#/{place}")


def drawn(browser, url):
    """Return the page's HTML as it is after its scripts have run."""
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-proxy-server",
        "--virtual-time-budget=2000",
    ]
    done = subprocess.run(
        [browser, *options, "--dump-dom", url], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout
