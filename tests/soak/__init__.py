"""One store in hard use for half an hour: see test_soak."""
