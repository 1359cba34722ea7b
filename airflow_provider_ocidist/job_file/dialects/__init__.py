"""Other YAML formats, translated into ours."""
