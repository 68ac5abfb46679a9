from audiomarathon.wings.encoders.xares.tasks import config_of


def gtzan_genre_config(encoder):
    return config_of("gtzan_genre", encoder)
