"""TODO(layout): filled by the work in progress."""
