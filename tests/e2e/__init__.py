"""Real daemons on real frames, in labs of network namespaces."""
