"""The causes of git's error messages, with remedies. Pure, but for a look at the disk."""

from __future__ import annotations

import re
from pathlib import Path

from airflow_provider_ocidist.agent.prepare import disk
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.model.git_source import Repository


class NetworkFailed(AgentError):
    """The network failed: another try may succeed."""


class CannotGive(AgentError):
    """The server answers, but does not serve this request."""


_ABSENT = re.compile(
    r"repository .*not found|does not appear to be a git repository|returned error: (?:404|410)"
    r"|project you were looking for could not be found|repository .*does not exist",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"could not read (?:username|password)|authentication failed|permission denied \(|access denied"
    r"|returned error: (?:401|403)|invalid username or|terminal prompts disabled|invalid format|error in libcrypto",
    re.IGNORECASE,
)
_UNKNOWN_HOST_KEY = re.compile(
    r"host key verification failed|remote host identification has changed", re.IGNORECASE
)
_NO_SUCH_REF = re.compile(
    r"couldn't find remote ref|not our ref|unadvertised object|does not support shallow|dumb http transport"
    r"|did not contain|reference is not a tree|unable to find current revision",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"could not resolve|timed? ?out|connection (?:refused|reset|closed)|failed to connect|couldn't connect"
    r"|early eof|rpc failed|unexpected disconnect|hung up unexpectedly|network is unreachable|no route to host"
    r"|returned error: (?:408|425|429|5\d\d)|temporary failure|empty reply|operation too slow|kex_exchange",
    re.IGNORECASE,
)


def git_error(output: str, repository: Repository, folder: Path) -> AgentError:
    """Return the error for git's output."""
    said = [line for line in output.splitlines() if line.strip()]
    relevant = [
        line for line in said if re.match(r"fatal|error|remote:|ssh:|\S*denied|host key", line, re.IGNORECASE)
    ]
    first = _without_password((relevant or said[-1:] or ["git gave no reason"])[0])
    subject = f"the code {repository.url} cannot be fetched"
    if any(text in output for text in disk.FULL_TEXTS):
        return disk.full_error(f"the code {repository.url}", folder)
    if _UNKNOWN_HOST_KEY.search(output):
        why = "the server's host key is not the one that is known here: correct the known hosts in the secret"
        return AgentError(f"{subject}: {why}", cause=Cause.CONFIG)
    if _REFUSED.search(output):
        why = "the server refuses us: correct program.source_secret (an SSH key without a passphrase, or a token)"
        return AgentError(f"{subject}: {why}; git says: {first}", cause=Cause.CONFIG)
    if _ABSENT.search(output):
        why = "there is no such repository, or it is private (then program.source_secret must name a secret)"
        return AgentError(f"{subject}: {why}; git says: {first}", cause=Cause.CONFIG)
    if _NO_SUCH_REF.search(output):
        return CannotGive(f"{subject}: {first}", cause=Cause.CONFIG)
    if _NETWORK.search(output):
        return NetworkFailed(f"{subject}: {first}", cause=Cause.DATA)
    return AgentError(f"{subject}: {first}", cause=Cause.DATA)


def _without_password(text: str) -> str:
    return re.sub(r"://[^/@\s]*@", "://", text)
