from audiomarathon.benchmarks.xares.tasks import config_of


def liveenv_config(encoder):
    return config_of("liveenv", encoder)
