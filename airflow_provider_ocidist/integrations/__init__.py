"""Interfaces for Airflow's optional parts: lineage, task logs, paths."""
