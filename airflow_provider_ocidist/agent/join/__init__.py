"""The nodes join, and fence their checkpoint folder."""
