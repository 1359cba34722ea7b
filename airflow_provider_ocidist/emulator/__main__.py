"""`python -m airflow_provider_ocidist.emulator`."""

import sys

from airflow_provider_ocidist.emulator.command import main

sys.exit(main())
