"""Measurements, as ratios in one run: `python -m bench`, or `python -m bench idle pipeline` for some of them."""
