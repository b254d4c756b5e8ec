"""SQLAlchemy's own tests for dialects, as ``test_database_sqlalchemy`` runs them: in a process of their own."""
