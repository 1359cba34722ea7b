"""What events say of the objects of gangs. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_ocidist.backends.kubernetes.objects import Obj, picked, reason_and_message
from airflow_provider_ocidist.backports import unix_time

PREEMPTED = "Preempted"
"""Reason of the event by which the scheduler names a preempted pod; the event outlives the pod."""


def fields_read(event: Obj) -> Obj:
    """Return what is read of an event."""
    wanted = ("type", "reason", "message", "lastTimestamp", "eventTime", "firstTimestamp")
    return {
        **picked(event, wanted),
        "involvedObject": picked(event.get("involvedObject") or {}, ("kind", "name")),
    }


def warnings_by_object(events: Iterable[Obj]) -> dict[tuple[str, str], list[str]]:
    """Return the warnings by kind and name of what they are about: the last of each reason, the oldest first."""
    found: dict[tuple[str, str], dict[str, tuple[float, str]]] = {}
    for event in events:
        about = event.get("involvedObject") or {}
        if event.get("type") == "Normal":
            continue
        at = (
            unix_time(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp"))
            or 0.0
        )
        place = found.setdefault((str(about.get("kind")), str(about.get("name"))), {})
        reason, text = str(event.get("reason")), reason_and_message(event)
        if reason not in place or place[reason][0] <= at:
            place[reason] = (at, text)
    return {name: [text for _, text in sorted(texts.values())] for name, texts in found.items()}


def sentences_by_pod(events: Iterable[Obj]) -> dict[str, str]:
    """Return what events say of pods, by name."""
    return {
        str((event.get("involvedObject") or {}).get("name")): reason_and_message(event) for event in events
    }
