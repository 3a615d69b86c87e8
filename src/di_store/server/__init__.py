"""The agent serves a store of this machine to clients on other machines. It is one more process on the store."""
