"""What holds for every test: nothing calls home, and tests that ask for more than `make test` has are opted into."""

import os
import re

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

import hypothesis
import pytest

# Run by naming the marker: `pytest -m long`, `pytest -m "gpu and not long"`.
OPT_IN = {
    "long": "takes minutes: `make test-long` runs it",
    "data": "needs the data sets in HANSA_DATA_DIR: `make test-data` runs it",
    "gpu": "needs a GPU: `pytest -m gpu` runs it",
    "root": "needs root: `pytest -m root` runs it",
}

# How long an example takes depends on the machine, so no test may depend on it.
hypothesis.settings.register_profile(
    "hansa",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
hypothesis.settings.load_profile("hansa")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = set(re.findall(r"\w+", config.option.markexpr))
    if "data" in named and not os.path.isdir(os.environ.get("HANSA_DATA_DIR", "")):
        raise pytest.UsageError("-m data: set HANSA_DATA_DIR to the folder that holds the data sets")
    for item in items:
        for marker in OPT_IN.keys() - named:
            if marker in item.keywords and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=OPT_IN[marker]))
