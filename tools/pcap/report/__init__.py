"""The tables as one page: counted (summary.py), drawn (figures.py), written (render.py)."""
