"""What the Job controller does: rules, without a server. Source: the Kubernetes documentation of Jobs."""

from __future__ import annotations

from functools import partial

import pytest

from airflow_provider_ocidist.emulator.kubernetes.controllers.jobs import pods
from airflow_provider_ocidist.emulator.kubernetes.controllers.jobs.kind import JOB
from airflow_provider_ocidist.emulator.kubernetes.controllers.jobs.look import look
from tests.emulator.kubernetes.operated import Operated, dice

IGNORES = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
INDEX = "batch.kubernetes.io/job-completion-index"


def job(policy="Never", **spec):
    container = {"name": "main", "image": "image"}
    obj = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "work", "uid": "uid-1"},
        "spec": {"template": {"spec": {"containers": [container], "restartPolicy": policy}}, **spec},
    }
    JOB.defaults(obj)
    JOB.prepare(obj)
    return obj


def operated(policy="Never", *, backoff_s=0.0, **spec) -> Operated:
    made = Operated(job(policy, **spec), partial(look, backoff_s=backoff_s))
    made.settle()
    return made


def indexed(count=3, policy="Never", **spec) -> Operated:
    return operated(policy, completions=count, parallelism=count, completionMode="Indexed", **spec)


def end(made: Operated, name: str, code: int = 0) -> None:
    made.pod(name, "Failed" if code else "Succeeded", code=code)


def test_a_job_runs_one_pod_and_is_complete_with_it():
    made = operated()
    [name] = made.pods
    assert name.startswith("work-")
    assert made.status["active"] == 1
    end(made, name)
    status = made.settle()
    assert made.truths() == {"SuccessCriteriaMet": True, "Complete": True}
    assert (status["succeeded"], "active" in status) == (1, False)
    assert status["completionTime"]


@pytest.mark.parametrize("mode", ["NonIndexed", "Indexed"])
def test_no_more_than_parallelism_run_at_once_until_all_completions_are_there(mode):
    made = operated(completions=5, parallelism=2, completionMode=mode)
    ended = 0
    while not made.truths().get("Complete"):
        active = [name for name, pod in made.pods.items() if pods.is_active(pod)]
        assert len(active) == min(2, 5 - ended)
        end(made, active[-1])
        ended += 1
        made.settle()
    assert (ended, made.status["succeeded"]) == (5, 5)


def test_each_pod_of_an_indexed_job_knows_its_index_and_has_a_host_name():
    made = indexed(3)
    for index, (name, pod) in enumerate(made.pods.items()):
        assert name.startswith(f"work-{index}-")
        assert pod["spec"]["hostname"] == f"work-{index}"
        assert pod["metadata"]["labels"][INDEX] == pod["metadata"]["annotations"][INDEX] == str(index)
        [variable] = pod["spec"]["containers"][0]["env"]
        assert variable["name"] == "JOB_COMPLETION_INDEX"
    assert pod["metadata"]["labels"]["job-name"] == "work"


def test_completed_indexes_are_written_as_ranges():
    die = dice()
    for _ in range(200):
        indexes = set(die.sample(range(20), die.randint(0, 20)))
        assert pods.read(pods.written(indexes)) == indexes
    assert pods.written({0, 1, 2, 5}) == "0-2,5"
    made = indexed(4)
    for name in [*made.pods][:2]:
        end(made, name)
    assert made.settle()["completedIndexes"] == "0,1"


def test_a_failed_pod_is_replaced_and_its_log_stays_until_the_backoff_limit():
    made = indexed(2, backoffLimit=2)
    for failed in (1, 2):
        end(made, [*made.pods][-1], 3)
        assert made.settle()["failed"] == failed
        assert len(made.pods) == 2 + failed
    end(made, [*made.pods][-1], 3)
    made.settle()
    assert made.truths() == {"FailureTarget": True, "Failed": True}
    assert made.condition("Failed")["reason"] == "BackoffLimitExceeded"
    assert len([pod for pod in made.pods.values() if pods.phase(pod) == "Failed"]) == 3
    assert len(made.pods) == 3, "what ran is deleted"


def test_a_replacement_waits_longer_each_time():
    made = operated(backoff_s=10, backoffLimit=9)
    waits = []
    for _ in range(3):
        end(made, [*made.pods][-1], 1)
        made.settle()
        waits.append(made.again_s)
        made.later(made.again_s)
        made.pods[[*made.pods][-1]]["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = (
            "2026-11-20T12:00:00Z"
        )
        made.settle()
    assert waits == [10, 20, 40]


