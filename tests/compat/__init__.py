"""The interface of the original DI-store."""
