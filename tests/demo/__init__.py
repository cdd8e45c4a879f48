"""The demo: a compiled character GPT, trained twice under one daemon, and what the daemon says about it."""
