"""`python -m airflow_provider_ocidist.cli`."""

import sys

from airflow_provider_ocidist.cli import main

sys.exit(main())
