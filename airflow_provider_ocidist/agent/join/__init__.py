"""The nodes join, and claim their checkpoint folder."""
