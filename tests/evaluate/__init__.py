"""Runs the scenarios under one real daemon, scores its first answers and writes docs/evaluation.md."""
