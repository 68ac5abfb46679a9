from audiomarathon.wings.encoders.xares.tasks import config_of


def libricount_config(encoder):
    return config_of("libricount", encoder)
