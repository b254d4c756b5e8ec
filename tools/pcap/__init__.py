"""Captures analysed in Spark: whether the cluster kept its promises, and what that cost (docs/captures.md)."""
