"""Stores of several machines as one: who is there, where a table or an object lies, and who publishes."""

from di_store.cluster.joining import attach as attach
