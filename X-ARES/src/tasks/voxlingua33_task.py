from audiomarathon.wings.encoders.xares.tasks import config_of


def voxlingua33_config(encoder):
    return config_of("voxlingua33", encoder)