def test_restarts_in_place_count_and_with_the_limit_the_pods_are_gone():
    made = indexed(2, "OnFailure", backoffLimit=6)
    names = [*made.pods]
    made.pod(names[0], "Running", restarts=2)
    made.pod(names[1], "Running", restarts=3)
    made.settle()
    assert made.truths() == {}
    made.pod(names[1], "Running", restarts=4)
    made.settle()
    assert made.truths() == {"FailureTarget": True, "Failed": True}
    assert made.pods == {}


def test_a_deadline_is_kept_and_deletes_what_runs():
    made = operated(activeDeadlineSeconds=30)
    assert made.again_s == 30
    made.later(29)
    made.settle()
    assert (made.truths(), made.again_s) == ({}, 1)
    made.later(1)
    made.settle()
    assert made.condition("Failed")["reason"] == "DeadlineExceeded"
    assert made.pods == {}


def test_a_job_is_failed_only_when_nothing_of_it_runs_any_more():
    made = indexed(2, backoffLimit=0)
    first, second = made.pods
    end(made, first, 1)
    made.look_once()
    assert made.truths() == {"FailureTarget": True}
    assert second not in made.pods
    made.settle()
    assert made.truths()["Failed"]


def test_a_suspended_job_has_no_pods_until_it_is_resumed():
    made = operated(suspend=True)
    assert (made.pods, made.truths()) == ({}, {"Suspended": True})
    assert "startTime" not in made.status
    made.obj["spec"]["suspend"] = False
    made.settle()
    assert (len(made.pods), made.truths()) == (1, {"Suspended": False})
    made.obj["spec"]["suspend"] = True
    made.settle()
    assert (made.pods, made.truths()) == ({}, {"Suspended": True})
    assert "startTime" not in made.status


