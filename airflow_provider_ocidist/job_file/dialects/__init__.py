"""Other people's YAML, translated into ours."""
