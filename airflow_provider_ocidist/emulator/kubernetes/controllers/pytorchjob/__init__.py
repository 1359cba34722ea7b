"""The training operator: PyTorchJob of kubeflow.org/v1, as versions 1.3 to 1.9.4 have it."""
