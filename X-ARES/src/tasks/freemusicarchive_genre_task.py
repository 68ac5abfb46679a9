from audiomarathon.wings.encoders.xares.tasks import config_of


def fma_genre_config(encoder):
    return config_of("freemusicarchive", encoder)
