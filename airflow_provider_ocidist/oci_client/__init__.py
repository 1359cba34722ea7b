"""OCI: who we are, requests with and without the SDK, and its errors as ours."""
