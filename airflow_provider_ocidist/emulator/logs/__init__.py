"""The Logging service, and the files that nodes write their lines to."""
