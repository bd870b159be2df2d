def parallel_config_hash(options, deployment):
    return ""
