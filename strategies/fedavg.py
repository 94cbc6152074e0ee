"""Federated averaging."""

from strategies.base import Strategy


class FedAvg(Strategy):
    """FedAvg (McMahan et al., AISTATS 2017, algorithm 1): the mean of the sites' updates, weighted by their rows."""
