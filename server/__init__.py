"""The server's end of a deployment."""
