from audiomarathon.wings.encoders.xares.tasks import config_of


def esc50_config(encoder):
    return config_of("esc50", encoder)
