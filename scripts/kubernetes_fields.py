"""Writes the fields of Kubernetes' own kinds, as the `kubernetes` client's models have them.

python -m scripts.kubernetes_fields           rewrite emulator/kubernetes/field_types.json
python -m scripts.kubernetes_fields --check   exit 1 unless the file is what would be written
"""

from __future__ import annotations

import json
import re
import sys

from kubernetes.client import models

from airflow_provider_ocidist.emulator.kubernetes import core_kinds, fields

ALSO = (
    "V1Job",
    "V1PodTemplateSpec",
    "V1ResourceRequirements",
    "V1LabelSelector",
    "V1Condition",
    "V1Toleration",
)
"""Models of which the kinds of operators, which stand in their own modules, are made."""
OWN = {
    "KubeflowV1ReplicaSpec": {"replicas": "int", "restartPolicy": "str", "template": "V1PodTemplateSpec"},
}
"""Models of operators, which the client does not have."""
QUANTITIES = {
    **dict.fromkeys(("limits", "requests", "capacity", "allocatable", "hard", "used"), "dict[str, quantity]"),
    **dict.fromkeys(
        ("default", "defaultRequest", "max", "min", "maxLimitRequestRatio"), "dict[str, quantity]"
    ),
    **dict.fromkeys(("sizeLimit", "divisor"), "quantity"),
}
"""Types of the fields that hold amounts, which may be written as numbers, too."""


def main() -> int:
    kinds = [kind.schema for kind in core_kinds.KINDS if isinstance(kind.schema, str)]
    found: dict[str, dict[str, str]] = dict(OWN)
    for name in (*kinds, *ALSO):
        _collect(name, found)
    lines = [f'"{name}": {json.dumps(found[name], sort_keys=True)}' for name in sorted(found)]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    if "--check" not in sys.argv[1:]:
        fields.FILE.write_text(text)
    elif fields.FILE.read_text() != text:
        sys.stderr.write(f"{fields.FILE} is out of date: run python -m scripts.kubernetes_fields\n")
        return 1
    return 0


def _collect(name: str, found: dict[str, dict[str, str]]) -> None:
    """Add a model, and those that it is made of."""
    model = getattr(models, name)
    types = {model.attribute_map[field]: type_ for field, type_ in model.openapi_types.items()}
    found[name] = {field: _type(field, type_) for field, type_ in types.items()}
    for type_ in found[name].values():
        for used in re.findall(r"[A-Z]\w+", type_):
            if used not in found:
                _collect(used, found)


def _type(field: str, text: str) -> str:
    quantity = QUANTITIES.get(field)
    same_shape = quantity is not None and quantity.startswith("dict") == text.startswith("dict")
    return quantity if quantity and same_shape else re.sub(r"dict\((.*)\)", r"dict[\1]", text)


if __name__ == "__main__":
    sys.exit(main())
