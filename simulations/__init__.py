"""A whole federation on one machine: engines, partitions, comparisons, reports."""
