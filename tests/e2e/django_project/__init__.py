"""A project of Django's, as its users have them, on a replicated database."""
