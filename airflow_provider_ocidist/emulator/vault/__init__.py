"""Secrets: kept in versions, managed by one API and read through another."""
