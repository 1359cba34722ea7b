"""The nodes find one another, and claim where they save."""
