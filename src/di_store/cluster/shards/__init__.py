"""Tables in parts: one shard on each of several nodes, behind one handle."""
