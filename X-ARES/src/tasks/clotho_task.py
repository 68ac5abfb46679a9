from audiomarathon.benchmarks.xares.tasks import config_of


def clotho_config(encoder):
    return config_of("clotho", encoder)
