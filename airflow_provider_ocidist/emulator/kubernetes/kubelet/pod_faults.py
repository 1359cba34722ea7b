"""Faults of pods: killed, out of memory, evicted, preempted, lost with their node; images that are missing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, get_args, get_type_hints

from airflow_provider_ocidist.emulator import patterns
from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.kubernetes import events
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.kubelet import images, pod_status
from airflow_provider_ocidist.emulator.kubernetes.kubelet.kubelet import Kubelet
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pods import EVICTED, OOM_KILLED, PodLife
from airflow_provider_ocidist.emulator.kubernetes.metadata import now
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster, Event
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError

LOW_ON_MEMORY = (
    "The node was low on resource: memory. Threshold quantity: 100Mi, available: 89404Ki. Container {name} was using"
    " 1Gi, request is 0, has larger consumption of memory. "
)
PREEMPTING = "default-scheduler: preempting to accommodate a higher priority pod"
TAINTED = "Taint manager: deleting due to NoExecute taint"
TAINT_MANAGER = "taint-eviction-controller"
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}


RULES_S = 0.2
"""Seconds of a processor that all rules may take to look at one pod."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class PodRule:
    """Faults of some pods, of those that run and of those to come."""

    name: str = ".*"
    """Regular expression over all of the pod's name."""
    namespace: str = ".*"
    image: str = ".*"
    """Regular expression over all of the image's name, with `effect: image`."""
    effect: Literal["kill", "oom", "evict", "preempt", "lose_node", "image", "idle"]
    """Effect of the rule: kill the processes; kill them for lack of memory; evict; preempt; lose the machine; fail to
    pull the image; run the containers without a process until they are ended: thousands fit on one machine."""
    after_s: float = 0.0
    """Seconds from when the pod runs, or from now."""
    times: int | None = 1
    """Number of pods that the rule applies to; None: until reset. Not for `image` and `idle`."""

    def __post_init__(self) -> None:
        for pattern in (self.name, self.namespace, self.image):
            patterns.compiled(pattern)
        if self.effect not in get_args(get_type_hints(PodRule)["effect"]):
            raise TypeError("effect must be kill, oom, evict, preempt, lose_node, image or idle")

    def fits(self, budget: patterns.MatchingTime, *, pod: Obj) -> bool:
        subject = (pod["metadata"]["name"], pod["metadata"]["namespace"])
        return patterns.all_fit((self.name, self.namespace), subject, budget)


@dataclass(slots=True)
class _Counted:
    rule: PodRule
    left: int | None
    applied: set[str] = field(default_factory=set)
    """Uids of the pods that the rule was applied to: it happens to a pod once."""


