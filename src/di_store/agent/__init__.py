"""The agent: serves a store of this machine to clients on others. Just one more process on the store."""
