"""The life of a gang, without Airflow: submit, watch, decide, end."""
