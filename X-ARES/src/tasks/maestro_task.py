from audiomarathon.wings.encoders.xares.tasks import config_of


def maestro_config(encoder):
    return config_of("maestro", encoder)
