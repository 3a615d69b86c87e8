"""The measuring kit and the loads."""
