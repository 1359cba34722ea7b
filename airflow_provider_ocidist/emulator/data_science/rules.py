"""What the Data Science service accepts in a job and a job run: required fields, types, limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from airflow_provider_ocidist.emulator.errors import invalid, missing
from airflow_provider_ocidist.emulator.fields import require

MAX_ENVIRONMENT_CHARS = 20_000
MAX_ARGUMENT_CHARS = 4_000
MAX_CONTAINER_COMMAND_BYTES = 2_048
MAX_NAME_CHARS = 255
MAX_MOUNTS = 5
MIN_STORAGE_GB, MAX_STORAGE_GB = 50, 10_240
MAX_ARTIFACT_BYTES = 4 * 1024**3
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
SINGLE_NODE = (
    ("jobConfiguration", "jobType"),
    ("jobInfrastructureConfiguration", "jobInfrastructureType"),
    ("jobEnvironmentConfiguration", "jobEnvironmentType"),
)
"""Fields of a job for its one node; for several nodes, each group has them."""
STANDALONE_KINDS = ("STANDALONE", "ME_STANDALONE", "MANAGED_COMPUTE_CLUSTER")
GROUP_KINDS = ("MULTI_NODE", "MANAGED_COMPUTE_CLUSTER")
REQUIRED_OF_INFRASTRUCTURE = {
    "STANDALONE": ("shapeName", "blockStorageSizeInGBs", "subnetId"),
    "ME_STANDALONE": ("shapeName", "blockStorageSizeInGBs"),
    "MULTI_NODE": ("shapeName", "blockStorageSizeInGBs"),
    "MANAGED_COMPUTE_CLUSTER": ("computeTargetId", "resourceConfiguration"),
}
REQUIRED_OF_MOUNT = {"FILE_STORAGE": ("mountTargetId", "exportId"), "OBJECT_STORAGE": ("namespace", "bucket")}

Details = Mapping[str, Any]


def check_job(details: Details) -> None:
    """Raise 400 unless a job can be created from the details."""
    require(details, "projectId", "compartmentId")
    check_common(details)
    if details.get("jobNodeConfigurationDetails"):
        refuse_single_node(details, "Details")
        check_nodes(details["jobNodeConfigurationDetails"])
    else:
        require(details, "jobConfigurationDetails", "jobInfrastructureConfigurationDetails")
        check_configuration(details["jobConfigurationDetails"])
        check_infrastructure(details["jobInfrastructureConfigurationDetails"], STANDALONE_KINDS)
        check_container(details.get("jobEnvironmentConfigurationDetails"))
    check_logging(details.get("jobLogConfigurationDetails"))
    check_mounts(details.get("jobStorageMountConfigurationDetailsList"))


def check_run(details: Details) -> None:
    """Raise 400 unless a job run can be created from the details, for any job."""
    require(details, "projectId", "compartmentId", "jobId")
    check_common(details)
    if details.get("jobNodeConfigurationOverrideDetails"):
        check_nodes(details["jobNodeConfigurationOverrideDetails"], override=True)
    check_configuration(details.get("jobConfigurationOverrideDetails"))
    if details.get("jobInfrastructureConfigurationOverrideDetails"):
        check_infrastructure(details["jobInfrastructureConfigurationOverrideDetails"], STANDALONE_KINDS)
    check_container(details.get("jobEnvironmentConfigurationOverrideDetails"))
    check_logging(details.get("jobLogConfigurationOverrideDetails"))
    check_mounts(details.get("jobStorageMountConfigurationOverrideDetailsList"))


def check_common(details: Details) -> None:
    """Check what all resources have: a name and tags."""
    name = details.get("displayName")
    if name is not None and (not isinstance(name, str) or len(name) > MAX_NAME_CHARS):
        raise invalid(f"displayName must be a text of at most {MAX_NAME_CHARS} characters.")
    tags = details.get("freeformTags")
    if tags is not None and not _is_text_map(tags):
        raise invalid("freeformTags must map texts to texts.")


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def refuse_single_node(details: Details, kind: str) -> None:
    """Raise 400 when a multi-node job, or a run of one, has a field for a single node."""
    for name, type_name in SINGLE_NODE:
        given = details.get(f"{name}{kind}")
        if given and given.get(type_name) != "EMPTY":
            raise invalid(
                f"{name}{kind} may not be given for a multi-node job: set it in the node groups of"
                f" jobNodeConfiguration{kind}."
            )


def check_nodes(nodes: object, *, override: bool = False) -> None:
    """Check the layout of a multi-node job, or what a run changes in it."""
    fields = _typed(nodes, "jobNodeType", ("MULTI_NODE",))
    if fields.get("startupOrder") not in (None, "IN_ORDER", "IN_PARALLEL"):
        raise invalid("startupOrder must be IN_ORDER or IN_PARALLEL.")
    _check_number(fields, "maximumRuntimeInMinutes", 1)
    if fields.get("jobNetworkConfiguration"):
        network = _typed(
            fields["jobNetworkConfiguration"], "jobNetworkType", ("DEFAULT_NETWORK", "CUSTOM_NETWORK")
        )
        if network["jobNetworkType"] == "CUSTOM_NETWORK":
            require(network, "subnetId")
    groups = groups_of(fields)
    if not groups and not override:
        raise missing("jobNodeGroupConfigurationDetailsList")
    for group in groups:
        _check_group(group, override=override)
    names = [group["name"] for group in groups]
    if len(set(names)) < len(names):
        raise invalid("jobNodeGroupConfigurationDetailsList: two node groups have the same name.")


def groups_of(nodes: Details) -> list[dict[str, Any]]:
    """Return the node groups of a layout.

    ADS writes the names of their fields with a capital letter when a run overrides them, and it would hardly
    do so if the service did not understand that.
    """
    groups = nodes.get("jobNodeGroupConfigurationDetailsList") or []
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise invalid("jobNodeGroupConfigurationDetailsList must be a list of objects.")
    return [{name[:1].lower() + name[1:]: value for name, value in group.items()} for group in groups]


def _check_group(group: Details, *, override: bool) -> None:
    require(group, "name")
    _check_number(group, "replicas", 1)
    _check_number(group, "minimumSuccessReplicas", 1)
    infrastructure = group.get("jobInfrastructureConfigurationDetails")
    if infrastructure or not override:
        require(group, "jobInfrastructureConfigurationDetails")
        check_infrastructure(infrastructure, GROUP_KINDS)
    check_configuration(group.get("jobConfigurationDetails"))
    check_container(group.get("jobEnvironmentConfigurationDetails"))


def check_configuration(configuration: object) -> None:
    """Check environment, arguments and runtime of a job or of a run's override."""
    if configuration is None:
        return
    fields = _typed(configuration, "jobType", ("DEFAULT", "EMPTY"))
    check_environment(fields.get("environmentVariables") or {})
    arguments = fields.get("commandLineArguments") or ""
    if not isinstance(arguments, str) or len(arguments) > MAX_ARGUMENT_CHARS:
        raise invalid(f"commandLineArguments must be one text of at most {MAX_ARGUMENT_CHARS} characters.")
    _check_number(fields, "maximumRuntimeInMinutes", 1)
    if fields.get("startupProbeDetails"):
        _check_probe(fields["startupProbeDetails"])


