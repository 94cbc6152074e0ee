"""One site's training over several processes: what each holds and does, so that the update is that of one process."""
