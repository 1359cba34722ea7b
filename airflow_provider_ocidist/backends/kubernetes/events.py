"""What events say of the objects of gangs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from airflow_provider_ocidist.backends.kubernetes.objects import Obj, picked, reason_and_message
from airflow_provider_ocidist.backports import unix_time

PREEMPTED, EVICTED = "Preempted", "Evicted"
TAKEN = (PREEMPTED, EVICTED)
"""Reasons of the events by which the scheduler and a kubelet name a pod that they have ended; they outlive the pod."""


class Warned(NamedTuple):
    """What a warning says of an object, and when it did so last."""

    at: float
    """Unix time; 0 where the warning has none."""
    text: str


def fields_read(event: Obj) -> Obj:
    """Return what is read of an event."""
    wanted = ("type", "reason", "message", "lastTimestamp", "eventTime", "firstTimestamp", "series")
    return {
        **picked(event, wanted),
        "involvedObject": picked(event.get("involvedObject") or {}, ("kind", "name")),
    }


def warnings_by_object(events: Iterable[Obj]) -> dict[tuple[str, str], list[Warned]]:
    """Return the warnings by kind and name of what they are about: the last of each reason, the oldest first."""
    found: dict[tuple[str, str], dict[str, Warned]] = {}
    for event in events:
        about = event.get("involvedObject") or {}
        if event.get("type") == "Normal":
            continue
        at = unix_time(_last_time(event)) or 0.0
        place = found.setdefault((str(about.get("kind")), str(about.get("name"))), {})
        reason, text = str(event.get("reason")), reason_and_message(event)
        if reason not in place or place[reason].at <= at:
            place[reason] = Warned(at, text)
    return {name: sorted(texts.values()) for name, texts in found.items()}


def _last_time(event: Obj) -> str | None:
    # Events of the form of events.k8s.io have no lastTimestamp: where one is repeated, its series has the time.
    repeated = (event.get("series") or {}).get("lastObservedTime")
    return event.get("lastTimestamp") or repeated or event.get("eventTime") or event.get("firstTimestamp")


def sentences_by_pod(events: Iterable[Obj]) -> dict[str, str]:
    """Return what events say of pods, by name and by UID: another pod may have the name of one that is gone."""
    found = {}
    for event in events:
        about, text = event.get("involvedObject") or {}, reason_and_message(event)
        found.update({str(about[name]): text for name in ("name", "uid") if about.get(name)})
    return found
