"""The page in a browser: Chromium alone, without a driver, prints what it has drawn."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import pytest

from airflow_provider_ocidist.plugin.files import CONTENT_TYPES, HEADERS, STATIC
from airflow_provider_ocidist.plugin.status_cache import Snapshot
from airflow_provider_ocidist.plugin.view import run_row, task_view
from tests.plugin.gangs import HOSTILE, NOW, TASK, failed, fewer, record, ref, restarted, running

BROWSER = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="chromium is not installed; what the page is given is tested all the same"
)
SHOWN = HOSTILE.replace("<", "&lt;").replace(">", "&gt;")
LINES = {"rank": 0, "lines": [{"id": "1", "time": NOW, "text": HOSTILE}], "problem": None}
ANSWERS = {
    "large": (200, task_view(record(ref(1000)), running(1000), NOW)),
    "failed": (200, task_view(record(state="failed"), failed(), NOW)),
    "moved": (200, task_view(record(ref(candidate=f"shape {HOSTILE}")), running(), NOW)),
    "restarted": (200, task_view(record(), restarted(), NOW)),
    "fewer": (200, task_view(record(ref(3)), fewer(), NOW)),
    "of-pods": (200, task_view(record(ref(backend="pytorchjob")), Snapshot(), NOW)),
    "unreachable": (200, task_view(record(), Snapshot(problem="no route to the region"), NOW)),
    "not-ours": (200, task_view(replace(record(), operator="BashOperator", ref=None), Snapshot(), NOW)),
    "nothing-yet": (200, task_view(replace(record(), ref=None, state="queued"), Snapshot(), NOW)),
    "signed-out": (401, {"detail": "Not authenticated"}),
    "forbidden": (403, {"detail": "Forbidden"}),
}
"""By task id."""
UNSTEADY = [ANSWERS["nothing-yet"], (503, {"detail": "the database is away"}), ANSWERS["nothing-yet"]]
"""Answers for one task, one after another; the last one stays."""
# Starting a browser takes longer than all it draws: every state is drawn into one document.
ALL = """<!doctype html><body><script type="module" src="static/all.js"></script>"""
ALL_SCRIPT = """
import { task } from "./task.js";
for (const name of [...%s, "unsteady"]) {
  const main = document.createElement("main");
  main.dataset.task = name;
  document.body.append(main);
  task(main, { dag_id: "nightly", run_id: "r/1", task_id: name, map_index: -1 });
}
"""

LOSSES = [2.3055, 2.3045, 0.00012345, 1234.6, 0.5]
WORDS = """<!doctype html><body><script type="module" src="static/words-shown.js"></script>"""
WORDS_SCRIPT = """
import { moment, significant } from "./words.js";
for (const text of [...%s.map((each) => significant(each)), moment(1790000000)]) {
  const place = document.createElement("p");
  place.className = "word";
  place.textContent = text;
  document.body.append(place);
}
"""
LIST = """<!doctype html><body><main></main><script type="module" src="static/list-shown.js"></script>"""
LIST_SCRIPT = """
import { runs } from "./runs.js";
const main = document.querySelector("main");
const button = () => [...main.querySelectorAll("button")].find((each) => !each.hidden);
const rows = () => main.querySelectorAll("tbody tr").length;
async function until(isSo) {
  while (!isSo()) await new Promise((go) => setTimeout(go, 50));
}
function note(text) {
  const place = document.createElement("p");
  place.className = "word";
  place.textContent = text;
  document.body.append(place);
}
runs(main);
await until(button);
await fetch("api/go-on?runs=60");
await until(() => main.textContent.includes("number 60."));
await fetch("api/go-on?runs=60&refuses=1");
button().click();
await until(() => main.querySelector("[role=alert]"));
note(`${main.querySelector("[role=alert]").textContent} ${button()?.textContent}`);
await fetch("api/go-on?runs=60");
button().click();
button()?.click();
await until(() => rows() >= 60 && !main.querySelector("[role=alert]"));
await fetch("api/go-on?runs=70");
await until(() => main.textContent.includes("number 70."));
note("the end");
"""


class Stage:
    """Serves the page's own files, and answers given beforehand."""

    is_long = False
    """Whether the list of all runs is the long one."""
    runs = 51
    """Number of training runs in the long list."""
    refuses = False
    """Whether the older ones of them cannot be had."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        stage = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path).removeprefix("/ocidist/")
                query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
                stage.asked.append(path)
                status, content, kind = stage.answer(path, query)
                self.send_response(status)
                for name, told in {**HEADERS, "Content-Type": kind, "Content-Length": len(content)}.items():
                    self.send_header(name, str(told))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, bytes, str]:
        if path == "api/go-on":
            self.runs, self.refuses = int(query["runs"]), "refuses" in query
            return as_json(200, {})
        if path == "api/runs" and self.is_long:
            return self.page_of_runs(int(query.get("before", self.runs + 1)))
        if path == "api/dags/nightly/runs/r/1/tasks/unsteady/-1":
            return as_json(*UNSTEADY[min(self.asked.count(path), len(UNSTEADY)) - 1])
        return answer(path)

    def page_of_runs(self, before: int) -> tuple[int, bytes, str]:
        if self.refuses and before <= self.runs:
            return as_json(503, {"detail": "the database is away."})
        last = max(1, before - 50)
        shown = [
            run_row(record(id=replace(TASK, run_id=f"number {each}.")))
            for each in range(before - 1, last - 1, -1)
        ]
        return as_json(200, {"runs": shown, "before": str(last) if last > 1 else None, "now": NOW})

    def drawn(self, path: str, seconds: float = 8) -> str:
        """Return the page's HTML as it is after its scripts have run for so long by their own clock."""
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-proxy-server",
            f"--virtual-time-budget={1000 * seconds:.0f}",
        ]
        url = f"http://127.0.0.1:{self.server.server_port}/ocidist/{path}"
        done = subprocess.run(
            [BROWSER, *options, "--dump-dom", url], capture_output=True, text=True, timeout=150, check=True
        )
        return done.stdout


