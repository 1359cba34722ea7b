"""The Object Storage service."""
