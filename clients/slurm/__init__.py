"""A site's machines behind the queue of a Slurm cluster: one job for each run. Light: no torch."""
