"""Metrics: posted, listed, summarised."""
