"""One server in several processes: the engines in one, and others that read requests and write replies.

`serving.py` starts them; `engine_side.py` and `remote_driver.py` are the two ends of what they tell each other.
"""