def _check_probe(probe: object) -> None:
    fields = _typed(probe, "jobProbeCheckType", ("EXEC",))
    require(fields, "command")
    if not isinstance(fields["command"], list) or not all(isinstance(w, str) for w in fields["command"]):
        raise invalid("startupProbeDetails: command must be a list of texts.")
    _check_number(fields, "initialDelayInSeconds", 0)
    _check_number(fields, "periodInSeconds", 1)
    _check_number(fields, "failureThreshold", 1)


def check_environment(variables: object) -> None:
    """Check the variables that a node gets; called again on those of job and run together."""
    if not isinstance(variables, dict) or not _is_text_map(variables):
        raise invalid("environmentVariables must map texts to texts.")
    for name, value in variables.items():
        if not VARIABLE_NAME.fullmatch(name) or "\0" in value:
            raise invalid(f"environmentVariables: {name!r} is not a variable that a process can have.")
    size = sum(len(name) + len(value) for name, value in variables.items())
    if size > MAX_ENVIRONMENT_CHARS:
        raise invalid(
            f"environmentVariables have {size} characters in names and values,"
            f" {MAX_ENVIRONMENT_CHARS} are allowed."
        )


def check_infrastructure(infrastructure: object, kinds: tuple[str, ...]) -> None:
    fields = _typed(infrastructure, "jobInfrastructureType", kinds)
    require(fields, *REQUIRED_OF_INFRASTRUCTURE[fields["jobInfrastructureType"]])
    size = fields.get("blockStorageSizeInGBs")
    if size is not None and (not _is_number(size) or not MIN_STORAGE_GB <= size <= MAX_STORAGE_GB):
        raise invalid(f"blockStorageSizeInGBs must be from {MIN_STORAGE_GB} to {MAX_STORAGE_GB}.")
    if fields["jobInfrastructureType"] == "MANAGED_COMPUTE_CLUSTER":
        resources = fields["resourceConfiguration"]
        if not isinstance(resources, dict):
            raise invalid("resourceConfiguration must be an object.")
        require(resources, "resourceRequestConfiguration")


