from audiomarathon.benchmarks.xares.tasks import config_of


def maestro_config(encoder):
    return config_of("maestro", encoder)
