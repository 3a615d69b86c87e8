"""How rows lie."""
