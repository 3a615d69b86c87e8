"""Messages between machines."""
