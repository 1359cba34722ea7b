"""What the backends on Kubernetes share; no kind of its own."""
