"""Differential privacy: what was done (a mechanism and its event), what it cost (an accountant), what is left (a ledger)."""
