"""What two machines say to each other: frames, messages, the handshake. No sockets here, except in `connection`."""
