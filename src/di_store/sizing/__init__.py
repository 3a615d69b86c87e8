"""How much memory, disk and drive tables will need, before there is a store."""
