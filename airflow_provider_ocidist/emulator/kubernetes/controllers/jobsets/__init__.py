"""JobSet of jobset.x-k8s.io/v1alpha2: Jobs that live and die together, with a headless service for their pods."""
