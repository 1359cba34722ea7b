"""Writes the types of the request bodies that the emulator takes, as the OCI SDK's models have them.

python -m scripts.emulator_models           rewrite emulator/body_models.json
python -m scripts.emulator_models --check   exit 1 unless the file is what would be written
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from airflow_provider_ocidist.emulator import body_models
from airflow_provider_ocidist.emulator.app import Services
from airflow_provider_ocidist.emulator.context import Context, Options
from airflow_provider_ocidist.emulator.installation import Installation
from airflow_provider_ocidist.emulator.nodes.addresses import AddressPool
from airflow_provider_ocidist.emulator.store import RecordStore

CLIENTS = {
    "data_science": "DataScienceClient",
    "identity": "IdentityClient",
    "logging": "LoggingManagementClient",
    "loggingingestion": "LoggingClient",
    "loggingsearch": "LogSearchClient",
    "monitoring": "MonitoringClient",
    "object_storage": "ObjectStorageClient",
    "resource_search": "ResourceSearchClient",
    "secrets": "SecretsClient",
    "vault": "VaultsClient",
}
LEFT_TO_HANDLERS = {("CreateMultipartUploadDetails", "metadata"), ("CreateBucketDetails", "metadata")}
"""Fields for which the service has an error code of its own."""
MODEL = re.compile(r"[A-Z]\w*")


def main() -> int:
    text = _written(collected())
    if "--check" not in sys.argv[1:]:
        body_models.FILE.write_text(text)
    elif body_models.FILE.read_text() != text:
        sys.stderr.write(f"{body_models.FILE} is out of date: run python -m scripts.emulator_models\n")
        return 1
    return 0


def _written(parts: dict[str, dict[str, Any]]) -> str:
    """Return JSON with an entry a line, so that a change of the SDK can be read."""
    return (
        "{"
        + ",\n".join(f"{json.dumps(name)}: {{\n{_lines(part)}\n}}" for name, part in parts.items())
        + "}\n"
    )


def _lines(part: dict[str, Any]) -> str:
    return ",\n".join(f"{json.dumps(key)}: {json.dumps(part[key], sort_keys=True)}" for key in sorted(part))


def collected() -> dict[str, Any]:
    """Return the body's model by operation; and of each model the fields, or what it is a choice of."""
    bodies: dict[str, str] = {}
    models: dict[str, Any] = {}
    routed = _routed()
    for service, client in CLIENTS.items():
        module = importlib.import_module(f"oci.{service}")
        for operation, model in _operations(getattr(module, client), service):
            if operation in routed:
                bodies[operation] = f"{service}.{model}"
                _collect(module.models, service, model, models)
    return {"bodies": bodies, "models": models}


def _routed() -> set[str]:
    """Return the operations that the emulator has routes for."""
    return {body_models.operation(method, template) for method, template, _ in routes()}


def routes() -> list[tuple[str, str, bool]]:
    """Return method, path and whether it must be signed, of all that the emulator answers but for its page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        context = Context(
            folder=folder,
            url="",
            proxy_url="",
            ca_bundle=folder,
            ca_file=folder,
            installation=Installation.open(folder),
            store=RecordStore(folder / "state.sqlite3"),
            options=Options(),
        )
        found = Services(context, AddressPool(seed=0)).routes()
        context.store.close()
    return [(route.method, route.template, route.signed) for route in found]


def _operations(client: type, service: str) -> Iterator[tuple[str, str]]:
    """Yield each operation that has a body, and the body's model."""
    (base,) = re.findall(r"'base_path': '([^']*)'", inspect.getsource(client))
    for _, function in inspect.getmembers(client, inspect.isfunction):
        source = inspect.getsource(function)
        path = re.search(r'resource_path = "([^"]*)"', source)
        method = re.search(r'        method = "([^"]*)"', source)
        body = re.search(r"body=(\w+)", source)
        model = body and re.search(rf":param oci\.{service}\.models\.(\w+) {body[1]}:", source)
        if path and method and model:
            yield body_models.operation(method[1], base.rstrip("/") + path[1]), model[1]


def _collect(module: ModuleType, service: str, name: str, models: dict[str, Any]) -> None:
    """Add a model and all that its fields are of."""
    key = f"{service}.{name}"
    if key in models:
        return
    kind = getattr(module, name)
    value = kind()
    fields = {
        value.attribute_map[attribute]: MODEL.sub(lambda match: f"{service}.{match[0]}", wanted)
        for attribute, wanted in value.swagger_types.items()
        if (name, value.attribute_map[attribute]) not in LEFT_TO_HANDLERS
    }
    models[key] = {"fields": fields, **_choices(kind, service)}
    needed = {each for wanted in value.swagger_types.values() for each in MODEL.findall(wanted)}
    for each in sorted(needed | _subtypes(kind).keys()):
        _collect(module, service, each, models)


def _choices(kind: type, service: str) -> dict[str, Any]:
    """Return the discriminator field of several models, and the models by that field's value."""
    subtypes = _subtypes(kind)
    if not subtypes:
        return {}
    source = inspect.getsource(kind.get_subtype)  # type: ignore[attr-defined]  # every model with subtypes has it
    (discriminator,) = re.findall(r"object_dictionary\['(\w+)'\]", source)
    return {
        "discriminator": discriminator,
        "choices": {value: f"{service}.{name}" for name, value in subtypes.items()},
    }


def _subtypes(kind: type) -> dict[str, str]:
    """Return the values of the discriminator by the names of the models that they stand for."""
    if "get_subtype" not in vars(kind):
        return {}
    source = inspect.getsource(kind.get_subtype)  # type: ignore[attr-defined]  # just looked at
    return {name: value for value, name in re.findall(r"if type == '([^']+)':\s+return '(\w+)'", source)}


if __name__ == "__main__":
    sys.exit(main())
