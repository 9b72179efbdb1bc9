"""Verify: what the model predicts, checked on the running kernel."""
