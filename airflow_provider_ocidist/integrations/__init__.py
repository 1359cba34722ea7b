"""What Airflow's optional parts ask of a provider: lineage, task logs, paths."""
