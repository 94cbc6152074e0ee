"""What computes the simulated sites: an engine a file, its name the file's, as [simulation] engine has it."""
