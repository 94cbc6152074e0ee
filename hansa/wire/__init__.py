"""What a site and the server say to each other. No gRPC here: any transport may carry it."""
