"""What a store does through an agent, beside bare sockets and Ray."""
