"""`hansa init`: an app to start from, on made-up rows or on the user's own."""
