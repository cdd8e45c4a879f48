"""Training runs whose outcome is known: six planted faults, and healthy but tricky runs.

The faults are planted on families that no detector was tuned on. A scenario is ordinary training code: a faulty one
differs from its healthy twin by the value of one tensor, one learning rate or one batch from the onset step on. Nothing
of that is handed to the agent or to the daemon; the truth stays with the scorer (tests/evaluate).
"""
