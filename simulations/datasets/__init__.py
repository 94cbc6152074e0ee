"""Data sets that ship with Hansa or are fetched from their source; a file's name is its name in the config."""
