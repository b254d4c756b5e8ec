"""The papers' numbers, measured from captures of labs (``zenjun evaluate``)."""
