"""What the Data Science service accepts in a job and a job run: required fields, types, limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.emulator.errors import invalid, missing

MAX_ENVIRONMENT_CHARS = 20_000
MAX_ARGUMENT_CHARS = 4_000
MAX_CONTAINER_COMMAND_BYTES = 2_048
MAX_NAME_CHARS = 255
MIN_STORAGE_GB, MAX_STORAGE_GB = 50, 10_240
MAX_ARTIFACT_BYTES = 4 * 1024**3
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

Details = Mapping[str, Any]


def check_job(details: Details) -> None:
    """Raise 400 unless a job can be created from the details."""
    require(details, "projectId", "compartmentId")
    check_common(details)
    _refuse_multi_node(details, "jobNodeConfigurationDetails")
    require(details, "jobConfigurationDetails", "jobInfrastructureConfigurationDetails")
    check_configuration(details["jobConfigurationDetails"])
    check_infrastructure(details["jobInfrastructureConfigurationDetails"])
    check_container(details.get("jobEnvironmentConfigurationDetails"))
    check_logging(details.get("jobLogConfigurationDetails"))


def check_run(details: Details) -> None:
    """Raise 400 unless a job run can be created from the details."""
    require(details, "projectId", "compartmentId", "jobId")
    check_common(details)
    _refuse_multi_node(details, "jobNodeConfigurationOverrideDetails")
    check_configuration(details.get("jobConfigurationOverrideDetails"))
    if details.get("jobInfrastructureConfigurationOverrideDetails"):
        check_infrastructure(details["jobInfrastructureConfigurationOverrideDetails"])
    check_container(details.get("jobEnvironmentConfigurationOverrideDetails"))
    check_logging(details.get("jobLogConfigurationOverrideDetails"))


def require(details: Details, *names: str) -> None:
    for name in names:
        if not details.get(name):
            raise missing(name)


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


def _refuse_multi_node(details: Details, name: str) -> None:
    if details.get(name):
        raise invalid(f"{name}: multi-node job runs are not supported by this emulator yet.")


def check_configuration(configuration: object) -> None:
    """Check environment, arguments and runtime of a job or of a run's override."""
    if configuration is None:
        return
    fields = _typed(configuration, "jobType", ("DEFAULT", "EMPTY"))
    check_environment(fields.get("environmentVariables") or {})
    arguments = fields.get("commandLineArguments") or ""
    if not isinstance(arguments, str) or len(arguments) > MAX_ARGUMENT_CHARS:
        raise invalid(f"commandLineArguments must be one text of at most {MAX_ARGUMENT_CHARS} characters.")
    minutes = fields.get("maximumRuntimeInMinutes")
    if minutes is not None and (not _is_number(minutes) or minutes < 1):
        raise invalid("maximumRuntimeInMinutes must be a positive number.")


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


def check_infrastructure(infrastructure: object) -> None:
    kinds = ("STANDALONE", "ME_STANDALONE")
    fields = _typed(infrastructure, "jobInfrastructureType", kinds)
    require(fields, "shapeName", "blockStorageSizeInGBs")
    if fields["jobInfrastructureType"] == "STANDALONE":
        require(fields, "subnetId")
    size = fields["blockStorageSizeInGBs"]
    if not _is_number(size) or not MIN_STORAGE_GB <= size <= MAX_STORAGE_GB:
        raise invalid(f"blockStorageSizeInGBs must be from {MIN_STORAGE_GB} to {MAX_STORAGE_GB}.")


def check_container(environment: object) -> None:
    if environment is None:
        return
    fields = _typed(environment, "jobEnvironmentType", ("OCIR_CONTAINER",))
    require(fields, "image")
    words = [*(fields.get("entrypoint") or ()), *(fields.get("cmd") or ())]
    if sum(len(str(word).encode()) for word in words) > MAX_CONTAINER_COMMAND_BYTES:
        raise invalid(f"entrypoint and cmd may have {MAX_CONTAINER_COMMAND_BYTES} bytes together.")


def check_logging(logging: object) -> None:
    if logging is None:
        return
    if not isinstance(logging, dict):
        raise invalid("The log configuration must be an object.")
    if logging.get("enableLogging"):
        require(logging, "logGroupId")
        if not logging.get("enableAutoLogCreation"):
            require(logging, "logId")


def _typed(value: object, name: str, kinds: tuple[str, ...]) -> Details:
    """Return an object whose type field is one of `kinds`."""
    if not isinstance(value, dict):
        raise invalid(f"An object with {name} was expected.")
    require(value, name)
    if value[name] not in kinds:
        raise invalid(f"{name} {value[name]!r} is not supported; known here: {', '.join(kinds)}.")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def merged_configuration(job: Details, run: Details) -> dict[str, Any]:
    """Return the configuration of a job overlaid by its run's: variable by variable, the rest as a whole."""
    base = job.get("jobConfigurationDetails") or {}
    override = run.get("jobConfigurationOverrideDetails") or {}
    given = {name: value for name, value in override.items() if value is not None}
    variables = [layer.get("environmentVariables") or {} for layer in (base, override)]
    return {**base, **given, "environmentVariables": {**variables[0], **variables[1]}}


def effective(job: Details, run: Details, kind: str) -> Any:
    """Return the run's override of one configuration (`jobLogConfiguration`...), or else the job's."""
    return run.get(f"{kind}OverrideDetails") or job.get(f"{kind}Details")
