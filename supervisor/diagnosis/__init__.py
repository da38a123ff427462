"""What happened: from what a program printed, recorded and ended with to a judged failure.

Pure, like the decision core, which it knows nothing of.
"""
