"""What users choose, frozen and checked together: views, samplers, limiters, settings."""
