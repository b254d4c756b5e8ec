"""Capture files and the frames in them, without Spark and without tables: found, looked up, printed."""
