"""Where a gang of nodes runs."""
