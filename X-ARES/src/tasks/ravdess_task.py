from audiomarathon.wings.encoders.xares.tasks import config_of


def ravdess_config(encoder):
    return config_of("ravdess", encoder)
