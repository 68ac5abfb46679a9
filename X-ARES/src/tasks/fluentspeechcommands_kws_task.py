from audiomarathon.benchmarks.xares.tasks import config_of


def fluentspeechcommands_config(encoder):
    return config_of("fluentspeechcommands", encoder)
