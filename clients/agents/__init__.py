"""A site of several machines: an agent on each, which starts ranks there when the head tells it to.

The head (`head.py`) is in the light process that holds the session; agents (`agent.py`) connect out to it. No torch.
"""
