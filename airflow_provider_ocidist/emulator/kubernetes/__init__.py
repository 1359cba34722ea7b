"""A Kubernetes cluster: its API server, its controllers, and pods that run as processes of this machine."""
