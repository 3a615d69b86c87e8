"""Stores of several machines as one: which nodes there are, where tables and objects lie, and who publishes weights."""

from di_store.cluster.joining import attach as attach