class PodFaults:
    """The rules, applied to each pod at most once each. For the thread of the event loop."""

    def __init__(self, cluster: Cluster, settings: ClusterSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._rules: list[_Counted] = []
        self._kubelet: Kubelet | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._timers: set[asyncio.TimerHandle] = set()

    def watch(self, kubelet: Kubelet) -> None:
        """Follow the pods of a kubelet."""
        loop, self._kubelet = asyncio.get_running_loop(), kubelet

        def hear(event: Event) -> None:
            loop.call_soon_threadsafe(self._see, event.object)

        self._unsubscribe = self._cluster.subscribe("Pod", hear)

    def clear(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self.forget()

    def forget(self) -> None:
        """Withdraw all rules; nodes that were lost are back."""
        self._rules.clear()
        for node in self._cluster.list("Node"):
            if UNREACHABLE in (node["spec"].get("taints") or ()):
                self._node_is(node["metadata"]["name"], lost=False)

    def add(self, rule: PodRule) -> None:
        self._note(rule)
        for pod in self._cluster.list("Pod"):
            self._see(pod)

    def _note(self, rule: PodRule) -> None:
        self._rules.append(_Counted(rule, rule.times))

    def bodies(self) -> list[dict[str, Any]]:
        return [{**asdict(each.rule), "left": each.left} for each in self._rules]

    def is_missing(self, image: str) -> bool:
        rules = [each for each in self._rules if each.rule.effect == "image"]
        found = self._fitting(rules, lambda rule, budget: patterns.all_fit((rule.image,), (image,), budget))
        return images.is_missing(image) or any(True for _ in found)

    def is_idle(self, pod: Obj) -> bool:
        rules = [each for each in self._rules if each.rule.effect == "idle"]
        return any(True for _ in self._fitting(rules, partial(PodRule.fits, pod=pod)))

    def _fitting(
        self, rules: Iterable[_Counted], fits: Callable[[PodRule, patterns.MatchingTime], bool]
    ) -> Iterator[_Counted]:
        """Yield the rules that fit. Those that are not reached in time do not apply."""
        budget = patterns.MatchingTime(RULES_S)
        try:
            for each in rules:
                if fits(each.rule, budget):
                    yield each
        except patterns.TooSlow as error:
            logger.warning("not all rules of pods were tried: %s", error)

    def _see(self, pod: Obj) -> None:
        if pod["status"].get("phase") != "Running" or "deletionTimestamp" in pod["metadata"]:
            return
        uid = pod["metadata"]["uid"]
        due = [
            each
            for each in self._rules
            if each.rule.effect not in ("image", "idle") and each.left != 0 and uid not in each.applied
        ]
        for each in self._fitting(due, partial(PodRule.fits, pod=pod)):
            each.applied.add(uid)
            each.left = None if each.left is None else each.left - 1
            self._schedule(each.rule, pod)

    def _schedule(self, rule: PodRule, pod: Obj) -> None:
        loop = asyncio.get_running_loop()
        self._timers.add(loop.call_later(rule.after_s, self._happen, rule, pod))

    def _happen(self, rule: PodRule, pod: Obj) -> None:
        life = self._kubelet.life(pod["metadata"]["uid"]) if self._kubelet is not None else None
        if life is None:
            return
        if rule.effect == "lose_node":
            self._lose(pod["spec"]["nodeName"])
        else:
            effects = {"kill": life.kill, "oom": lambda: life.kill(OOM_KILLED)}
            effects |= {"evict": lambda: self._evict(life, pod), "preempt": lambda: self._preempt(pod)}
            effects[rule.effect]()

    def _evict(self, life: PodLife, pod: Obj) -> None:
        text = LOW_ON_MEMORY.format(name=pod["spec"]["containers"][0]["name"])
        self._disrupt(pod, "TerminationByKubelet", text)
        events.record(self._cluster, pod, EVICTED, text, component="kubelet", warning=True)
        life.fail(EVICTED, text)

    def _preempt(self, pod: Obj) -> None:
        text = f"Preempted by pod {pod['metadata']['uid']} on node {pod['spec']['nodeName']}"
        events.record(self._cluster, pod, "Preempted", text, component="default-scheduler")
        self._disrupt(pod, "PreemptionByScheduler", PREEMPTING)
        self._delete(pod)

    def _lose(self, node: str) -> None:
        """Silence a node: its pods stay as they were seen last, then are deleted, but nobody confirms it."""
        assert self._kubelet is not None
        for life in self._kubelet.lives():
            if life.pod["spec"]["nodeName"] == node:
                life.lose()
        self._node_is(node, lost=True)
        loop = asyncio.get_running_loop()
        self._timers.add(loop.call_later(self._settings.eviction_s, self._clean, node))

    def _node_is(self, name: str, *, lost: bool) -> None:
        ready = {
            "type": "Ready",
            "status": "Unknown" if lost else "True",
            "reason": "NodeStatusUnknown" if lost else "KubeletReady",
            "message": "Kubelet stopped posting node status." if lost else "",
            "lastTransitionTime": now(),
        }
        taints = [UNREACHABLE] if lost else []
        self._cluster.modify("Node", None, name, lambda node: node["spec"].update(taints=taints))
        self._cluster.modify(
            "Node", None, name, lambda node: node["status"].update(conditions=[ready]), "status"
        )
        for pod in self._cluster.list("Pod") if lost else ():
            if pod["spec"].get("nodeName") == name and pod["status"].get("phase") == "Running":
                self._set(pod, {"Ready": (False, "NodeNotReady", "")})

    def _clean(self, node: str) -> None:
        for pod in self._cluster.list("Pod"):
            if pod["spec"].get("nodeName") == node and pod["status"].get("phase") == "Running":
                self._disrupt(pod, "DeletionByTaintManager", TAINTED)
                text = "Marking for deletion Pod"
                events.record(self._cluster, pod, "TaintManagerEviction", text, component=TAINT_MANAGER)
                self._delete(pod)

    def _disrupt(self, pod: Obj, reason: str, text: str) -> None:
        self._set(pod, {"DisruptionTarget": (True, reason, text)})

    def _set(self, pod: Obj, values: dict[str, tuple[bool, str, str]]) -> None:
        def change(obj: Obj) -> None:
            old = obj["status"].get("conditions") or ()
            obj["status"]["conditions"] = pod_status.conditions(old, values)

        self._quietly(
            pod, lambda namespace, name: self._cluster.modify("Pod", namespace, name, change, "status")
        )

    def _delete(self, pod: Obj) -> None:
        self._quietly(pod, lambda namespace, name: self._cluster.delete("Pod", namespace, name))

    def _quietly(self, pod: Obj, action: Callable[[str, str], object]) -> None:
        """Do something to a pod, unless it has gone or changed meanwhile."""
        try:
            action(pod["metadata"]["namespace"], pod["metadata"]["name"])
        except KubernetesError as error:
            if error.code not in (404, 409):
                raise
