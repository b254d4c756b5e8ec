"""Tests of the C core by its Python face."""
