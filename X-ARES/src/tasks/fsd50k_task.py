from audiomarathon.benchmarks.xares.tasks import config_of


def fsd50k_config(encoder):
    return config_of("fsd50k", encoder)
