"""Differential privacy: mechanisms and their events, what these cost (accountants), what is left (ledgers)."""
