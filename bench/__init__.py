"""Measurements, as ratios in one run: `python -m bench`, or `python -m bench idle matrix` for some of them."""

import sys
from pathlib import Path

# The measurements start the same programs as the tests.
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
