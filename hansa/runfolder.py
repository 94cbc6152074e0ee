"""The names of what a run's folder holds."""

from hansa.appfiles import FEDERATION

MODEL = "model.safetensors"  # the chosen model
METRICS = "metrics.parquet"  # all metrics
APP = "app"  # the app that runs, as a folder

# What may be fetched, by the name that it gets there: its path in the run's folder.
FETCHED = {MODEL: MODEL, METRICS: METRICS, FEDERATION: f"{APP}/{FEDERATION}"}
MANIFEST = "manifest.json"  # goes with it
