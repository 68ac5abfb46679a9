from audiomarathon.wings.encoders.xares.tasks import config_of


def subway_broadcast_config(encoder):
    return config_of("subway_broadcast", encoder)
