from audiomarathon.wings.encoders.xares.tasks import config_of


def key_scratching_config(encoder):
    return config_of("key_scratching", encoder)
