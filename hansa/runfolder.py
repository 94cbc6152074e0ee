"""The names of what a run's folder holds."""

MODEL = "model.safetensors"  # the chosen model
METRICS = "metrics.parquet"  # all metrics
APP = "app"  # the app that runs, as a folder
