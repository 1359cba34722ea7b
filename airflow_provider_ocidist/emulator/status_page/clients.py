"""How to point each client at this emulator, as lines to copy."""

from __future__ import annotations

import json

from airflow_provider_ocidist.emulator.context import Context


def clients(context: Context) -> list[dict[str, str]]:
    """Return for each client what it is called, what to know, and the text to paste."""
    config, url, ids = context.installation.config_file, context.url, context.ids
    fsspec = json.dumps({"config": str(config), "config_kwargs": {"service_endpoint": url}})
    proxy = {
        "OCI_CONFIG_FILE": config,
        "HTTPS_PROXY": context.proxy_url,
        "REQUESTS_CA_BUNDLE": context.ca_file,
    }
    return [
        {
            "name": "Any client",
            "note": "unchanged, ADS too: a proxy stands in for OCI's hosts",
            "text": "\n".join(f"export {name}={value}" for name, value in proxy.items()),
        },
        {
            "name": "OCI SDK",
            "note": "every client takes service_endpoint",
            "text": f'config = oci.config.from_file("{config}")\n'
            f'oci.data_science.DataScienceClient(config, service_endpoint="{url}")',
        },
        {
            "name": "OCI CLI",
            "note": "",
            "text": f"export OCI_CLI_CONFIG_FILE={config}\nexport OCI_CLI_ENDPOINT={url}",
        },
        {
            "name": "ocifs, fsspec, pandas",
            "note": f"then oci://{ids.bucket}@{ids.namespace}/...",
            "text": f"export FSSPEC_OCI='{fsspec}'",
        },
        {"name": "curl", "note": "the control API needs no signature", "text": f"curl {url}/_emulator/calls"},
    ]
