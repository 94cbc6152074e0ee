"""The names of what a run's folder holds."""

from hansa.appfiles import FEDERATION

MODEL = "model.safetensors"  # the chosen model
METRICS = "metrics.parquet"  # all metrics
PRIVACY = "privacy.json"  # what differential privacy promises, where there is any
APP = "app"  # the app that runs, as a folder

# What may be fetched, by the name that it gets there: its path in the run's folder.
FETCHED = {MODEL: MODEL, METRICS: METRICS, PRIVACY: PRIVACY, FEDERATION: f"{APP}/{FEDERATION}"}
MANIFEST = "manifest.json"  # goes with it
