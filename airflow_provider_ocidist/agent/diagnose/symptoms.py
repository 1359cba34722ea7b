"""Symptoms: known errors of failed trainings, by patterns in their messages. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import Cause


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """One kind of error with its own remedy."""

    name: str
    words: str
    """Pattern that is searched for in an exception's message, or in a program's last lines."""
    cause: Cause
    remedy: str
    """Remedy, in which `\\g<name>` stands for a group of the pattern."""
    consequence: bool = False
    """Whether the error is mostly a consequence of another process's failure."""


def symptom_of(message: str) -> Symptom | None:
    """Return the first symptom of the table that a message shows; None for one that is not known."""
    for symptom in SYMPTOMS:
        if found := re.search(symptom.words, message):
            return replace(symptom, remedy=found.expand(symptom.remedy))
    return None


def last_words(output: str) -> str | None:
    """Return a library's last message before it ends the process without a Python exception."""
    found = list(LAST_WORDS.finditer(output))
    return " ".join(found[-1][1].split()) if found else None


LAST_WORDS = re.compile(
    r"((?:\[Rank \d+\] )?Watchdog caught collective operation timeout:[^\n]*"
    r"|terminate called after throwing an instance of[^\n]*(?:\n\s*what\(\):[^\n]*)?"
    r"|[OP]RTE (?:has lost communication with a remote daemon|was unable to reliably start one or more daemons)"
    r"|ERROR: Unexpected bus error encountered in worker[^\n]*"
    r"|Fatal Python error: (?!Aborted|Terminated|Segmentation fault|Bus error|Floating point|Illegal inst)[^\n]*)"
)
LIBRARY = r"gloo/|NCCL|nccl|TCPStore|C10d|c10d|Dist\w+Error|Rendezvous\w+Error"
"""Words of torch's own transports: any other refused connection is the program's error."""

_HOST_MEMORY = (
    "take a shape with more memory, a smaller batch, or fewer processes or data loaders on each node"
)

