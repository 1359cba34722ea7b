"""`ocidist copy`: files and trees between any two places."""

from __future__ import annotations

import argparse

from airflow_provider_ocidist.cli.connection import add_connection, connection_of
from airflow_provider_ocidist.cli.terminal import FINE, add_json, counted, last_output, print_json, say


def add_copy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SOURCE", help="file or folder: path or URI; a URI that ends in / is a folder"
    )
    parser.add_argument(
        "target", metavar="TARGET", help="path or URI; a file appears there only when it is complete"
    )
    for name, what in (("include", "copy only"), ("exclude", "do not copy")):
        parser.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar="PATTERN",
            help=f"{what} files whose relative name matches this shell pattern; may be repeated",
        )
    parser.add_argument(
        "--mode",
        choices=["all", "changed"],
        default="all",
        help="changed: skip files that the target already has unchanged (default: %(default)s)",
    )
    parser.add_argument(
        "--verify", action="store_true", help="compare all files with their source again at the end"
    )
    parser.add_argument(
        "--delete-extra",
        action="store_true",
        help="delete files at the target that the source folder does not have",
    )
    parser.add_argument(
        "--no-resume",
        action="store_true",
        help="copy from the start, even if an earlier copy was interrupted",
    )
    add_connection(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from airflow_provider_ocidist.oci_client.credentials import access_of
    from airflow_provider_ocidist.storage.progress import terminal_progress
    from airflow_provider_ocidist.storage.transfer import copy

    report = copy(
        options.source,
        options.target,
        access=access_of(connection_of(options)),
        include=options.include,
        exclude=options.exclude,
        on_progress=terminal_progress("copy"),
        mode=options.mode,
        verify=options.verify,
        delete_extra=options.delete_extra,
        resume=not options.no_resume,
    )
    with last_output():
        if options.json:
            print_json(asdict(report))
            return FINE
        say(f"{counted(report.files, 'file')}, {counted(report.bytes, 'byte')} in {report.seconds:.1f} s")
        if report.unchanged:
            say(f"{counted(len(report.unchanged), 'file')} unchanged at the target")
        if report.deleted:
            say(f"{counted(len(report.deleted), 'file')} deleted that only the target had")
        if report.unverified:
            say(f"{counted(len(report.unverified), 'file')} compared by size only")
        if report.resumed_bytes:
            say(f"{counted(report.resumed_bytes, 'byte')} resumed from an interrupted copy")
        for name in report.skipped:
            say(f"skipped: {name}", "yellow", stderr=True)
    return FINE
