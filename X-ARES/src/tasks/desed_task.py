from audiomarathon.wings.encoders.xares.tasks import config_of


def desed_config(encoder):
    return config_of("desed", encoder)