def answer(path: str) -> tuple[int, bytes, str]:
    task = re.fullmatch(r"api/dags/nightly/runs/r/1/tasks/([\w-]+)/-1(/log)?", path)
    if task is not None:
        status, value = (200, LINES) if task[2] else ANSWERS[task[1]]
    elif path == "api/runs":
        odd = run_row(record(state="success", result={"progress": {"step": [], "loss": "low"}}))
        status, value = 200, {"runs": [run_row(record(state="success")), odd], "before": None, "now": NOW}
    else:
        made = {
            "all.html": ALL,
            "static/all.js": ALL_SCRIPT % json.dumps(list(ANSWERS)),
            "words.html": WORDS,
            "list.html": LIST,
            "static/list-shown.js": LIST_SCRIPT,
            "static/words-shown.js": WORDS_SCRIPT % json.dumps(LOSSES),
        }
        file = STATIC / (path.removeprefix("static/") or "index.html")
        content = made[path].encode() if path in made else file.read_bytes()
        return 200, content, CONTENT_TYPES[file.suffix]
    return as_json(status, value)


def as_json(status: int, value: object) -> tuple[int, bytes, str]:
    return status, json.dumps(value).encode(), "application/json"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    thread = threading.Thread(target=stage.server.serve_forever, daemon=True)
    thread.start()
    yield stage
    stage.server.shutdown()
    stage.server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def pages(stage: Stage) -> dict[str, str]:
    """What was drawn of each task, by its id."""
    parts = re.split(r'<main data-task="([\w-]+)">', stage.drawn("all.html"))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_of_a_thousand_nodes_a_page_is_shown_and_filters_are_offered(pages):
    page = pages["large"]
    assert "1 to 25 of 1,000" in page
    assert page.count('<th scope="row"') == 25 + 1  # nodes, checkpoints
    assert "Filter the nodes by state" in page
    assert '<progress max="1" value="0.4"' in page
    assert "about 2 min 0 s left" in page
    assert 'class="curve"' in page


def test_a_node_has_its_number_and_the_badge_says_where_global_rank_0_is(pages):
    page = pages["large"]
    assert ">Node</th>" in page
    assert ">Rank</th>" not in page
    assert '<span class="main" title="global rank 0 runs here">main</span>' in page


