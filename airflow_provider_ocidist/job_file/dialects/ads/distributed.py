"""Oracle ADS, `kind: distributed`: the YAML of `ads opctl run` for its PyTorch clusters.

The image may be one that ADS built, with its own driver in it, or one with our agent: nodes get ADS's variables and
ours. If ADS silently drops a key, loses quoting or ignores a limit, this module reports it or does what was meant.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.agent.join.ads_contract import within_code
from airflow_provider_ocidist.job_file.dialects.ads import environment
from airflow_provider_ocidist.job_file.dialects.ads.arguments import (
    put_code,
    put_python_path,
    put_words,
    replicas,
    text,
)
from airflow_provider_ocidist.job_file.dialects.ads.environment import put_variable
from airflow_provider_ocidist.job_file.dialects.ads.infrastructure import infrastructure, put_name
from airflow_provider_ocidist.job_file.dialects.base import Draft, Section, Translation, Variable, Variables
from airflow_provider_ocidist.job_file.schema import PLACEHOLDER, value_shown
from airflow_provider_ocidist.job_file.written_values import whole_in

IMAGE_CODE_DIR = "/code"
"""Folder of the user's code in ADS's own images, unless the variable OCI__CODE_DIR sets another."""
COMPUTED = {
    "OCI__WORK_DIR",
    "OCI__EPHEMERAL",
    "OCI__CLUSTER_TYPE",
    "OCI__WORKER_COUNT",
    "OCI__PS_COUNT",
    "OCI__START_ARGS",
    "OCI__ENTRY_SCRIPT",
    "OCI__ENTRY_SCRIPT_ARGS",
    "OCI__ENTRY_SCRIPT_KWARGS",
    "OCI__RUNTIME_TYPE",
    "OCI__RUNTIME_URI",
    "OCI__RUNTIME_GIT_BRANCH",
    "OCI__RUNTIME_GIT_COMMIT",
    "OCI__RUNTIME_GIT_SECRET_ID",
    "OCI__RUNTIME_PYTHON_PATH",
    "OCI__CERTIFICATE_OCID",
    "OCI__CERTIFICATE_DOWNLOAD_LOCATION",
    "OCI__CERTIFICATE_KEY_DOWNLOAD_LOCATION",
    "OCI__CERTIFICATE_AUTHORITY_OCID",
    "OCI__CA_DOWNLOAD_LOCATION",
    "OCI__MODE",
    "RANK",
}
"""Variables by which ADS passes values of the file to its image; set by hand they could only contradict it."""
SYNC_DIR = "/opt/ml"
"""Folder that ADS's image copies to a bucket if SYNC_ARTIFACTS is 1, unless OCI__SYNC_DIR sets another."""
SYNC_VARIABLES = ("WORKSPACE", "WORKSPACE_PREFIX", "OCI__SYNC_DIR")
NO_SERVERS = "parameter servers are TensorFlow's: PyTorch has none, remove it"
NOT_EPHEMERAL = "must be true: the nodes end when the training ends; ADS reads false as true, remove it"


def translate(mapping: Mapping[str, Any]) -> Translation:
    """Return one main node, some workers and one image in our form."""
    draft = Draft()
    draft.keys(mapping, "", {"kind", "apiVersion", "spec"})
    spec = draft.section(mapping, "spec", {"name", "infrastructure", "cluster", "runtime"})
    place = infrastructure(draft, spec)
    draft.mapping["container"] = {}
    draft.put("backend.contract", spec.at("cluster"), "ads_distributed")
    # ADS's image gets its rank from its job run, and finds the others through a subnet.
    draft.put("backend.topology", spec.at("cluster"), "job_runs")
    # One process for each GPU, as ADS's driver starts them.
    draft.put("launcher.kind", spec.at("cluster"), "python")
    cluster = _cluster(draft, spec)
    runtime, source = _runtime(draft, spec)
    own = _environment(draft, cluster, runtime)
    _script(draft, runtime, source, _code_dir(own))
    _name(draft, spec.value, place.value, cluster.value, {name: item.value for name, item in own.items()})
    return draft.finished()


# the cluster


def _cluster(draft: Draft, spec: Section) -> Section:
    outer = draft.section(spec, "cluster", {"kind", "apiVersion", "spec"})
    draft.only(outer, "kind", "PYTORCH")
    known = {"name", "image", "workDir", "config", "main", "worker", "ephemeral", "certificate"}
    inner = draft.section(outer, "spec", known, refused={"ps": NO_SERVERS})
    draft.copy(inner, {"workDir": "work_dir"})
    _image(draft, inner)
    _nodes(draft, inner)
    _ephemeral(draft, inner)
    _certificate(draft, inner)
    return inner


