"""Settings of Ray under which its clusters start few processes, which run as soon as all others do."""

FRUGAL = {"RAY_enable_worker_prestart": "0", "RAY_TASK_MAX_RETRIES": "1", "RAY_worker_niceness": "0"}
"""Environment of a cluster and its clients.

No worker starts before there is work for it, and a task whose process has died twice is lost: each start takes seconds.
Ray's workers are nice to all other processes, and beside busy tests they would wait for a minute.
"""
