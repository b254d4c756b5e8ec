"""Spark for one command: a Java for it, and a session."""
