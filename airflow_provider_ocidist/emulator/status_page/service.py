"""The routes of the status page: the page itself, and the JSON that it asks for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist import __version__
from airflow_provider_ocidist.emulator.access import Access, clients
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.control import BASE, Control
from airflow_provider_ocidist.emulator.errors import not_found
from airflow_provider_ocidist.emulator.status_page import call_list
from airflow_provider_ocidist.emulator.status_page.browser import PAGE, PAGE_HEADERS
from airflow_provider_ocidist.emulator.status_page.inside import Inside
from airflow_provider_ocidist.emulator.status_page.log_tail import LastLines
from airflow_provider_ocidist.emulator.status_page.secrets import hide
from airflow_provider_ocidist.emulator.status_page.storage import Storage
from airflow_provider_ocidist.emulator.status_page.training import TrainingView
from airflow_provider_ocidist.emulator.wire import Call, Principal, Route, Router, answer

UI = f"{BASE}/ui"
STATIC = Path(__file__).with_name("static")
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
SHOWN_IDS = (
    "namespace",
    "bucket",
    "tenancy_id",
    "compartment_id",
    "project_id",
    "subnet_id",
    "log_group_id",
    "log_id",
)


class StatusPage:
    """Answers the browser. It costs nothing without an open page: all is read on request."""

    def __init__(self, context: Context, control: Control, training: TrainingView, services: Router) -> None:
        ids, options = context.ids, context.options
        inside = Inside(services, Principal(id=ids.user_id, tenancy_id=ids.tenancy_id))
        self._context = context
        self._control = control
        self._training = training
        self._storage = Storage(inside, ids)
        self._logs = LastLines(inside, options.log_lag_s + options.log_jitter_s)
        self._files = {path.name: path for path in STATIC.iterdir() if path.suffix in CONTENT_TYPES}
        self._started = time.time()

    def routes(self) -> list[Route]:
        answers = {
            PAGE: self.page,
            f"{UI}/static/{{name}}": self.static,
            f"{UI}/overview": self.overview,
            f"{UI}/jobs": self.jobs,
            f"{UI}/jobs/{{id}}": self.job,
            f"{UI}/jobs/{{id}}/logs": self.logs,
            f"{UI}/buckets": self.buckets,
            f"{UI}/buckets/{{bucket}}/objects": self.objects,
            f"{UI}/buckets/{{bucket}}/objects/{{name...}}": self.object,
            f"{UI}/calls": self.calls,
            f"{UI}/rules": self.rules,
        }
        return [Route("GET", template, handler, signed=False) for template, handler in answers.items()]

    async def page(self, _: Call) -> Response:
        return self._file("index.html")

    async def static(self, call: Call) -> Response:
        return self._file(call.params["name"])

    def _file(self, name: str) -> Response:
        path = self._files.get(name)
        if path is None:
            raise not_found()
        return Response(path.read_bytes(), headers=PAGE_HEADERS, media_type=CONTENT_TYPES[path.suffix])

    async def overview(self, _: Call) -> Response:
        context, ids = self._context, asdict(self._context.ids)
        rules = [*self._control.faults.bodies(), *self._control.nodes.bodies()]
        counts = {
            **self._training.counts(),
            "buckets": len(await self._storage.buckets()),
            "calls": len(self._control.calls),
            "rules": sum(rule.get("left") != 0 for rule in rules),
        }
        return _fresh(
            {
                "url": context.url,
                "region": ids["region"],
                "version": __version__,
                "started": self._started,
                "signatures": context.options.verify_signatures,
                "counts": counts,
                "rate": call_list.rate(self._control.calls),
                "jobs": self._training.jobs(search="", start=0, limit=5)["jobs"],
                "clients": [asdict(client) for client in clients(Access.of(context))],
                "ids": {name: ids[name] for name in SHOWN_IDS},
            }
        )

    async def jobs(self, call: Call) -> Response:
        start, limit = call.number("start", 0, 0, 1_000_000), call.number("limit", 50, 1, 200)
        return _fresh(self._training.jobs(search=call.query.get("search", ""), start=start, limit=limit))

    async def job(self, call: Call) -> Response:
        return _fresh(self._training.job(call.params["id"]))

    async def logs(self, call: Call) -> Response:
        """Return lines of one run of the job (`run`), or of all: the newest, those `before` or `after` a place."""
        wanted = call.query.get("run") or None
        runs = [run for run in self._training.runs(call.params["id"]) if wanted in (None, run.id)]
        if "after" in call.query:
            found = await self._logs.after(runs, call.query["after"])
        elif "before" in call.query:
            found = await self._logs.before(runs, call.query["before"])
        else:
            found = await self._logs.newest(runs)
        secrets = self._training.secrets(call.params["id"])
        lines = [{**line, "text": hide(line["text"], secrets)} for line in found["lines"]]
        return _fresh({**found, "lines": lines})

    async def buckets(self, _: Call) -> Response:
        namespace = self._context.ids.namespace
        return _fresh({"namespace": namespace, "buckets": await self._storage.buckets()})

    async def objects(self, call: Call) -> Response:
        given = {name: call.query[name] for name in ("prefix", "start") if call.query.get(name)}
        limit = call.number("limit", 200, 1, 1000)
        return _fresh(await self._storage.objects(call.params["bucket"], limit=limit, **given))

    async def object(self, call: Call) -> Response:
        part = {"range": call.headers["range"]} if "range" in call.headers else {}
        keep = "download" in call.query
        return await self._storage.object(call.params["bucket"], call.params["name"], part, keep=keep)

    async def calls(self, call: Call) -> Response:
        return _fresh(
            call_list.since(
                self._control.calls,
                call.query.get("last"),
                limit=call.number("limit", call_list.MAX_ROWS, 1, call_list.MAX_ROWS),
                search=call.query.get("search", ""),
                errors_only=call.query.get("errors") == "true",
            )
        )

    async def rules(self, _: Call) -> Response:
        return _fresh({"faults": self._control.faults.bodies(), "nodes": self._control.nodes.bodies()})


def _fresh(body: Mapping[str, Any]) -> Response:
    """Return JSON that only our own page may read, and no cache keeps."""
    return answer(body, headers={**PAGE_HEADERS, "cache-control": "no-store"})
