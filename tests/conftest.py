"""What all tests share."""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

# In a clone the folder shardwise/ holds the public face only; the installed package has the rest. `python -m pytest`
# puts the clone first on the path, where the first would hide the second.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

# The same examples in every run, so that a change is judged by itself; HYPOTHESIS_PROFILE=explore draws new ones. The
# cross-checks run in an environment without hypothesis.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("same", derandomize=True)
    settings.register_profile("explore", derandomize=False)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
