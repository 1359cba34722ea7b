"""Job of batch/v1: pods that run to completion, as a set or each with its index."""