def check_container(environment: object) -> None:
    if environment is None:
        return
    fields = _typed(environment, "jobEnvironmentType", ("OCIR_CONTAINER",))
    require(fields, "image")
    words = [*(fields.get("entrypoint") or ()), *(fields.get("cmd") or ())]
    if sum(len(str(word).encode()) for word in words) > MAX_CONTAINER_COMMAND_BYTES:
        raise invalid(f"entrypoint and cmd may have at most {MAX_CONTAINER_COMMAND_BYTES} bytes together.")


def check_logging(logging: object) -> None:
    if logging is None:
        return
    if not isinstance(logging, dict):
        raise invalid("The log configuration must be an object.")
    if logging.get("enableLogging"):
        require(logging, "logGroupId")
        if not logging.get("enableAutoLogCreation"):
            require(logging, "logId")


def check_mounts(mounts: object) -> None:
    if mounts is None:
        return
    if not isinstance(mounts, list) or len(mounts) > MAX_MOUNTS:
        raise invalid(f"Storage mounts must be a list of at most {MAX_MOUNTS}.")
    places = [mount_place(mount) for mount in mounts]
    if len(set(places)) < len(places):
        raise invalid("Two storage mounts have the same destination.")


def mount_place(mount: object) -> PurePosixPath:
    """Return where a mount appears on the node. Raises 400 for one that cannot be."""
    fields = _typed(mount, "storageType", tuple(REQUIRED_OF_MOUNT))
    require(fields, "destinationDirectoryName", *REQUIRED_OF_MOUNT[fields["storageType"]])
    name, path = str(fields["destinationDirectoryName"]), str(fields.get("destinationPath") or "/mnt")
    if "/" in name or name in (".", ".."):
        raise invalid("destinationDirectoryName must be a name; the path to it is destinationPath.")
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path + name:
        raise invalid("destinationPath must be absolute, without '..'.")
    return PurePosixPath(path) / name


def _typed(value: object, name: str, kinds: tuple[str, ...]) -> Details:
    """Return an object whose type field is one of `kinds`."""
    if not isinstance(value, dict):
        raise invalid(f"An object with {name} was expected.")
    require(value, name)
    if value[name] not in kinds:
        raise invalid(f"{name} {value[name]!r} is not allowed here; allowed: {', '.join(kinds)}.")
    return value


def _check_number(fields: Details, name: str, low: int) -> None:
    value = fields.get(name)
    if value is not None and (not _is_number(value) or value < low):
        raise invalid(f"{name} must be a whole number, {low} or more.")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
