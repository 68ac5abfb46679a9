from audiomarathon.benchmarks.xares.tasks import config_of


def urbansound8k_config(encoder):
    return config_of("urbansound8k", encoder)
