"""Fuzzing: libFuzzer on the C core and the reader of captures, hypothesis on what Python decodes."""
