"""Public calls with odd arguments, under signals, failing allocations and forks: see test_odd_calls."""
