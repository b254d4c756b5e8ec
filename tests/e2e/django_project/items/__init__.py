"""The project's application."""
