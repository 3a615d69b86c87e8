"""Objects and weights."""
