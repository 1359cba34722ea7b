"""Task logs in a bucket: `[logging] logging_config_class = <this module>.LOGGING_CONFIG`.

Airflow 3.3 finds the log handler for `oci://` by itself, but refuses to start: its own settings know a fixed list of
schemes. With these settings it needs no `remote_logging`, which must stay off.
"""

from __future__ import annotations

from airflow.config_templates.airflow_local_settings import DEFAULT_LOGGING_CONFIG

from airflow_provider_ocidist.integrations.task_logs import OciTaskLogs

LOGGING_CONFIG = DEFAULT_LOGGING_CONFIG
REMOTE_TASK_LOG = OciTaskLogs.from_config()
DEFAULT_REMOTE_CONN_ID = REMOTE_TASK_LOG.conn_id
"""Connection id that Airflow resolves for the process that sends the logs, which cannot ask for one."""