def test_pods_that_end_because_their_job_is_suspended_are_no_failures():
    made = indexed(2, backoffLimit=0)
    made.obj["spec"]["suspend"] = True
    for pod in made.pods.values():
        pod["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z"
    made.settle()
    assert (made.status.get("failed", 0), made.truths()) == (0, {"Suspended": True})


def test_the_ttl_removes_a_job_that_has_ended():
    made = operated(ttlSecondsAfterFinished=5)
    end(made, next(iter(made.pods)))
    made.settle()
    assert (made.removed, made.again_s) == (False, 5)
    made.later(5)
    made.look_once()
    assert made.removed


def test_a_pod_is_counted_once_and_has_its_finalizer_until_then():
    made = indexed(2)
    first = next(iter(made.pods))
    assert made.pods[first]["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    end(made, first)
    made.settle()
    assert "finalizers" not in made.pods[first]["metadata"]
    for _ in range(3):
        assert made.settle()["succeeded"] == 1


def test_a_pod_that_somebody_deletes_counts_as_failed_and_is_replaced():
    made = indexed(2)
    first = next(iter(made.pods))
    made.pods[first]["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z"
    status = made.settle()
    assert (status["failed"], len(made.pods)) == (1, 3)


def test_where_only_failed_pods_are_replaced_one_that_is_deleted_counts_once_it_has_ended():
    for spec in ({"podReplacementPolicy": "Failed"}, {"podFailurePolicy": {"rules": []}}):
        made = indexed(2, **spec)
        first = next(iter(made.pods))
        made.pod(first, "Running")
        made.pods[first]["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z"
        status = made.settle()
        assert (status.get("failed", 0), status["terminating"], len(made.pods)) == (0, 1, 2)
        assert made.pods[first]["metadata"]["finalizers"], "so that nobody forgets it"
        end(made, first, 143)
        status = made.settle()
        assert (status["failed"], status["terminating"], len(made.pods)) == (1, 0, 3)


def test_a_pod_that_is_deleted_uses_up_the_backoff_limit_and_its_replacement_waits():
    made = indexed(2, backoffLimit=1, backoff_s=10)
    first = next(iter(made.pods))
    made.pods[first]["metadata"].update(
        deletionTimestamp="2026-11-20T12:00:30Z", deletionGracePeriodSeconds=30
    )
    made.settle()
    assert (made.truths(), len(made.pods), made.again_s) == ({}, 2, 10)
    made.later(10)
    made.settle()
    assert len(made.pods) == 3
    made.pods[[*made.pods][-1]]["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:11Z"
    made.settle()
    assert made.condition("FailureTarget")["reason"] == "BackoffLimitExceeded"


@pytest.mark.parametrize("operator,code,fails", [("In", 42, True), ("In", 1, False), ("NotIn", 1, True)])
def test_an_exit_code_may_fail_the_job_at_once(operator, code, fails):
    on = {"containerName": "main", "operator": operator, "values": [42]}
    made = operated(podFailurePolicy={"rules": [{"action": "FailJob", "onExitCodes": on}]})
    end(made, next(iter(made.pods)), code)
    made.settle()
    assert made.truths().get("Failed", False) == fails
    if fails:
        assert made.condition("Failed")["reason"] == "PodFailurePolicy"
        assert f"exit code {code}" in made.condition("Failed")["message"]


def test_a_disruption_may_be_ignored():
    made = operated(backoffLimit=0, podFailurePolicy=IGNORES)
    first = next(iter(made.pods))
    end(made, first, 137)
    made.pods[first]["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    made.settle()
    assert (made.truths(), made.status.get("failed", 0), len(made.pods)) == ({}, 0, 2)


def test_a_job_without_completions_is_complete_with_the_first_success_once_nothing_runs():
    made = operated(parallelism=3)
    assert made.obj["spec"].get("completions") is None
    for name in [*made.pods]:
        assert not made.truths().get("Complete")
        end(made, name)
        made.settle()
    assert (made.truths()["Complete"], made.status["succeeded"]) == (True, 3)


def test_what_is_not_said_is_one_pod_and_six_retries():
    spec = job()["spec"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (1, 1, 6)
    assert (spec["completionMode"], spec["suspend"]) == ("NonIndexed", False)
    assert spec["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": "uid-1"}}


@pytest.mark.parametrize(
    "spec,path",
    [
        ({"completionMode": "Indexed"}, None),
        ({"completionMode": "Indexed", "parallelism": 2, "completions": None}, "spec.completions"),
        ({"parallelism": -1}, "spec.parallelism"),
        ({"completions": -1}, "spec.completions"),
        ({"backoffLimit": -1}, "spec.backoffLimit"),
        ({"policy": "Always"}, "spec.template.spec.restartPolicy"),
        ({"podReplacementPolicy": "Never"}, "spec.podReplacementPolicy"),
        ({"podFailurePolicy": IGNORES}, None),
        ({"policy": "OnFailure", "podFailurePolicy": IGNORES}, "spec.template.spec.restartPolicy"),
        (
            {"podFailurePolicy": IGNORES, "podReplacementPolicy": "TerminatingOrFailed"},
            "spec.podReplacementPolicy",
        ),
    ],
)
def test_what_is_refused(spec, path):
    found = [problem.path for problem in JOB.problems(job(**spec), None)]
    assert found == ([path] if path else [])


def test_the_template_of_a_job_does_not_change():
    before, after = job(), job()
    after["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    assert [problem.path for problem in JOB.problems(after, before)] == ["spec.template"]
    after = job()
    after["spec"]["suspend"] = True
    assert JOB.problems(after, before) == []


def test_whatever_pods_do_each_is_counted_once():
    die = dice()
    for _ in range(60):
        completions = die.randint(1, 4)
        limit = die.randint(0, 3)
        made = operated(
            completions=completions,
            parallelism=die.randint(1, 4),
            completionMode=die.choice(["Indexed", "NonIndexed"]),
            backoffLimit=limit,
        )
        failed = succeeded = 0
        while not {"Complete", "Failed"} & made.truths().keys():
            active = [name for name, pod in made.pods.items() if pods.is_active(pod)]
            assert active
            code = die.choice([0, 0, 1])
            end(made, die.choice(active), code)
            failed, succeeded = failed + bool(code), succeeded + (not code)
            status = made.settle()
            if not made.truths().get("Failed"):
                assert (status.get("failed", 0), status.get("succeeded", 0)) == (failed, succeeded)
        assert made.truths().get("Complete", False) == (succeeded == completions)
        assert made.truths().get("Failed", False) == (failed > limit)
