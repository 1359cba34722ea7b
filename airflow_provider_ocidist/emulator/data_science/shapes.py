"""The shapes that jobs can run on, as the service lists them."""

from __future__ import annotations

from collections.abc import Container
from difflib import get_close_matches

from starlette.responses import Response

from airflow_provider_ocidist.emulator.data_science.resources import BASE, MAX_PAGE
from airflow_provider_ocidist.emulator.errors import invalid
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, page

SHAPES = (
    ("VM.Standard2.1", 1, 15, "LEGACY"),
    ("VM.Standard2.2", 2, 30, "LEGACY"),
    ("VM.Standard2.4", 4, 60, "LEGACY"),
    ("VM.Standard2.8", 8, 120, "LEGACY"),
    ("VM.Standard2.16", 16, 240, "LEGACY"),
    ("VM.Standard2.24", 24, 320, "LEGACY"),
    ("VM.Standard3.Flex", 32, 512, "INTEL_SKYLAKE"),
    ("VM.Optimized3.Flex", 18, 256, "INTEL_SKYLAKE"),
    ("VM.Standard.E3.Flex", 64, 1024, "AMD_ROME"),
    ("VM.Standard.E4.Flex", 64, 1024, "AMD_ROME"),
    ("VM.Standard.E5.Flex", 94, 1049, "GENERIC"),
    ("VM.Standard.A1.Flex", 80, 512, "ARM"),
    ("VM.GPU2.1", 12, 72, "NVIDIA_GPU"),
    ("VM.GPU3.1", 6, 90, "NVIDIA_GPU"),
    ("VM.GPU3.2", 12, 180, "NVIDIA_GPU"),
    ("VM.GPU3.4", 24, 360, "NVIDIA_GPU"),
    ("VM.GPU.A10.1", 15, 240, "NVIDIA_GPU"),
    ("VM.GPU.A10.2", 30, 480, "NVIDIA_GPU"),
    ("BM.GPU.A10.4", 64, 1024, "NVIDIA_GPU"),
    ("BM.GPU4.8", 64, 2048, "NVIDIA_GPU"),
    ("BM.GPU.A100-v2.8", 128, 2048, "NVIDIA_GPU"),
    ("BM.GPU.L40S-NC.4", 112, 1024, "NVIDIA_GPU"),
    ("BM.GPU.H100.8", 112, 2048, "NVIDIA_GPU"),
    ("BM.GPU.H200.8", 112, 3072, "NVIDIA_GPU"),
)
"""Name, cores and memory (of a flexible shape the most that it can have), series."""
FAST_LAUNCH = ("VM.Standard2.1", "VM.Standard2.2", "VM.Standard2.4", "VM.Standard2.8")
"""Shapes for which the service keeps machines ready."""


def check(name: str, more: Container[str]) -> None:
    """Raise 400 unless a shape is one of the service's, or of `more`."""
    known = [shape[0] for shape in SHAPES]
    if name in known or name in more:
        return
    near = get_close_matches(name, known, 3)
    hint = f"did you mean {' or '.join(near)}?" if near else "GET /20190101/jobShapes lists them."
    raise invalid(
        f"shapeName {name!r} is not a shape of this service: {hint} To make the emulator accept it: --shape {name}"
    )


class Shapes:
    """Lists shapes."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def routes(self) -> list[Route]:
        return [
            Route("GET", f"{BASE}/jobShapes", self.list_shapes),
            Route("GET", f"{BASE}/fastLaunchJobConfigs", self.list_fast_launch),
        ]

    async def list_shapes(self, call: Call) -> Response:
        names = ("name", "coreCount", "memoryInGBs", "shapeSeries")
        return self._page(call, [dict(zip(names, shape, strict=True)) for shape in SHAPES])

    async def list_fast_launch(self, call: Call) -> Response:
        names = ("shapeName", "coreCount", "memoryInGBs", "shapeSeries")
        known = [dict(zip(names, shape, strict=True)) for shape in SHAPES if shape[0] in FAST_LAUNCH]
        return self._page(
            call,
            [{**each, "name": each["shapeName"], "managedEgressSupport": "SUPPORTED"} for each in known],
        )

    def _page(self, call: Call, bodies: list[dict[str, object]]) -> Response:
        self._identity.compartment_in(call)
        call.number("limit", MAX_PAGE, 1, MAX_PAGE)
        chosen, headers = page(call, bodies, lambda body: (str(body["name"]), ""), default="ASC")
        return answer(chosen, headers=headers)