def test_numbers_are_rounded_as_in_the_log_and_hours_count_to_24(stage: Stage) -> None:
    shown = re.findall(r'<p class="word">([^<]*)</p>', stage.drawn("words.html"))
    *numbers, moment = shown
    assert [float(text.replace(",", "")) for text in numbers] == [float(f"{loss:.4g}") for loss in LOSSES]
    assert re.search(r"\b1[2-9]:|\b2[0-3]:|\b0\d:", moment)
    assert not re.search(r"[AP]M", moment)


def test_hostile_output_stays_text(pages):
    assert SHOWN in pages["large"]  # a log line
    assert SHOWN in pages["failed"]  # message and last lines
    assert "<img" not in "".join(pages.values())


def test_restarts_stand_in_a_table_with_cause_node_and_the_time_they_took(pages):
    page = pages["restarted"]
    assert "Launched again" in page
    row = page[page.index("Launched again") :].partition("<tbody>")[2].partition("</tbody>")[0]
    assert re.sub(r"<[^>]+>", "|", row).replace("||", "|").strip("|") == f"1|NODE|1|40|10 s|{SHOWN}"
    assert "Launched again" not in pages["failed"]


def test_a_gang_is_spoken_of_in_the_words_of_its_home(pages):
    assert "2 nodes, each a pod" in pages["of-pods"]
    assert "Copy the id of the main pod" in pages["of-pods"]
    assert "each a job run" in pages["large"]
    assert "Copy the OCID of the main job run" in pages["large"]


def test_a_node_without_which_the_others_train_is_marked_and_is_no_main_node(pages):
    assert ">2 take part</span>" in pages["fewer"]
    assert pages["fewer"].count(">takes no part<") == 1
    assert pages["fewer"].count(">main<") == 1
    assert "take part<" not in pages["large"]
    assert "takes no part" not in pages["large"]


def test_what_of_the_candidates_the_gang_has_become_stands_beside_its_attempt(pages):
    assert f">candidate: shape {SHOWN}</span>" in pages["moved"]
    assert "candidate: " not in pages["large"]


def test_a_failure_stands_on_top_with_its_remedy(pages):
    page = pages["failed"]
    assert f"node 1: ValueError: {SHOWN}" in page
    assert page.index("What to do: ") < page.index(">Nodes<")


def test_what_goes_on_is_looked_at_again_and_what_has_ended_is_not(pages, stage):
    asked = [path.removeprefix("api/dags/nightly/runs/r/1/tasks/") for path in stage.asked]
    assert asked.count("nothing-yet/-1") > 1
    assert asked.count("failed/-1") == asked.count("not-ours/-1") == asked.count("forbidden/-1") == 1


@pytest.mark.parametrize(
    "task, words",
    [
        ("not-ours", "starts none"),
        ("nothing-yet", "No node yet"),
        ("signed-out", "no longer signed in"),
        ("forbidden", "You may not see this task"),
        ("unreachable", "no route to the region"),
    ],
)
def test_what_there_is_not_is_said_kindly(pages, task, words):
    assert words in pages[task]


def test_an_error_is_gone_once_the_answer_is_as_before(pages: dict[str, str], stage: Stage) -> None:
    assert stage.asked.count("api/dags/nightly/runs/r/1/tasks/unsteady/-1") >= len(UNSTEADY)
    assert "No node yet" in pages["unsteady"]
    assert "the database is away" not in pages["unsteady"]


def test_a_list_with_older_runs_has_each_run_once_whatever_comes_meanwhile(stage: Stage) -> None:
    stage.is_long = True
    try:
        page = stage.drawn("list.html", seconds=120)
    finally:
        stage.is_long = False
    numbers = [int(each) for each in re.findall(r"number (\d+)\.", page)]
    assert numbers == list(range(70, 0, -1))
    notes = re.findall(r'<p class="word">([^<]*)</p>', page)
    assert notes == ["the database is away. Show older runs", "the end"]


def test_all_runs_are_listed_with_links_to_each(stage):
    page = stage.drawn("")
    query = urlencode(
        {"dag_id": TASK.dag_id, "run_id": TASK.run_id, "task_id": TASK.task_id, "map_index": -1}
    )
    link = f'<a href="?{query.replace("&", "&amp;")}">nightly / train</a>'
    assert page.count(link) == 2, "also that of a run with a loss that is no number"
