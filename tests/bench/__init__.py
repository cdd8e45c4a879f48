"""Benchmarks: ratios measured side by side. Figures go to docs/evaluation.md."""
