"""OCI Data Science Jobs: one job, one job run for each node."""

from airflow_provider_ocidist.backends.oci_data_science.backend import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.options import OciDataScienceOptions

__all__ = ["BACKEND", "OPTIONS", "OciDataScience", "OciDataScienceOptions"]

OPTIONS = OciDataScienceOptions
BACKEND = OciDataScience