SYMPTOMS = (
    Symptom(
        name="GPU out of memory",
        words=(
            r"(?:CUDA|HIP)(?: error:)? out of memory|cuda\.OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED"
            r"|Failed to CUDA (?:m|c)alloc|Cuda failure (?:\d+ )?'out of memory'"
        ),
        cause=Cause.OOM,
        remedy="take a smaller batch, shard or checkpoint activations, or take a shape whose GPUs have more memory",
    ),
    Symptom(
        name="shared memory too small",
        words=(
            r"insufficient shared memory|DataLoader worker .*Bus error|Unexpected bus error encountered in worker"
            r"|unable to (?:open|mmap|write|allocate) .*(?:shared memory|/dev/shm|/torch_)"
        ),
        cause=Cause.CONFIG,
        remedy="give the container a larger /dev/shm (--shm-size), or set num_workers=0 in the data loader",
    ),
    Symptom(
        name="out of memory",
        words=(
            r"(?i:\bMemoryError\b|out of memory|OutOfMemoryError|(?:can't|cannot) allocate memory|std::bad_alloc"
            r"|_ArrayMemoryError)"
        ),
        cause=Cause.OOM,
        remedy=_HOST_MEMORY,
    ),
    Symptom(
        name="disk full",
        # Python tries a small file in each place for temporary ones, and says no more of why none can be written.
        words=r"No space left on device|Disk quota exceeded|No usable temporary directory found",
        cause=Cause.DATA,
        remedy="take a larger disk, keep fewer checkpoints, or write less on the node",
    ),
    Symptom(
        name="copy interrupted",
        words=r"^airflow_provider_ocidist\.errors\.CopyInterrupted\b",
        cause=Cause.SERVICE,
        remedy="network or storage failed for longer than a copy waits; run it again, it resumes",
    ),
    Symptom(
        name="copy impossible",
        words=r"^airflow_provider_ocidist\.errors\.StorageError\b",
        cause=Cause.DATA,
        remedy="check that it exists, and that this node's dynamic group may read and write it",
    ),
    Symptom(
        name="file cannot be written",
        words=(
            r"PytorchStreamWriter failed writing file|inline_container\.cc:\d+\] \. (?:unexpected pos|write)"
            r"|basic_ios::clear: iostream error"
        ),
        cause=Cause.DATA,
        remedy="torch could not write a file to its end: mostly the disk is full; take a larger one",
    ),
    Symptom(
        name="port in use",
        words=r"EADDRINUSE|[Aa]ddress already in use",
        cause=Cause.NODE,
        remedy="another program on this node listens there; end it, or choose another port",
    ),
    Symptom(
        name="other nodes not reached",
        words=(
            r"RendezvousTimeoutError|Timed out after \d+ seconds waiting for clients|client socket has timed out"
            rf"|(?:{LIBRARY}).*(?:No route to host|Network is unreachable)"
        ),
        cause=Cause.NODE,
        remedy="see that the subnet lets the nodes reach each other on all TCP ports, and which interface they use",
        consequence=True,
    ),
    Symptom(
        name="collective timed out",
        words=(
            r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send) operation"
            r"|Socket Timeout|Timed out waiting .* gloo"
        ),
        cause=Cause.HANG,
        remedy="some process came late to a collective operation or not at all; see the output of all nodes",
        consequence=True,
    ),
    Symptom(
        name="another process lost",
        words=(
            rf"(?:{LIBRARY}).*(?:Connection (?:closed|reset|was closed)|Connection refused|Broken pipe"
            r"|remote process exited|remoteError|RemoteError|communicator was aborted|got 0 bytes|peer closed"
            r"|recvValue failed|failed to recv)"
            r"|RendezvousConnectionError|RendezvousClosedError|DistNetworkError|DistStoreError|ncclRemoteError"
        ),
        cause=Cause.NODE,
        remedy="another process ended or cannot be reached; if no node says why, run it again",
        consequence=True,
    ),
    Symptom(
        name="node of mpirun lost",
        words=r"[OP]RTE has lost communication with a remote daemon",
        cause=Cause.NODE,
        remedy="another node ended or cannot be reached; if no node says why, run it again",
        consequence=True,
    ),
    Symptom(
        name="node of mpirun not reached",
        words=r"[OP]RTE was unable to reliably start one or more daemons",
        cause=Cause.NODE,
        remedy="see what ssh says above, that the subnet lets node 0 reach the others one port above the rendezvous "
        "(29401), and that all nodes have the same Open MPI",
        consequence=True,
    ),
    Symptom(
        name="NCCL cannot use the network",
        words=r"ncclSystemError|NCCL error.*unhandled system error",
        cause=Cause.NODE,
        remedy="set NCCL_DEBUG=INFO to see more; NCCL_SOCKET_IFNAME and NCCL_IB_HCA choose the interfaces",
    ),
    Symptom(
        name="GPU at fault",
        words=(
            r"uncorrectable ECC|GPU is lost|fallen off the bus|busy or unavailable|system not yet initialized"
            r"|hardware (?:stack )?error|NVLink|CUDA error: unknown error"
        ),
        cause=Cause.NODE,
        remedy="this node's GPU is at fault: run it again, elsewhere if it comes back",
    ),
    Symptom(
        name="no GPU for this program",
        words=(
            r"Found no NVIDIA driver|driver on your system is too old|no kernel image is available"
            r"|not compiled with CUDA|have NCCL built in|no CUDA-capable device|No CUDA GPUs are available"
            r"|CUDA driver version is insufficient"
        ),
        cause=Cause.CONFIG,
        remedy="image and shape do not fit: take a shape with GPUs and an image whose torch is built for them",
    ),
    Symptom(
        name="more processes than GPUs",
        words=r"Duplicate GPU detected|invalid device ordinal",
        cause=Cause.CONFIG,
        remedy="each process needs a GPU of its own: choose it by LOCAL_RANK (torch.cuda.set_device), and start no "
        "more processes than the node has GPUs (launcher.processes_per_node)",
    ),
    Symptom(
        name="assertion on the GPU",
        words=r"device-side assert",
        cause=Cause.USER,
        remedy="mostly an index or a label is out of its range: env CUDA_LAUNCH_BLOCKING=1 shows the line, and the "
        "same data on a CPU shows the value",
    ),
    Symptom(
        name="error of syntax",
        # The class first, as in a traceback, or after the node that reports it.
        words=r"(?:^|: )(?:SyntaxError|IndentationError|TabError): .*\((?P<file>[^()<>]+), line \d+\)",
        cause=Cause.USER,
        remedy="correct the script; `python -m py_compile \\g<file>` shows it before a run",
    ),
    Symptom(
        name="no checkpoint",
        words=r"wrote no checkpoint into '?(?P<folder>.+?)'?: the folder is empty or missing",
        cause=Cause.USER,
        remedy="save into the folder $OCIDIST_CHECKPOINT_DIR (here \\g<folder>), or set checkpoints.required: false",
    ),
    Symptom(
        name="package missing",
        words=r"^ModuleNotFoundError\b",
        cause=Cause.USER,
        remedy="add it to the job's dependencies or to the image, or correct program.python_path",
    ),
    Symptom(
        name="file missing",
        words=r"^FileNotFoundError\b",
        cause=Cause.USER,
        remedy="name it in the job's inputs, or correct the path: programs run in program.working_dir",
    ),
)
