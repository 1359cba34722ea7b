"""`ocidist schema`: the JSON Schema of job files, by which editors complete and check them."""

from __future__ import annotations

import argparse
import json

from airflow_provider_ocidist.cli.terminal import FINE, add_json, last_output, print_json, say


def add_schema(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--path",
        action="store_true",
        help="print the path of the schema on this machine, for the settings of an editor",
    )
    add_json(parser, "print JSON, also for --path")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from airflow_provider_ocidist.job_file.json_schema import SCHEMA_FILE

    with last_output():
        if options.path:
            (print_json if options.json else say)(str(SCHEMA_FILE))
        else:
            # It holds our own names only, and no secrets.
            print_json(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")), masked=False)
    return FINE
