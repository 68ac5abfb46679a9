from audiomarathon.wings.encoders.xares.tasks import config_of


def liveenv_config(encoder):
    return config_of("liveenv", encoder)
