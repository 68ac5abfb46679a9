from audiomarathon.wings.encoders.xares.tasks import config_of


def vocalsound_config(encoder):
    return config_of("vocalsound", encoder)
