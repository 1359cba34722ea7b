"""OCI Data Science Jobs: as job runs, one for each node, or as one native multi-node job run."""

from airflow_provider_ocidist.backends.oci_data_science.backend import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.options import OciDataScienceOptions
from airflow_provider_ocidist.backends.oci_data_science.rules import RULES

__all__ = ["BACKEND", "OPTIONS", "RULES", "OciDataScience", "OciDataScienceOptions"]

OPTIONS = OciDataScienceOptions
BACKEND = OciDataScience
