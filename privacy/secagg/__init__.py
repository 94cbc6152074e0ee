"""Secure aggregation: the server learns the sum over the sites and nothing of one site (Bonawitz et al., CCS 2017)."""
