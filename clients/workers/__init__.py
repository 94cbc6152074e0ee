"""A site's worker group: processes that train together and stay for the whole run.

Light: torch is imported by `rank_main` only, which is what a rank's process runs, and by what that imports.
"""
