"""Job files from anywhere: paths, the bucket of a connection, web servers, any fsspec URI."""

from __future__ import annotations

import contextlib
import functools
import threading
import uuid
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest

from airflow_provider_ocidist.errors import JobFileError, StorageError
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.job_file.text import read
from airflow_provider_ocidist.oci_client.credentials import access_of
from airflow_provider_ocidist.storage.stores.opening import open_store

TEXT = "name: x\nprogram: {script: gpt.py, source: ../train}\n"


class Pages(BaseHTTPRequestHandler):
    """A web server with one job file, one page, one that is too long, and one that never ends."""

    def do_GET(self) -> None:
        with contextlib.suppress(ConnectionError):
            self.answer()

    def answer(self) -> None:
        path = self.path.partition("?")[0]
        bodies = {
            "/jobs/job.yaml": TEXT.encode(),
            "/page": b"<!DOCTYPE html><html></html>",
            "/long.yaml": b"#" * 5_000_000,
        }
        if path == "/endless.yaml":
            self.send_response(200)
            self.end_headers()
            with_piece = functools.partial(self.wfile.write, b"#" * 65536)
            for _ in range(200):
                with_piece()
            return
        if path == "/private.yaml":
            self.send_error(403)
            return
        if path not in bodies:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(bodies[path])))
        self.end_headers()
        self.wfile.write(bodies[path])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def test_a_job_in_a_bucket_has_its_code_beside_it(fields):
    access = access_of(fields)
    folder = f"{fields['work_dir']}/{uuid.uuid4().hex}"
    open_store(f"{folder}/jobs", access).write("job.yaml", TEXT.encode())
    job = parsing.load(f"{folder}/jobs/job.yaml", access=access)
    assert job.program.source == f"{folder}/train"
    with pytest.raises(JobFileError, match="cannot be read: No such file"):
        parsing.load(f"{folder}/jobs/absent.yaml", access=access)


def test_so_has_one_on_a_web_server(web):
    assert parsing.load(f"{web}/jobs/job.yaml").program.source == f"{web}/train"


def test_so_has_one_at_any_uri_of_fsspec(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "gpt.py").touch()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.yaml").write_text(TEXT)
    assert parsing.load(f"file://{tmp_path}/jobs/job.yaml").program.source == str(tmp_path / "train")
    name = uuid.uuid4().hex
    fsspec.filesystem("memory").pipe(f"/{name}/jobs/job.yaml", TEXT.encode())
    assert parsing.load(f"memory://{name}/jobs/job.yaml").program.source == f"memory://{name}/train"


@pytest.mark.parametrize(
    "base, source, place",
    [
        ("oci://b@n/", "../../x/", "oci://b@n/x/"),
        ("oci://b@n/a/b/", "./c.zip", "oci://b@n/a/b/c.zip"),
        ("https://host/a/", ".", "https://host/a"),
        ("oci://b@n/a/", "/etc", "/etc"),
        ("oci://b@n/a/", "git@host:x.git", "git@host:x.git"),
    ],
)
def test_relative_code_never_leaves_its_bucket(base, source, place):
    job = {"name": "x", "program": {"script": "-", "module": True, "source": source}}
    assert parsing.build(job, base_dir=base).program.source == place


def test_a_query_opens_one_file_alone_and_is_never_shown(web):
    place = f"{web}/jobs/job.yaml?token=secret"
    with pytest.raises(
        JobFileError, match=r"program\.source: is relative to the job file, but an address with a query"
    ) as caught:
        parsing.load(place)
    assert "secret" not in str(caught.value)
    with pytest.raises(JobFileError) as caught:
        parsing.load(f"{web.replace('//', '//user:secret@')}/p/secret/n/absent.yaml?token=secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "path, problem",
    [
        ("/absent.yaml", "cannot be read: No such file"),
        ("/page", "is a web page, no job file: use the address of the bare file"),
        ("/long.yaml", "is longer than 1000000 characters"),
        ("/endless.yaml", "is longer than 1000000 characters"),
    ],
)
def test_what_cannot_be_read_says_why(web, path, problem):
    with pytest.raises(JobFileError, match=problem):
        parsing.load(f"{web}{path}")


@pytest.mark.parametrize(
    "path, problem", [("/private.yaml", "it refuses"), ("/", "it names a folder, not a file")]
)
def test_a_place_that_does_not_give_it_away_may_do_so_later(web, path, problem):
    with pytest.raises(StorageError, match=problem) as caught:
        parsing.load(f"{web.replace('//', '//user:secret@')}{path}?token=secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("place", ["nosuch://x/job.yaml", "http://127.0.0.1:1/job.yaml"])
def test_so_may_one_that_cannot_be_reached(place):
    with pytest.raises(StorageError):
        parsing.load(place)


def test_a_mark_of_byte_order_is_no_part_of_a_file(tmp_path):
    (tmp_path / "job.yaml").write_bytes(b"\xef\xbb\xbfname: x\nimage: i\nprogram: {script: a.py}\n")
    assert parsing.load(tmp_path / "job.yaml").name == "x"


def test_a_job_file_in_a_zip_file_is_refused_with_the_reason_and_the_remedy(tmp_path: Path) -> None:
    archive = tmp_path / "dags.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("dag.py", "")
        made.writestr("jobs/a.yaml", "name: x")
    with pytest.raises(JobFileError) as raised:
        read(archive / "jobs" / "a.yaml")
    (problem,) = raised.value.problems
    assert str(problem) == (
        f"is in the zip file {archive}, and job files are not read from there: name it by a URI, or write the job as "
        "a mapping in the DAG file"
    )


def test_a_job_file_below_a_file_that_is_no_zip_keeps_the_reason_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    with pytest.raises(JobFileError, match="Not a directory"):
        read(tmp_path / "plain" / "a.yaml")
