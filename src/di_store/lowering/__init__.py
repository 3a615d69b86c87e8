"""From what users chose to the core's numbers: how rows lie, what a table needs."""
