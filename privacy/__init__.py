"""What is done to an update before it leaves a site, and what it costs."""
