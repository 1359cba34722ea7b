"""Multi-node PyTorch training from Airflow: on OCI Data Science, or on a laptop with the emulator."""

__version__ = "0.1.0"
