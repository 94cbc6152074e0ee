"""A site's end of a deployment."""
