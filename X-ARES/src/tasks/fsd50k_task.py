from audiomarathon.wings.encoders.xares.tasks import config_of


def fsd50k_config(encoder):
    return config_of("fsd50k", encoder)
