"""The protocol between two machines: frames, messages, the handshake. Only `connection` uses sockets."""
