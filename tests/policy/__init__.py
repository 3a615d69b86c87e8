"""Settings of tables."""
