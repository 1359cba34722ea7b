"""Kubeflow Trainer: TrainJob and its runtimes of trainer.kubeflow.org/v1alpha1, as versions 2.0 to 2.3 have them."""