def _roles(cluster: Section) -> list[Section]:
    named = [(cluster.at(name), cluster.value.get(name)) for name in ("main", "worker")]
    return [Section(path, value) for path, value in named if isinstance(value, Mapping)]


def _image(draft: Draft, cluster: Section) -> None:
    """Take the one image of all nodes: ADS reads the cluster first, then the main node, then the workers."""
    holders = [cluster, *_roles(cluster)]
    found = [(section.at("image"), section.value["image"]) for section in holders if "image" in section.value]
    if not found:
        draft.complain(cluster.at("image"), "is needed")
        draft.put("image", cluster.at("image"), PLACEHOLDER)
        return
    path, image = found[0]
    draft.put("image", path, image)
    for other, different in found[1:]:
        if different != image:
            draft.complain(
                other, f"all nodes run the same image, and {path} says another: remove one of them"
            )


def _nodes(draft: Draft, cluster: Section) -> None:
    # The name of a role becomes that of its job runs in ADS; ours are named after the Airflow task.
    known = {"name", "replicas", "replica", "config", "image"}
    main, worker = draft.section(cluster, "main", known), draft.section(cluster, "worker", known)
    if "main" not in cluster.value:
        draft.complain(main.path, "is needed")
    key, count = replicas(draft, main, least=1)
    if count != 1:
        draft.complain(main.at(key), f"must be 1, not {count}: there is one main node")
    key, workers = replicas(draft, worker, least=0) if "worker" in cluster.value else ("replicas", 0)
    draft.put("nodes", worker.at(key), 1 + workers)


def _ephemeral(draft: Draft, cluster: Section) -> None:
    value = cluster.value.get("ephemeral")
    if value is None:
        return
    if value is True or str(value).casefold() in ("1", "true"):
        put_variable(draft, cluster.at("ephemeral"), "OCI__EPHEMERAL", text(value))
    else:
        draft.complain(cluster.at("ephemeral"), NOT_EPHEMERAL)


def _certificate(draft: Draft, cluster: Section) -> None:
    """Put the variables that make ADS's image download a certificate and its authority; it needs both."""
    outer = draft.section(cluster, "certificate", {"caCert", "cert"})
    if not outer.value:
        return
    authority = draft.section(outer, "caCert", {"id", "downloadLocation"})
    own = draft.section(outer, "cert", {"id", "certDownloadLocation", "keyDownloadLocation"})
    for section in (authority, own):
        if "id" not in section.value:
            draft.complain(section.at("id"), "is needed: a certificate is used together with its authority")
    variables = (
        ("OCI__CERTIFICATE_AUTHORITY_OCID", authority, "id", None),
        ("OCI__CA_DOWNLOAD_LOCATION", authority, "downloadLocation", "ca-cert.pem"),
        ("OCI__CERTIFICATE_OCID", own, "id", None),
        ("OCI__CERTIFICATE_DOWNLOAD_LOCATION", own, "certDownloadLocation", "cert.pem"),
        ("OCI__CERTIFICATE_KEY_DOWNLOAD_LOCATION", own, "keyDownloadLocation", "key.pem"),
    )
    for name, section, key, default in variables:
        put_variable(draft, section.at(key), name, section.value.get(key, default))


# the program


def _runtime(draft: Draft, spec: Section) -> tuple[Section, str]:
    """Put the program without its script; return the section and the source of its code: git, remote or none."""
    outer = draft.section(spec, "runtime", {"kind", "type", "apiVersion", "spec"})
    draft.only(outer, "kind", "python")
    draft.only(outer, "type", "git", "remote")
    known = {"entryPoint", "args", "env", "uri", "branch", "commit", "codeDir", "kwargs"}
    known |= {"pythonPath", "gitSecretId"}
    inner = draft.section(outer, "spec", known)
    source = str(outer.value.get("type") or "").casefold()
    source = source if source in ("git", "remote") else ""
    _code(draft, inner, source)
    put_python_path(draft, inner)
    put_words(draft, "program.args", inner, "args")
    kwargs = inner.value.get("kwargs")
    if kwargs:
        # Variables that ADS sets for a program; PyTorch's driver does not turn them into arguments.
        put_variable(draft, inner.at("kwargs"), "OCI__ENTRY_SCRIPT_KWARGS", str(kwargs))
    return inner, source


