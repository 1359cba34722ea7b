"""The agent as a ConfigMap."""

from __future__ import annotations

import json

from airflow_provider_ocidist.backends.kubernetes import agent_parts


def test_the_agent_fits_into_a_config_map() -> None:
    assert len(json.dumps(agent_parts.config_map())) < agent_parts.LARGEST
