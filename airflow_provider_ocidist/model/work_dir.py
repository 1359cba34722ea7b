"""The work directory: the name of each file in it, who writes it, who reads it, and when.

The waiting side and the nodes exchange files in it only. A run directory is one attempt's part of it, named as
the attempt (`RunKey.name`), so that nothing in it is older than the attempt.

| file | written by | read by |
| --- | --- | --- |
| `attempts/<task>/g0-a1-<place>.json` | a try, before it creates anything | each later try |
| `attempts/<task>/g0-a1-<place>.end.json` | the process that has seen all nodes end | each later try |
| `refusals/<machine>.json` | the task that found none of them | every task that has other candidates |
| `checkpoints/<task>-g0/fence.json` | each launch, before it publishes | every launch that publishes or deletes |
| `checkpoints/<task>-g0/<name>/...` | nodes; `manifest.json` last | nodes that resume, sensors, people |
| `checkpoints/<task>-g0/unproved/...` | nodes that end, of what nothing proves whole | people |
| `copies/<dag>/<run>/<task>/...` | the node of a copy: `report.json` | the task of the copy |
| `<run>/code.zip`, `<run>/agent.zip` | the try that creates the gang | containers, as they start |
| `<run>/nodes/0.json` | each node, every two seconds | the waiting process; the other nodes |
| `<run>/lost/0.0.json` | the node that takes the place of a lost one: the last report of that | people |
| `<run>/replaced.json` | the waiting process, on Kubernetes: the lost pods | a pod in the place of another |
| `<run>/lease.json` | the waiting process, six times in a lease | nodes |
| `<run>/stop.json` | the process that ends the gang; a node that has failed | nodes, with each heartbeat |
| `<run>/earlier.json` | the try that creates the gang, where it had another before | a node that fails |
| `<run>/claim` | the try that waits for the gang now | an earlier try that is being killed |
| `<run>/told.json` | the process that logs, with each renewal | the process that continues the log |
| `<run>/commit` | node 0, once it has cloned | the other nodes |
| `<run>/sharing/0.json` | each node, as it begins to read inputs: where it shares them | the other nodes |
| `<run>/wheels/...` | node 0, once pip has built them; `manifest.json` last | the other nodes |
| `<run>/stacks/launch-0/...` | each node, before it ends a training that hangs | people |
| `<run>/shards/board.json` | the main node: which checkpoint it puts together | the other nodes |
| `<run>/shards/0/0.json` | each other node, when it has sent its files of that request | the main node |
| `<run>/drill/0.json` | each node of a drill | a node that takes its place; `ocidist drill` |
| `<run>/local/gang.json`, `<run>/local/grace.json` | the try that starts processes here | those who look, or cancel |
| `<run>/local/agent.zip` | the same | those who replace a node |
| `<run>/local/lock` | the same, while it starts them | another submitter of the gang |
| `<run>/local/0/...`, `<run>/local/0.1/...` | the process beside each such node | those who look, or cancel |
"""

from __future__ import annotations

ATTEMPTS_FOLDER = "attempts"
CHECKPOINTS_FOLDER = "checkpoints"
REFUSALS_FOLDER = "refusals"
COPIES_FOLDER = "copies"

CODE_ARCHIVE = "code.zip"
AGENT_ARCHIVE = "agent.zip"
NODES_FOLDER = "nodes"
LOST_FOLDER = "lost"
REPLACED_FILE = "replaced.json"
LEASE_FILE = "lease.json"
STOP_FILE = "stop.json"
EARLIER_FILE = "earlier.json"
CLAIM_FILE = "claim"
LOG_CURSOR = "told.json"
"""Name of the cursor's file since the first version; a run may be older than its watchers."""
COMMIT_FILE = "commit"
WHEELS = "wheels"
WHEELS_MANIFEST = "manifest.json"
SHARDS = "shards"
SHARD_BOARD = "board.json"
LOCAL = "local"
DRILL_FOLDER = "drill"
STACKS = "stacks"
SHARING_FOLDER = "sharing"


def record_file(generation: int, attempt: int, place: str) -> str:
    """Return the file of an attempt's record in its task's folder; `place`: the digest of where its gang is."""
    return f"g{generation}-a{attempt}-{place}.json"


def end_of(record: str) -> str:
    """Return the file of an attempt's end, beside its record."""
    return f"{record.removesuffix('.json')}.end.json"


def order_in(name: str) -> tuple[int, int] | None:
    """Return generation and attempt whose record a file is, by its name; None: it is no record."""
    generation, _, rest = name.removeprefix("g").partition("-a")
    attempt, _, place = rest.removesuffix(".json").partition("-")
    if not (generation.isdecimal() and attempt.isdecimal() and place.isalnum()):
        return None
    age = int(generation), int(attempt)
    return age if name == record_file(*age, place) else None


def report_of(rank: int) -> str:
    """Return the file of a node's report."""
    return f"{NODES_FOLDER}/{rank}.json"


def sharing_of(rank: int) -> str:
    """Return the file in which a node announces where it shares what it reads."""
    return f"{SHARING_FOLDER}/{rank}.json"


def lost_report_of(rank: int, incarnation: int) -> str:
    """Return the file for the last report of a node in whose place another was made."""
    return f"{LOST_FOLDER}/{rank}.{incarnation}.json"


def drill_journal_of(rank: int) -> str:
    """Return the file of what a node has recorded of a drill."""
    return f"{DRILL_FOLDER}/{rank}.json"


def rank_of(name: str) -> int | None:
    """Return the rank whose report a file is, by its name or path; None: it is no report."""
    stem = name.rpartition("/")[2].removesuffix(".json")
    return int(stem) if stem.isdecimal() else None


def stacks_of(launch: int, rank: int) -> str:
    """Return the file for the stacks of a node's processes, of a launch that hung."""
    return f"{STACKS}/launch-{launch}/node-{rank}.txt"


def flight_record_of(launch: int, rank: int) -> str:
    """Return the file for what NCCL has recorded in the process of a rank."""
    return f"{STACKS}/launch-{launch}/nccl-rank-{rank}"