def _code(draft: Draft, runtime: Section, source: str) -> None:
    of_git = ("branch", "commit", "gitSecretId")
    useless = {"git": (), "remote": of_git}.get(source, ("uri", *of_git, "codeDir", "pythonPath"))
    for key in [key for key in useless if key in runtime.value]:
        draft.complain(
            runtime.at(key), f"has no meaning {'with type remote' if source else 'without a type'}: remove it"
        )
    if not source:
        return
    if source == "git" and "uri" in runtime.value:
        put_code(draft, runtime, "uri")
    else:
        draft.put_needed("program.source", runtime, "uri")
    keys = {
        "OCI__RUNTIME_GIT_BRANCH": "branch",
        "OCI__RUNTIME_GIT_COMMIT": "commit",
        "OCI__CODE_DIR": "codeDir",
    }
    for name, key in keys.items():
        put_variable(draft, runtime.at(key), name, text(runtime.value.get(key)))


def _script(draft: Draft, runtime: Section, source: str, folder: str) -> None:
    script = runtime.value.get("entryPoint")
    if script is None:
        draft.complain(runtime.at("entryPoint"), "is needed")
        script = PLACEHOLDER
    elif isinstance(script, str):
        folder = str(runtime.value.get("codeDir") or folder) if source else folder
        script = within_code(script, folder) if source else posixpath.join(folder, script)
    draft.put("program.script", runtime.at("entryPoint"), script)


def _code_dir(variables: Variables) -> str:
    given = variables.get("OCI__CODE_DIR")
    return str(given.value) if given else IMAGE_CODE_DIR


def _name(
    draft: Draft,
    spec: Mapping[str, Any],
    infrastructure: Mapping[str, Any],
    cluster: Mapping[str, Any],
    variables: Mapping[str, Any],
) -> None:
    """Take the name that ADS would show, else `spec.name`, which ADS never shows."""
    names = (
        ("spec.cluster.spec.name", cluster.get("name")),
        ("spec.infrastructure.spec.displayName", infrastructure.get("displayName")),
        ("spec.name", spec.get("name")),
    )
    path, name = next(((path, name) for path, name in names if name is not None), ("spec.name", None))
    put_name(draft, path, name, variables)


# the environment


def _environment(draft: Draft, cluster: Section, runtime: Section) -> Variables:
    """Put variables in ADS's order, the runtime's over the cluster's, those of a role over both; return the common."""
    config = draft.section(cluster, "config", {"env", "startOptions"})
    common = {**_variables(draft, config), **_variables(draft, runtime)}
    environment.put(draft, "env", common, COMPUTED)
    _start_options(draft, "env", config)
    for role, section in (("main", "main_env"), ("worker", "worker_env")):
        holder = Section(cluster.at(role), _mapping(cluster.value.get(role)))
        own = draft.section(holder, "config", {"env", "startOptions"})
        environment.put(draft, section, _variables(draft, own), COMPUTED)
        _start_options(draft, section, own)
    _limits(draft, common)
    _synchronized(draft, cluster, common)
    return common


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _variables(draft: Draft, section: Section) -> Variables:
    found = environment.listed(draft, section)
    # ADS converts all values to text as Python does.
    return {name: Variable(item.path, text(item.value)) for name, item in found.items()}


def _start_options(draft: Draft, section: str, config: Section) -> None:
    options = config.value.get("startOptions")
    if options is None:
        return
    if not isinstance(options, list | tuple) or not all(isinstance(item, str) for item in options):
        draft.complain(config.at("startOptions"), f"must be a list of texts, not {value_shown(options)}")
        return
    joined = " ".join(options).strip()
    if joined or section == "env":
        variables = {"OCI__START_ARGS": Variable(config.at("startOptions"), joined)}
        environment.put(draft, section, variables, ())


def _limits(draft: Draft, variables: Variables) -> None:
    timeout = variables.get("OCI__TIMEOUT")
    if timeout is not None:
        seconds = whole_in(timeout.value)
        draft.put("limits.join_timeout", timeout.path, timeout.value if seconds is None else seconds)


def _synchronized(draft: Draft, cluster: Section, variables: Variables) -> None:
    """Put the folder that ADS's driver copies continuously as an output, which our agent copies at the end."""
    switch = variables.get("SYNC_ARTIFACTS")
    if switch is None or str(switch.value) != "1":
        return
    given = {name: str(variables[name].value) for name in SYNC_VARIABLES if name in variables}
    bucket, prefix = given.get("WORKSPACE"), given.get("WORKSPACE_PREFIX", "")
    root = f"oci://{bucket}/{prefix}" if bucket else str(cluster.value.get("workDir", ""))
    if not root:
        draft.complain(switch.path, "needs the variable WORKSPACE, or a workDir: where to copy to")
        return
    output = {
        "path": given.get("OCI__SYNC_DIR", SYNC_DIR),
        "uri": f"{root.rstrip('/')}/sync/${{JOB_OCID}}/${{JOB_RUN_OCID}}",
        "required": False,
        "nodes": "all",
        "when": "always",
    }
    draft.put("outputs", switch.path, [output])
