"""The algorithms: one object each, both halves side by side."""
