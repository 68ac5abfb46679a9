from audiomarathon.benchmarks.xares.tasks import config_of


def libricount_config(encoder):
    return config_of("libricount", encoder)
