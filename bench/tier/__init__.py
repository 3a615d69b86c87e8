"""The disk tier beside the drive itself, other stores, and stores without it: `python -m bench.tier`."""
