"""The choices of users, frozen and checked together: views, samplers, limiters, settings."""
