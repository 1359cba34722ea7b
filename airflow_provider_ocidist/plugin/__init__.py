"""The plugin: a page for training runs in Airflow's UI. Only the API server loads its application."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin

PREFIX = "/ocidist"
# Without a leading slash: Airflow may run below a path, against which its pages resolve addresses.
PAGE = "ocidist/"
ICON = "ocidist/static/icon.svg"
TASK_QUERY = "dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}"


class TrainingPlugin(AirflowPlugin):
    """A tab on every task instance, and a page of all training runs.

    Airflow cannot show a tab on some tasks only; on tasks that are not ours the tab says so.
    """

    name = "ocidist"
    external_views = [  # noqa: RUF012 - as Airflow declares it
        {
            "name": "Training",
            "href": f"{PAGE}?{TASK_QUERY}",
            "destination": "task_instance",
            "url_route": "training",
            "icon": ICON,
        },
        {
            "name": "Training runs",
            "href": PAGE,
            "destination": "nav",
            "category": "browse",
            "url_route": "training-runs",
            "icon": ICON,
        },
    ]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]  # Airflow has a list
        """The routes; every component of Airflow loads plugins, only the API server reads these."""
        from airflow_provider_ocidist.plugin.app import make_app

        return [{"name": "ocidist", "app": make_app(), "url_prefix": PREFIX}]
