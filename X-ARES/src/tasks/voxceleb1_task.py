from audiomarathon.wings.encoders.xares.tasks import config_of


def voxceleb1_config(encoder):
    return config_of("voxceleb1", encoder)
