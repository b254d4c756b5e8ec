"""Its schema, step by step."""
