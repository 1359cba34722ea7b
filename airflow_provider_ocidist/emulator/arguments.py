"""The arguments of the `emulator` command, and the settings that they make."""

from __future__ import annotations

import argparse
import ipaddress
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
    from airflow_provider_ocidist.emulator.context import Options
    from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings

DESCRIPTION = """Run an emulator of OCI on this machine, for the real SDK, CLI and ocifs. It has Data Science jobs,
whose nodes run as processes of this machine, Object Storage, Logging, Vault, Identity and Monitoring. It serves
plain HTTP, and HTTPS through its own proxy, to this machine only."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options on a parser of our own or of `ocidist`."""
    parser.description = DESCRIPTION
    _add_addresses(parser)
    _add_state(parser)
    _add_times(parser)
    _add_what_jobs_name(parser)
    _add_cluster(parser)
    parser.add_argument(
        "--keep-node-files", action="store_true", help="do not delete the folders of ended nodes"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _add_addresses(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (default %(default)s)")
    parser.add_argument(
        "--expose", action="store_true", help="allow a --host address that other machines can reach"
    )
    parser.add_argument("--port", type=int, default=0, help="port to serve on (default: a free one)")
    parser.add_argument(
        "--proxy-port",
        type=int,
        default=0,
        help="port of the proxy for OCI's host names (default: a free one)",
    )
    parser.add_argument(
        "--proxy-pass-through", action="store_true", help="let the proxy connect to all other hosts too"
    )


def _add_state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="folder for all data (default: a temporary folder)"
    )
    parser.add_argument(
        "--ready", type=Path, metavar="FILE", help="write addresses and credentials to FILE once it serves"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed for faults with a probability (default: a new one)"
    )
    parser.add_argument("--no-signatures", action="store_true", help="do not verify request signatures")


def _add_times(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="seconds from SIGTERM to SIGKILL of a node (default: %(default)s)",
    )
    parser.add_argument(
        "--provisioning",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="seconds before a node starts (default: 0)",
    )
    parser.add_argument(
        "--log-lag",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="seconds until a search finds a log line (default: 0)",
    )


def _add_what_jobs_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--conda",
        **{**_pairs("SLUG=FOLDER"), "type": _environment},
        help="run jobs with this conda environment in this Python environment (default: the emulator's own)",
    )
    parser.add_argument(
        "--image",
        **_pairs("IMAGE=COMMAND"),
        help="run this command for jobs with this container image",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME",
        help="further shape that jobs may name (GET /20190101/jobShapes lists the others)",
    )
    parser.add_argument(
        "--file-system",
        action="append",
        default=[],
        type=_export,
        metavar="ADDRESS:PATH",
        help="further export that jobs can mount (10.0.0.1:/export is always there)",
    )


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kubernetes",
        action="store_true",
        help="also emulate a Kubernetes cluster with Kubeflow's operators",
    )
    parser.add_argument(
        "--runai", action="store_true", help="also emulate a control plane of Run:ai, with such a cluster"
    )
    parser.add_argument(
        "--runai-node-pool",
        action="append",
        default=[],
        metavar="NAME",
        help="pool of nodes that workloads may ask for; may be repeated (default: default)",
    )
    parser.add_argument(
        "--kubernetes-gpus",
        type=int,
        default=0,
        metavar="N",
        help="GPUs of each of the cluster's 4 machines (default: 0)",
    )
    parser.add_argument(
        "--kubernetes-pull",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="time in which each machine pulls an image for the first time (default: all images are there)",
    )
    parser.add_argument(
        "--kubernetes-training-operator",
        type=_training_operator,
        default="1.9.4",
        metavar="VERSION",
        help="version of Kubeflow's training operator in the cluster, 1.3 to 1.9.4, or none (default: 1.9.4)",
    )
    parser.add_argument(
        "--kubernetes-trainer",
        type=_trainer,
        default="2.3",
        metavar="VERSION",
        help="version of Kubeflow Trainer in the cluster, 2.0 to 2.3, or none (default: 2.3)",
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return seconds


def _pairs(form: str) -> dict[str, Any]:
    """Return the settings of an option that is given once for each name."""
    return {"type": _pair, "action": "append", "default": [], "metavar": form}


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form name=value")
    return name, value


def _environment(text: str) -> tuple[str, str]:
    slug, folder = _pair(text)
    if not (Path(folder) / "bin" / "python").is_file():
        raise argparse.ArgumentTypeError(f"{folder} is not an environment: it has no bin/python")
    return slug, folder


def _export(text: str) -> str:
    address, _, path = text.partition(":")
    try:
        ipaddress.IPv4Address(address)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{address!r} is not an address: {error}") from error
    if not path.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 10.0.1.5:/data")
    return text


def options_of(args: argparse.Namespace) -> Options:
    """Return the settings of an emulator; a new seed where none is given."""
    from airflow_provider_ocidist.emulator.context import Options
    from airflow_provider_ocidist.emulator.faults import SEEDS

    return Options(
        verify_signatures=not args.no_signatures,
        provisioning_s=args.provisioning,
        log_lag_s=args.log_lag,
        grace_s=args.grace,
        keep_node_files=args.keep_node_files,
        seed=random.randrange(SEEDS) if args.seed is None else args.seed,
        pass_through=args.proxy_pass_through,
        conda={slug: Path(folder).absolute() for slug, folder in args.conda},
        images=dict(args.image),
        kubernetes=_cluster(args),
        runai=_control_plane(args),
        shapes=tuple(args.shape),
        file_systems=tuple(args.file_system),
    )


def _training_operator(text: str) -> str | None:
    from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.generation import generation

    return _version(text, generation)


def _trainer(text: str) -> str | None:
    from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.release import release

    return _version(text, release)


def _version(text: str, known: Callable[[str], object]) -> str | None:
    """Return a version that is known, or None for what is not to be installed."""
    if text == "none":
        return None
    try:
        known(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _control_plane(args: argparse.Namespace) -> RunaiSettings | None:
    from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings

    if not args.runai:
        return None
    pools = tuple(args.runai_node_pool)
    return RunaiSettings(node_pools=pools) if pools else RunaiSettings()


def _cluster(args: argparse.Namespace) -> ClusterSettings | None:
    from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings

    if not (args.kubernetes or args.runai):
        return None
    settings = ClusterSettings()
    capacity = {**settings.node_capacity, "nvidia.com/gpu": str(args.kubernetes_gpus)}
    return replace(
        settings,
        node_capacity=capacity,
        pull_s=args.kubernetes_pull,
        training_operator=args.kubernetes_training_operator,
        trainer=args.kubernetes_trainer,
    )
