from audiomarathon.wings.encoders.xares.tasks import config_of


def clotho_config(encoder):
    return config_of("clotho", encoder)
