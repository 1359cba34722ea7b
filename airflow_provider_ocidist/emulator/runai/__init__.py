"""A stand-in for the control plane of NVIDIA Run:ai, written from its public OpenAPI description only."""
