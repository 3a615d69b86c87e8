"""What tables will need."""
