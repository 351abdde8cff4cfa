"""What all tests share."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

# In a clone the folder shardwise/ holds the public face only; the installed package has the rest. `python -m pytest`
# puts the clone first on the path, where the first would hide the second.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
